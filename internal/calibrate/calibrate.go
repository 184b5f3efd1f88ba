// Package calibrate measures this machine once and keeps the results in the user's cache folder.
package calibrate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/kernel"
)

// form is the version of the files and kernels. A file of another version is measured again.
const form = 19

// maxFile is the most bytes that are read of a file.
const maxFile = 1 << 20

// kept is the content of a file.
type kept struct {
	Form  int
	CPU   string
	Speed *kernel.Speed
}

// Speed returns how fast this machine computes on all threads of p. It reads an earlier result, or
// measures and stores one. about, when not nil, is called before it measures, which takes one or
// two seconds. It ignores a failure to store the result.
func Speed(p *kernel.Pool, about func()) *kernel.Speed {
	dir, err := os.UserCacheDir()
	if err == nil {
		dir = filepath.Join(dir, "restore")
	}
	return in(dir, p.Threads(), func() *kernel.Speed {
		if about != nil {
			about()
		}
		return kernel.MeasureSpeed(p)
	})
}

// in is Speed for a folder of files and a measurement; "" stores nothing.
func in(dir string, threads int, measure func() *kernel.Speed) *kernel.Speed {
	cpu := CPU()
	name := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", cpu, kernel.Implementation(), threads))
	file := filepath.Join(dir, "speed-"+hex.EncodeToString(name[:6])+".json")
	if dir != "" {
		if s, err := load(file, cpu, threads); err == nil {
			return s
		}
	}
	s := measure()
	if dir != "" {
		_ = files.WriteJSON(file, &kept{Form: form, CPU: cpu, Speed: s}, " ")
	}
	return s
}

func load(file, cpu string, threads int) (*kernel.Speed, error) {
	b, err := readSmall(file)
	if err != nil {
		return nil, err
	}
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, err
	}
	s := k.Speed
	switch {
	case k.Form != form || k.CPU != cpu || s == nil ||
		s.Implementation != kernel.Implementation() || s.Threads != threads:
		return nil, errors.New("it is from another machine or version")
	case !(slices.Min(s.Attention[:]) > 0 && s.Elements > 0 && s.Read > 0) ||
		len(s.Products) == 0:
		return nil, errors.New("not measured")
	}
	return s, nil
}

// readSmall reads a file of at most maxFile bytes.
func readSmall(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, errors.New("too large")
	}
	return os.ReadFile(file)
}

// CPU returns the system's name of the processor, with family and model if it reports them, or else
// the architecture.
func CPU() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	return cpuIn(string(info))
}

// cpuIn reads the first processor of a /proc/cpuinfo.
func cpuIn(info string) string {
	first, _, _ := strings.Cut(info, "\n\n")
	fields := map[string]string{}
	for line := range strings.Lines(first) {
		name, value, _ := strings.Cut(line, ":")
		fields[strings.TrimSpace(name)] = strings.Join(strings.Fields(value), " ")
	}
	name := fields["model name"]
	if name == "" {
		return runtime.GOARCH
	}
	if fields["cpu family"] != "" && fields["model"] != "" {
		name += " (family " + fields["cpu family"] + ", model " + fields["model"] + ")"
	}
	return strings.ToValidUTF8(name, "?")
}
