package main

import (
	"encoding/hex"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
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
func (m *modelFlags) asScripts(files *modelFiles) (system string) {
	if m.files.Model == "" {
		return ""
	}
	if !m.fs.Changed("pad") && files.family.Pad {
		m.pad = true
	}
	return files.family.System
}

// opened records the model's files and options, for the settings of runs. Answers depend on them,
// but not on the number of threads.
func (m *modelFlags) opened(e *engine.Engine, files *modelFiles) map[string]any {
	info := e.Info()
	return map[string]any{
		"model": info.Name, "architecture": info.Architecture, "files": files.print,
		"kernel": info.Kernel, "weights": info.Kept, "cache_type": m.cache,
		"template": info.Template, "pad": m.pad,
		"min_pixels": m.minPixels, "max_pixels": m.maxPixels,
	}
}
