package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/hub"
)

// findModels replaces a repository name in the flag --model by its path in the hub's cache. With
// --pull it downloads missing files.
func findModels(ctx context.Context, a *App, flags *pflag.FlagSet) error {
	f := flags.Lookup("model")
	if f == nil || f.Value.Type() != "string" {
		return nil
	}
	pull := flags.Lookup("pull") != nil && flags.Lookup("pull").Value.String() == "true"
	if shape := flags.Lookup("shape"); f.Value.String() == "" && !elsewhere(flags) &&
		(shape == nil || !shape.Changed) {
		return NoUse(flags, pull, "has no effect on the embedded model, want --model", "pull")
	}
	p := flags.Lookup("mmproj")
	given := p != nil && p.Value.String() != ""
	s, err := findModel(ctx, a, f.Value.String(), pull, given)
	if err != nil && !OnCommandLine(f) && elsewhere(flags) {
		return nil // a worker that needs it reports that there is no such file
	}
	if err != nil || s == nil {
		return err
	}
	if p != nil && !given {
		if err := p.Value.Set(s.Projector); err != nil {
			return err
		}
	}
	return f.Value.Set(s.Model)
}

// elsewhere reports whether another process has the model.
func elsewhere(flags *pflag.FlagSet) bool {
	return slices.ContainsFunc([]string{"server", "nats"}, func(name string) bool {
		f := flags.Lookup(name)
		return f != nil && f.Value.String() != ""
	})
}

// findModel returns a repository's snapshot in the hub's cache, nil if model is a path or the
// embedded model. If pull is set, it downloads what is missing, but no vision tower if one is
// given.
func findModel(
	ctx context.Context, a *App, model string, pull, towerGiven bool,
) (*hub.Snapshot, error) {
	if model == "" {
		return nil, nil
	}
	if _, err := os.Lstat(model); !errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	name, err := hub.ParseName(model)
	if err != nil {
		return nil, nil // not a repository name: opening the path reports the error
	}
	c, err := hub.New(a.Getenv)
	if err != nil {
		return nil, err
	}
	s, err := c.Find(name)
	switch {
	case err == nil && pull && !towerGiven:
		err = pullTower(ctx, a, c, s, false, true)
	case err == nil:
	case errors.Is(err, errs.ErrDamaged) && !pull:
		return nil, fmt.Errorf("%w: 'restore pull %s' downloads it again", err, model)
	case !errors.Is(err, errs.ErrNotFound) && !errors.Is(err, errs.ErrDamaged):
		return nil, err
	case !pull:
		return nil, fmt.Errorf(
			"%w: 'restore pull %s' downloads it (and there is no such file or folder)", err, model)
	default:
		download := PullModel
		if towerGiven {
			download = pullOne
		}
		var p *hub.Pulled
		if p, err = download(ctx, a, c, name, nil, false); err == nil {
			s = &p.Snapshot
		}
	}
	if err != nil {
		return nil, err
	}
	s.MarkUsed()
	return s, nil
}

// lineEvery is how often a download without a terminal says how far it is.
const lineEvery = 10 * time.Second

// progressLines notes how far a download is, every so often until end is called.
func (a *App) progressLines(what string, every time.Duration) (
	set func(done, total int64), end func(),
) {
	var done, total atomic.Int64
	t := time.NewTicker(every)
	ended, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(left)
		for {
			select {
			case <-ended:
				return
			case <-t.C:
				if of := total.Load(); of > 0 {
					a.Note("%s: %s of %s", what, bytesize.MB(done.Load()), bytesize.MB(of))
				}
			}
		}
	}()
	set = func(d, of int64) { done.Store(d); total.Store(of) }
	return set, func() { t.Stop(); close(ended); <-left }
}

// PullModel downloads a model and, without patterns, the vision tower that an original LLaVA
// checkpoint names.
func PullModel(ctx context.Context, a *App, c *hub.Client, name hub.Name,
	include []string, verify bool) (*hub.Pulled, error) {
	p, err := pullOne(ctx, a, c, name, include, verify)
	if err != nil || len(include) > 0 {
		return p, err
	}
	return p, pullTower(ctx, a, c, &p.Snapshot, verify, false)
}

// pullTower downloads the repository with the vision tower of an original LLaVA checkpoint: its
// configuration, and its weights if the checkpoint has none. If needed is set, it does nothing
// where the checkpoint has the weights or the cache has the tower.
func pullTower(
	ctx context.Context, a *App, c *hub.Client, s *hub.Snapshot, verify, needed bool,
) error {
	if s.Model != s.Dir {
		return nil // a GGUF file
	}
	tower, inside, err := towerOf(s.Dir)
	if err != nil || tower == "" {
		return err
	}
	name, err := hub.ParseName(tower)
	if err != nil {
		return nil // a path on the author's machine
	}
	if needed {
		if _, err := c.Find(name); inside || err == nil {
			return nil
		}
	}
	var include []string
	if inside {
		include = []string{"*config.json"}
	}
	a.Note("%s: its vision tower is in %s", s.Name, tower)
	if _, err = pullOne(ctx, a, c, name, include, verify); err != nil {
		return fmt.Errorf("the vision tower of %s: %w", s.Name, err)
	}
	return nil
}

// towerOf returns the repository or path that an original LLaVA checkpoint names as its vision
// tower, "" for other models, and whether the checkpoint contains the tower's weights.
func towerOf(dir string) (tower string, inside bool, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	var config struct {
		Tower string `json:"mm_vision_tower"`
	}
	text, err := files.Text(raw)
	if err != nil || json.Unmarshal(text, &config) != nil || config.Tower == "" {
		return "", false, nil // opening the model reports errors in its configuration
	}
	for _, index := range []string{"model.safetensors.index.json", "pytorch_model.bin.index.json"} {
		raw, err := os.ReadFile(filepath.Join(dir, index))
		if err == nil {
			return config.Tower, strings.Contains(string(raw), `"model.vision_tower.`), nil
		}
	}
	return config.Tower, false, nil
}

// pullOne downloads a repository, with a progress bar on a terminal or a line every ten seconds,
// and notes on a.err.
func pullOne(ctx context.Context, a *App, c *hub.Client, name hub.Name,
	include []string, verify bool) (*hub.Pulled, error) {
	o := hub.PullOptions{Include: include, Verify: verify,
		Notice: func(s string) { a.Note("%s", s) }}
	if shown := a.Meter(name.Repo).bytes(); shown != nil {
		defer shown.End()
		o.Progress = shown.Set
	} else {
		set, end := a.progressLines(name.Repo, lineEvery)
		defer end()
		o.Progress = set
	}
	start := time.Now()
	p, err := c.Pull(ctx, name, o)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, CutShort("%s: interrupted, the next pull continues from here", name)
	default:
		return nil, err
	}
	if verify {
		a.Note("%s: the hashes of %s are right", name, Count(p.Files, "file"))
	}
	if p.Bytes > 0 {
		s := time.Since(start).Seconds()
		a.Note("%s: %d of %d files, %s in %.1f s (%.1f MB/s)",
			name, p.New, p.Files, bytesize.MB(p.Bytes), s, float64(p.Bytes)/1e6/s)
	}
	return p, nil
}
