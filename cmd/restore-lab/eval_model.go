package main

import (
	"context"
	"encoding/hex"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/evalengine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/families"
)

// modelFiles describes a model before it is loaded.
type modelFiles struct {
	family *model.Family
	print  string // digest of the files
}

// look reads the description of a model from its files.
func look(files formats.Files) (*modelFiles, error) {
	b, err := files.Open()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	m := &modelFiles{}
	if m.family, err = families.Of(b.About().Name, b.Parts().Config.Data); err != nil {
		return nil, err
	}
	digest := checkpoint.Digest(b)
	m.print = hex.EncodeToString(digest[:])
	return m, nil
}

// asScripts makes models read pictures as the paper's scripts do, and returns the scripts' system
// message.
func asScripts(m *cli.ModelFlags, files *modelFiles) (system string) {
	if m.Path == "" {
		return ""
	}
	if !m.Flags.Changed("pad") && files.family.Pad {
		m.Pad = true
	}
	return files.family.System
}

// openForEval opens a model for benchmarks, with the pictures and the system message of the paper's
// scripts if they are wanted.
func openForEval(
	ctx context.Context, m *cli.ModelFlags, a *cli.App, scripts bool,
) (*evalengine.Model, error) {
	files, err := look(m.Files())
	if err != nil {
		return nil, err
	}
	system := ""
	if scripts {
		system = asScripts(m, files)
	}
	e, err := m.Engine(ctx, a)
	if err != nil {
		return nil, err
	}
	return &evalengine.Model{Engine: e, System: system, Opened: settingsOf(m, e, files)}, nil
}

// settingsOf records the model's files and options, for the settings of runs. Answers depend on
// them, but not on the number of threads.
func settingsOf(m *cli.ModelFlags, e *engine.Engine, files *modelFiles) map[string]any {
	info := e.Info()
	return map[string]any{
		"model": info.Name, "architecture": info.Architecture, "files": files.print,
		"kernel": info.Kernel, "weights": info.Kept, "cache_type": m.Cache,
		"template": info.Template, "pad": m.Pad,
		"min_pixels": m.MinPixels, "max_pixels": m.MaxPixels,
	}
}
