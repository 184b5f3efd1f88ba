package restore

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/version"
)

// describe returns the description of a model that was opened with o.
func describe(e *engine.Engine, o *Options) *Info {
	i, about := e.Info(), e.About()
	out := &Info{
		ID: servedAs(i.Name), Name: i.Name, Created: about.Modified, Architecture: i.Architecture,
		Family: about.Family, Format: fileFormat(about.Format), Quant: mostly(i.Kept),
		Digest: hex.EncodeToString(about.Digest[:]), Template: about.Template,
		Params: i.Params, Bytes: i.Resident, Weights: i.Kept, Vocab: i.Tokens,
		Context: e.Context(), KVPerToken: about.KVPerToken,
		Parallel: about.Parallel, Queue: max(0, o.Queue), Threads: i.Threads, Kernel: i.Kernel,
	}
	if c := i.Encoder; c != nil {
		out.Encoder = &Encoder{Type: c.Type, Why: c.Why}
	}
	if s := i.Sizes; s != nil && s.Views == 1 {
		out.VisualTokens = s.Tokens
	}
	sum := sha256.Sum256(fmt.Append(nil, version.Module(), out.Digest, i.Kept, i.Kernel,
		about.CacheType))
	out.Fingerprint = "fp_" + hex.EncodeToString(sum[:6])
	if out.Created.IsZero() { // its weights are embedded in the program
		out.Created = built()
	}
	out.Settings = map[string]any{
		"digest": out.Digest, "version": version.Module(), "quant": about.Quant,
		"encoder-quant": about.EncoderQuant, "cache-type": about.CacheType,
		"ctx-size": e.Context(), "min-pixels": o.MinPixels, "max-pixels": o.MaxPixels, "pad": o.Pad,
	}
	return out
}

// servedAs is the name under which a model is served; for a file its name without the extension.
func servedAs(name string) string {
	for _, ending := range []string{".rst", ".gguf"} {
		if id, ok := strings.CutSuffix(name, ending); ok && id != "" {
			return id
		}
	}
	return name
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

// fileFormat is the format of a model's files, by Ollama's name.
func fileFormat(name string) string {
	if strings.Contains(strings.ToLower(name), "gguf") {
		return "gguf"
	}
	return "safetensors"
}

// mostly is the type of most weights.
func mostly(kept map[string]int64) string {
	best := ""
	for name, n := range kept {
		if best == "" || n > kept[best] || n == kept[best] && name < best {
			best = name
		}
	}
	return strings.ToUpper(best)
}
