package local

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/reduce"
)

// ID is the name under which a model is served; for a file its name without the extension.
func ID(name string) string {
	for _, ending := range []string{".rst", ".gguf"} {
		if id, ok := strings.CutSuffix(name, ending); ok && id != "" {
			return id
		}
	}
	return name
}

// describe returns the description of the model.
func (b *Backend) describe() server.Info {
	i := b.e.Info()
	about := b.e.About()
	out := server.Info{
		ID: ID(i.Name), Aliases: b.o.Aliases, Created: about.Modified, Params: i.Params,
		Vocab: i.Tokens, Size: i.Resident,
		Context: b.e.Context(), Family: about.Family, Format: format(about.Format),
		Quant:  quantization(i.Kept),
		Digest: hex.EncodeToString(about.Digest[:]), Template: about.Template,
		KVPerToken: about.KVPerToken, Parallel: about.Parallel, Queue: b.o.Queue,
		Settings: b.o.Settings,
	}
	if e := i.Encoder; e != nil {
		out.Encoder = &server.Encoder{Type: e.Type, Why: e.Why}
	}
	if s := i.Sizes; s != nil && s.Views == 1 {
		out.VisualTokens = s.Tokens
	}
	for _, m := range methods.Methods() {
		if m.Name != "none" {
			out.Methods = append(out.Methods, m.Name)
		}
	}
	for _, p := range methods.Parameters() {
		if p.Kind != reduce.File {
			out.Parameters = append(out.Parameters, p.JSONName())
		}
	}
	s := &b.o.Sampling
	out.Defaults = server.Defaults{
		Temperature: s.Temp, TopP: s.TopP, TopK: s.TopK, MinP: s.MinP, Restore: b.o.Reduction,
	}
	sum := sha256.Sum256(fmt.Append(nil, b.o.Version, out.Digest, i.Kept, i.Kernel,
		about.CacheType))
	out.Fingerprint = "fp_" + hex.EncodeToString(sum[:6])
	if out.Created.IsZero() { // its weights are embedded in the program
		out.Created = built()
	}
	return out
}

// built is the time of the program's commit, or of its file.
func built() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if at, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				return at
			}
		}
	}
	if path, err := os.Executable(); err == nil {
		if info, err := os.Stat(path); err == nil {
			return info.ModTime()
		}
	}
	return time.Unix(0, 0)
}

// format is the format of a model's files, by Ollama's name.
func format(name string) string {
	if strings.Contains(strings.ToLower(name), "gguf") {
		return "gguf"
	}
	return "safetensors"
}

// quantization is the type of most weights.
func quantization(kept map[string]int64) string {
	best := ""
	for name, n := range kept {
		if best == "" || n > kept[best] || n == kept[best] && name < best {
			best = name
		}
	}
	return strings.ToUpper(best)
}
