package engine

import (
	"os"
	"time"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// About adds to Info what servers report about a model.
type About struct {
	Family     string    // model_type of its config.json
	Format     string    // the format of the files, for people
	Modified   time.Time // modification time of the newest file; zero for a model in memory
	Digest     Key       // of documents and weights; see checkpoint.Digest
	Template   string    // text of the chat template; "" if the model has none
	KVPerToken int64     // bytes of keys and values that one row takes in all layers
	Parallel   int       // most sequences that run at once
	CacheType  string    // type of the stored keys and values
	// Types of weights, as in Options; "stored" as in the files, "" without an encoder.
	Quant, EncoderQuant string
}

// About describes the model.
func (e *Engine) About() About {
	files := e.ck.About()
	a := About{
		Format: files.Format, Template: string(e.ck.Parts().Template.Data),
		Digest: checkpoint.Digest(e.ck), CacheType: "f32",
	}
	if f, err := families.Of(files.Name, e.ck.Config()); err == nil {
		a.Family = f.Name
	}
	for _, f := range files.Files {
		if info, err := os.Stat(f); err == nil && info.ModTime().After(a.Modified) {
			a.Modified = info.ModTime()
		}
	}
	a.Quant = e.ck.Plan.Decoder
	if files.Packed != nil {
		a.Quant = files.Packed.Quant
	}
	if a.Quant == "" {
		a.Quant = model.Stored
	}
	a.EncoderQuant, _ = e.ck.Encoder()
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

// aboutVideos returns the class of the video processor, or why settings of videos are refused.
func (e *Engine) aboutVideos() (class, refused string) {
	if e.noVideos != nil {
		return "", e.noVideos.Error()
	}
	f, err := families.Of(e.ck.Name, e.ck.Config())
	if err != nil || e.videos() == nil {
		return "", ""
	}
	return f.Video.Class, ""
}

// Tokenizer returns the model's tokenizer, or nil if it has none.
func (e *Engine) Tokenizer() *tokenizer.Tokenizer { return e.tok }

// StandsForPicture reports whether a token marks the place of a picture or a video.
func (e *Engine) StandsForPicture(id int32) bool { return e.visualToken(id) }
