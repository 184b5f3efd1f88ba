package engine

import (
	"os"
	"time"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// About is what servers say of a model in addition to Info.
type About struct {
	Format     string    // of the files, for people
	Modified   time.Time // the newest of the files; zero of a model in memory
	Digest     Key       // of documents and weights, as checkpoint.Digest has it
	Template   string    // text of the chat template; "" where the model has none
	KVPerToken int64     // bytes of keys and values of a row in all layers
	Parallel   int       // sequences that run at once
	CacheType  string    // in which keys and values are kept
}

// About describes the model.
func (e *Engine) About() About {
	files := e.ck.About()
	a := About{
		Format: files.Format, Template: string(e.ck.Parts().Template.Data),
		Digest: checkpoint.Digest(e.ck), CacheType: "f32",
	}
	for _, f := range files.Files {
		if info, err := os.Stat(f); err == nil && info.ModTime().After(a.Modified) {
			a.Modified = info.ModTime()
		}
	}
	width := int64(4)
	if e.half {
		a.CacheType, width = "f16", 2
	}
	a.KVPerToken = 2 * width * int64(e.shape.Layers*e.shape.KVHeads*e.shape.HeadDim)
	if e.device != nil {
		a.Parallel = e.device.parallel
	}
	return a
}

// Tokenizer returns the model's tokenizer, nil where it has none.
func (e *Engine) Tokenizer() *tokenizer.Tokenizer { return e.tok }

// StandsForPicture reports whether a token is the place of a picture or a video.
func (e *Engine) StandsForPicture(id int32) bool { return e.visualToken(id) }
