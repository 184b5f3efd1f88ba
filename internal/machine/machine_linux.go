package machine

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

func available() (int64, bool) { return read(os.DirFS("/")) }

// read computes available from the system files in fsys.
func read(fsys fs.FS) (int64, bool) {
	least, ok := field(fsys, "proc/meminfo", "MemAvailable:")
	least *= 1024
	for _, left := range limits(fsys) {
		if !ok || left < least {
			least, ok = left, true
		}
	}
	return max(least, 0), ok
}

// field returns the number after name at the start of a line.
func field(fsys fs.FS, file, name string) (int64, bool) {
	b, err := fs.ReadFile(fsys, file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				n, err := strconv.ParseInt(f[0], 10, 64)
				return n, err == nil
			}
		}
	}
	return 0, false
}

// limits returns the remaining memory of this process's control groups and their parents, in cgroup
// version 1 or 2.
func limits(fsys fs.FS) (left []int64) {
	b, err := fs.ReadFile(fsys, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		root, limit, usage, cached := "sys/fs/cgroup", "memory.max", "memory.current", []string{
			"inactive_file ",
			"active_file ",
		}
		switch {
		case part[0] == "0":
		case strings.Contains(","+part[1]+",", ",memory,"):
			root, limit, usage, cached = "sys/fs/cgroup/memory", "memory.limit_in_bytes",
				"memory.usage_in_bytes",
				[]string{
					"total_inactive_file ",
					"total_active_file ",
				}
		default:
			continue
		}
		for dir := path.Clean("/" + part[2]); ; dir = path.Dir(dir) {
			at := path.Join(root, dir)
			most, ok := field(fsys, path.Join(at, limit), "")
			used, also := field(fsys, path.Join(at, usage), "")
			if ok && also {
				for _, name := range cached { // pages that the system can reclaim
					n, _ := field(fsys, path.Join(at, "memory.stat"), name)
					used -= n
				}
				// The files are read one after another: pages may be counted as cached only.
				left = append(left, most-max(used, 0))
			}
			if dir == "/" {
				break
			}
		}
	}
	return left
}
