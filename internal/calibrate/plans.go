package calibrate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/version"
)

// keptPlans is the content of a file of plans.
type keptPlans struct {
	Form    int
	CPU     string
	Program string                      // its version: another may have other kernels
	Plans   map[string]kernel.PlanTrial // by kernels and format
}

// KeepPlans makes the kernels store the fastest plan of each format in the user's cache folder. It
// must be called before the first product; only the first call has an effect.
var KeepPlans = sync.OnceFunc(func() {
	if dir, err := os.UserCacheDir(); err == nil {
		kernel.KeepPlans(planFile(filepath.Join(dir, "restore")))
	}
})

// planFile returns functions that load and save trials in this machine's file in dir.
func planFile(
	dir string,
) (load func(kernels, format string) (kernel.PlanTrial, bool), save func(kernel.PlanTrial)) {
	cpu, program := CPU(), version.Module()
	name := sha256.Sum256([]byte(cpu))
	file := filepath.Join(dir, "plans-"+hex.EncodeToString(name[:6])+".json")
	var lock sync.Mutex
	read := func() (map[string]kernel.PlanTrial, error) {
		k := keptPlans{}
		b, err := readSmall(file)
		if err != nil || json.Unmarshal(b, &k) != nil ||
			k.Form != form || k.CPU != cpu || k.Program != program || k.Plans == nil {
			return map[string]kernel.PlanTrial{}, err
		}
		return k.Plans, nil
	}
	load = func(kernels, format string) (kernel.PlanTrial, bool) {
		lock.Lock()
		defer lock.Unlock()
		plans, _ := read()
		t, ok := plans[kernels+" "+format]
		return t, ok && t.Kernels == kernels && t.Format == format
	}
	save = func(t kernel.PlanTrial) {
		lock.Lock()
		defer lock.Unlock()
		plans, err := read()
		var unopened *fs.PathError
		if errors.As(err, &unopened) && !errors.Is(err, fs.ErrNotExist) {
			return // the file may hold other trials
		}
		plans[t.Kernels+" "+t.Format] = t
		k := keptPlans{Form: form, CPU: cpu, Program: program, Plans: plans}
		_ = files.WriteJSON(file, &k, " ")
	}
	return load, save
}
