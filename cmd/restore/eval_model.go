package main

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
)

// vicuna is the system sentence of LLaVA's scripts.
const vicuna = "A chat between a curious user and an artificial intelligence assistant. " +
	"The assistant gives helpful, detailed, and polite answers to the user's questions."

// modelFiles describes a model before it is loaded.
type modelFiles struct {
	architecture string
	print        string // digest of the files
}

// look reads the description of a model from its files.
func look(files formats.Files) (*modelFiles, error) {
	b, err := files.Open()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	m := &modelFiles{}
	var config struct{ Architectures []string }
	_ = json.Unmarshal(b.Parts().Config.Data, &config) // loading reports errors in it
	if len(config.Architectures) > 0 {
		m.architecture = config.Architectures[0]
	}
	digest := checkpoint.Digest(b)
	m.print = hex.EncodeToString(digest[:])
	return m, nil
}

// scriptsOfLLaVA reports whether LLaVA's scripts, which the paper used, use vicuna's sentence with
// models of this architecture.
func (m *modelFiles) scriptsOfLLaVA() bool {
	switch m.architecture {
	case "LlavaForConditionalGeneration", "LlavaLlamaForCausalLM",
		"LlavaNextForConditionalGeneration":
		return true
	}
	return false
}

// asLLaVA makes models that LLaVA's scripts support read pictures as the scripts do, and returns
// the scripts' system sentence.
func (m *modelFlags) asLLaVA(files *modelFiles) (system string) {
	if m.files.Model == "" || !files.scriptsOfLLaVA() {
		return ""
	}
	if !m.fs.Changed("pad") && !strings.Contains(files.architecture, "Next") {
		m.pad = true
	}
	return vicuna
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
