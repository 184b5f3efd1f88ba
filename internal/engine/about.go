package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
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
	if e.halves(e.ck) {
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
	kind, _ := families.VideoKind(f, e.ck.Parts())
	return kind.Class, ""
}

// Settings of generation that transformers' generate applies by default and this program does not,
// each with the value that has no effect. The sampling settings have one only with do_sample.
var (
	unusedSettings = [][2]string{
		{"repetition_penalty", "1"}, {"no_repeat_ngram_size", "0"},
		{"encoder_repetition_penalty", "1"}, {"encoder_no_repeat_ngram_size", "0"},
		{"min_new_tokens", "0"}, {"min_length", "0"},
		{"exponential_decay_length_penalty", ""}, {"suppress_tokens", "[]"},
		{"begin_suppress_tokens", "[]"}, {"bad_words_ids", "[]"}, {"sequence_bias", "{}"},
		{"forced_bos_token_id", ""}, {"forced_eos_token_id", ""}, {"stop_strings", "[]"},
		{"num_beams", "1"}, {"penalty_alpha", "0"}, {"guidance_scale", "1"}, {"do_sample", "false"},
	}
	samplingSettings = [][2]string{
		{"temperature", "1"}, {"top_k", "0"}, {"top_p", "1"}, {"min_p", "0"}, {"typical_p", "1"},
		{"epsilon_cutoff", "0"}, {"eta_cutoff", "0"}, {"top_h", "1"},
	}
)

// aboutGeneration returns the settings of generation that would have an effect and are not used.
func (e *Engine) aboutGeneration() (unused []string) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(e.ck.Parts().Generation.Data, &fields) != nil { // there are none
		return nil
	}
	list := unusedSettings
	if string(fields["do_sample"]) == "true" {
		list = slices.Concat(list, samplingSettings)
	}
	for _, s := range list {
		var v any
		if json.Unmarshal(fields[s[0]], &v) != nil || v == nil {
			continue
		}
		text, err := json.Marshal(v) // 1.0 becomes 1
		if err == nil && string(text) != s[1] {
			unused = append(unused, fmt.Sprintf("%s %.80s", s[0], text))
		}
	}
	return unused
}

// Tokenizer returns the model's tokenizer, or nil if it has none.
func (e *Engine) Tokenizer() *tokenizer.Tokenizer { return e.tok }

// StandsForPicture reports whether a token marks the place of a picture or a video.
func (e *Engine) StandsForPicture(id int32) bool { return e.visualToken(id) }
