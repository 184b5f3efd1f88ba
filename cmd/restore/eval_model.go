package main

import (
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/all"
	"github.com/restore-vlm/restore/internal/engine"
)

// vicuna is what LLaVA's scripts say before every question.
const vicuna = "A chat between a curious user and an artificial intelligence assistant. " +
	"The assistant gives helpful, detailed, and polite answers to the user's questions."

// modelFiles describes a model that is not loaded.
type modelFiles struct {
	architecture string
	print        string // its digest
}

// look reads what there is to know of a model before it is loaded.
func look(files all.Files) (*modelFiles, error) {
	b, err := files.Open()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	m := &modelFiles{}
	var config struct{ Architectures []string }
	_ = json.Unmarshal(b.Parts().Config.Data, &config) // loading reports its faults
	if len(config.Architectures) > 0 {
		m.architecture = config.Architectures[0]
	}
	digest := checkpoint.Digest(b)
	m.print = hex.EncodeToString(digest[:])
	return m, nil
}

// scriptsOfLLaVA reports whether LLaVA's scripts, which the paper used, ask models of this
// architecture with vicuna's sentence.
func (m *modelFiles) scriptsOfLLaVA() bool {
	switch m.architecture {
	case "LlavaForConditionalGeneration", "LlavaLlamaForCausalLM",
		"LlavaNextForConditionalGeneration":
		return true
	}
	return false
}

// asLLaVA makes models that LLaVA's scripts ask read pictures as those do, and returns the
// sentence that the scripts say first.
func (m *modelFlags) asLLaVA(files *modelFiles) (system string) {
	if m.files.Model == "" || !files.scriptsOfLLaVA() {
		return ""
	}
	if !m.fs.Changed("pad") && !strings.Contains(files.architecture, "Next") {
		m.pad = true
	}
	return vicuna
}

// opened is what a model was opened from and how, for the settings of runs. Answers depend on
// it; they do not on threads.
func (m *modelFlags) opened(e *engine.Engine, files *modelFiles) map[string]any {
	info := e.Info()
	return map[string]any{
		"model": info.Name, "architecture": info.Architecture, "files": files.print,
		"kernel": info.Kernel, "weights": info.Kept, "cache_type": m.cache,
		"template": info.Template, "pad": m.pad,
		"min_pixels": m.minPixels, "max_pixels": m.maxPixels,
	}
}
