package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/bytesize"
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
	s, err := findModel(ctx, a, f.Value.String(), pull)
	if err != nil || s == nil {
		return err
	}
	if p := flags.Lookup("mmproj"); p != nil && p.Value.String() == "" {
		if err := p.Value.Set(s.Projector); err != nil {
			return err
		}
	}
	return f.Value.Set(s.Model)
}

// findModel returns a repository's snapshot in the hub's cache, nil if model is a path or the
// embedded model.
func findModel(ctx context.Context, a *App, model string, pull bool) (*hub.Snapshot, error) {
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
	case err == nil:
	case !errors.Is(err, errs.ErrNotFound):
		return nil, err
	case !pull:
		return nil, fmt.Errorf(
			"%w: 'restore pull %s' downloads it (and there is no such file or folder)", err, model)
	default:
		p, err := PullModel(ctx, a, c, name, nil)
		if err != nil {
			return nil, err
		}
		s = &p.Snapshot
	}
	s.MarkUsed()
	return s, nil
}

// PullModel downloads a model, with a progress bar on a terminal and notes on a.err.
func PullModel(ctx context.Context, a *App, c *hub.Client, name hub.Name,
	include []string) (*hub.Pulled, error) {
	o := hub.PullOptions{Include: include,
		Notice: func(s string) { a.Note("%s", s) }}
	shown := a.Meter(name.Repo).bytes()
	defer shown.End()
	o.Progress = shown.Set
	start := time.Now()
	p, err := c.Pull(ctx, name, o)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, CutShort("%s: interrupted, the next pull continues from here", name)
	default:
		return nil, err
	}
	if p.Bytes > 0 {
		s := time.Since(start).Seconds()
		a.Note("%s: %d of %d files, %s in %.1f s (%.1f MB/s)",
			name, p.New, p.Files, bytesize.MB(p.Bytes), s, float64(p.Bytes)/1e6/s)
	}
	return p, nil
}
