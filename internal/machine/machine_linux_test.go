package machine

import (
	"testing"
	"testing/fstest"
)

// Ensure that the least of what the system and the control groups leave counts.
func TestAvailable(t *testing.T) {
	const meminfo = "MemTotal:  100 kB\nMemAvailable:    80 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
		ok    bool
	}{
		"nothing":  {nil, 0, false},
		"no limit": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "1\n"}, 80 << 10, true},
		"version 2, of the group around": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "60000\n", "sys/fs/cgroup/a/memory.current": "20000\n",
			"sys/fs/cgroup/a/memory.stat": "anon 5\nfile 9000\ninactive_file 1000\nactive_file 2000\n"}, 43000, true},
		"version 1": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "8:pids:/x\n4:cpu,memory:/x\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9000\n", "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "10000\n"}, 0, true},
		"no limit in version 1, pages cached meanwhile": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/x\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "10000\n",
			"sys/fs/cgroup/memory/x/memory.stat": "total_inactive_file 12000\ntotal_active_file 9000\n"}, 80 << 10, true},
		"in a container": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "5000\n", "sys/fs/cgroup/memory.current": "1000\n"}, 4000, true},
	} {
		fsys := fstest.MapFS{}
		for file, text := range c.files {
			fsys[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, ok := read(fsys); got != c.want || ok != c.ok {
			t.Errorf("%s: got %d %v, want %d %v", name, got, ok, c.want, c.ok)
		}
	}
	if n, ok := Available(); !ok || n < 1<<20 {
		t.Errorf("here: %d %v", n, ok)
	}
}
