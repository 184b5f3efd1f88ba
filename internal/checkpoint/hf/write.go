package hf

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// maxShard is about how many bytes of weights one file holds, as in transformers.
var maxShard int64 = 5_000_000_000

// types are the types that Write can write, with transformers' names.
var types = map[tensor.DType]string{
	tensor.F32:  "float32",
	tensor.F16:  "float16",
	tensor.BF16: "bfloat16",
}

// Main returns the most frequent type among b's weight values; quantised ones count as F16.
func Main(b checkpoint.Bundle) tensor.DType {
	count := map[tensor.DType]int{}
	for _, name := range b.Names() {
		w, _ := b.Tensor(name)
		d := w.DType
		if _, ok := types[d]; !ok || w.Data == nil {
			d = tensor.F16
		}
		count[d] += w.Len()
	}
	best := tensor.F32
	for _, d := range []tensor.DType{tensor.F16, tensor.BF16} {
		if count[d] > count[best] {
			best = d
		}
	}
	return best
}

// Write writes b, a model of that family, as a folder that transformers loads, with all weights as
// d, which is F32, F16 or BF16, under the names of the hub's repositories. dir must exist and be
// empty. A model without a picture token gets one at the end of the vocabulary, with the mean of
// the other rows as its rows. Write calls stopped now and then; an error ends it.
func Write(
	dir string, b checkpoint.Bundle, family *checkpoint.Family, d tensor.DType,
	stopped func() error,
) error {
	if err := checkpoint.CheckNow(b); err != nil {
		return err
	}
	if _, ok := types[d]; !ok {
		return fmt.Errorf("checkpoint: write: type: got %v, want F32, F16 or BF16", d)
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(b.Parts().Config.Data, &config); err != nil {
		return fmt.Errorf("checkpoint: write: %s: %w", b.Parts().Config.From, err)
	}
	w := writer{dir: dir, b: b, d: d, config: config, stopped: stopped, added: map[string]int{}}
	steps := []func() error{w.writeConfig, w.writeTokenizer, w.writeDocuments}
	if w.export = family.Export; w.export != nil {
		steps = append([]func() error{w.pictureToken, w.unread, w.writeProcessor}, steps...)
	}
	steps = append(steps, func() error { return w.writeWeights(family.Forms[0].Named(w.b)) })
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("checkpoint: write: %w", err)
		}
	}
	return nil
}

// writer writes one folder.
type writer struct {
	dir     string
	b       checkpoint.Bundle
	d       tensor.DType
	export  *checkpoint.Export
	config  map[string]json.RawMessage
	stopped func() error
	added   map[string]int // tokens that the vocabulary did not have, by text
}

// file writes one document.
func (w *writer) file(name string, data []byte) error {
	return os.WriteFile(filepath.Join(w.dir, name), data, 0o644)
}

// object writes a JSON object.
func (w *writer) object(name string, v any) error {
	b, err := files.JSON(v, "  ")
	if err != nil {
		return err
	}
	return w.file(name, b)
}

// pictureToken adds a picture token to a vocabulary without one.
func (w *writer) pictureToken() error {
	const key = "image_token_index"
	var id int
	if raw := w.config[key]; raw == nil || json.Unmarshal(raw, &id) != nil || id >= 0 {
		return nil
	}
	tables := w.export.Vocabulary
	embed, ok := w.b.Tensor(tables[0])
	if !ok || len(embed.Shape) != 2 {
		return fmt.Errorf("%s: missing", tables[0])
	}
	id = embed.Shape[0]
	w.added[cmp.Or(w.export.Named["image_token"], "<image>")] = id
	var text map[string]json.RawMessage
	if err := json.Unmarshal(w.config["text_config"], &text); err != nil {
		return fmt.Errorf("text_config: %w", err)
	}
	text["vocab_size"] = fmt.Append(nil, id+1)
	w.config[key] = fmt.Append(nil, id)
	var err error
	if w.config["text_config"], err = json.Marshal(text); err != nil {
		return err
	}
	more := map[string]*checkpoint.Weight{}
	for _, name := range tables {
		if t, ok := w.b.Tensor(name); ok {
			if more[name], err = withMean(t); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
		}
	}
	w.set(more)
	return nil
}

// unread adds the weights that the model does not use.
func (w *writer) unread() error {
	if w.export.Unread != nil {
		w.set(w.export.Unread(w.b))
	}
	return nil
}

// set replaces or adds weights of the model.
func (w *writer) set(more map[string]*checkpoint.Weight) {
	if len(more) == 0 {
		return
	}
	grown := new(checkpoint.Form).Named(w.b)
	maps.Copy(grown.Weights, more)
	grown.Seal()
	w.b = grown
}

// withMean returns t [rows, width] with one more row, the mean of the others.
func withMean(t *checkpoint.Weight) (*checkpoint.Weight, error) {
	rows, width := t.Shape[0], t.Shape[1]
	row, sum := make([]float32, width), make([]float64, width)
	for r := range rows {
		if err := t.Floats(row, r*width); err != nil {
			return nil, err
		}
		for i, x := range row {
			sum[i] += float64(x)
		}
	}
	for i := range sum {
		row[i] = float32(sum[i] / float64(rows))
	}
	out := &checkpoint.Weight{
		Tensor: tensor.Tensor{DType: tensor.F32, Shape: []int{rows + 1, width}},
	}
	out.Read = func(dst []float32, at int) error {
		n := max(0, min(len(dst), rows*width-at))
		if n > 0 {
			if err := t.Floats(dst[:n], at); err != nil {
				return err
			}
		}
		if n < len(dst) {
			copy(dst[n:], row[at+n-rows*width:])
		}
		return nil
	}
	return out, nil
}

func (w *writer) writeConfig() error {
	delete(w.config, "dtype")
	w.config["torch_dtype"] = fmt.Appendf(nil, "%q", types[w.d])
	return w.object(folder.ConfigFile, w.config)
}

// writeTokenizer writes the tokenizer and its settings, with the added tokens.
func (w *writer) writeTokenizer() error {
	p := w.b.Parts()
	settings := map[string]json.RawMessage{}
	for _, part := range []*checkpoint.Part{&p.Specials, &p.Settings} {
		if part.Data == nil {
			continue
		}
		if err := checkpoint.CheckObject(part.Data); err != nil {
			return fmt.Errorf("%s: %w", part.From, err)
		}
		if err := json.Unmarshal(part.Data, &settings); err != nil {
			return fmt.Errorf("%s: %w", part.From, err)
		}
	}
	if p.Tokenizer.Data == nil {
		return nil
	}
	tokens := map[string]json.RawMessage{}
	if raw := settings["added_tokens_decoder"]; raw != nil && string(raw) != "null" {
		if err := json.Unmarshal(raw, &tokens); err != nil {
			return fmt.Errorf("added_tokens_decoder: %w", err)
		}
	}
	for text, id := range w.added {
		tokens[fmt.Sprint(id)], _ = json.Marshal(checkpoint.AddedToken(text, true))
	}
	if len(tokens) > 0 {
		settings["added_tokens_decoder"], _ = json.Marshal(tokens)
	}
	if p.Template.Data != nil {
		settings["chat_template"], _ = json.Marshal(string(p.Template.Data))
	}
	if named := "extra_special_tokens"; w.export != nil && w.export.Named != nil &&
		settings[named] == nil {
		settings[named], _ = json.Marshal(w.export.Named)
	}
	class := `"PreTrainedTokenizerFast"`
	name, data := "tokenizer.json", p.Tokenizer.Data
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		name, class = "tokenizer.model", `"LlamaTokenizer"`
		if len(w.added) > 0 {
			// LLaVA's code encodes the text after a picture separately, with a space in front.
			settings["legacy"] = json.RawMessage("true")
		}
	} else if len(w.added) > 0 {
		var err error
		if data, err = w.addTo(data); err != nil {
			return fmt.Errorf("%s: %w", p.Tokenizer.From, err)
		}
	}
	if settings["tokenizer_class"] == nil {
		settings["tokenizer_class"] = json.RawMessage(class)
	}
	text, err := files.JSON(settings, "  ")
	if err == nil && name == "tokenizer.model" {
		err = w.convertModel(data, text)
	}
	return errors.Join(err, w.file(name, data), w.file("tokenizer_config.json", text))
}

// convertModel also writes a tokenizer.model as a tokenizer.json, if possible. Otherwise
// transformers 5 converts it itself and loses the space in front.
func (w *writer) convertModel(model, settings []byte) error {
	data, ok, err := tokenizer.ConvertModel(model, settings)
	if err != nil || !ok {
		return err
	}
	return w.file("tokenizer.json", data)
}

// addTo adds the added tokens to a tokenizer.json.
func (w *writer) addTo(data []byte) ([]byte, error) {
	var file map[string]json.RawMessage
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	var list []json.RawMessage
	if raw := file["added_tokens"]; raw != nil {
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, err
		}
	}
	for text, id := range w.added {
		token := checkpoint.AddedToken(text, true)
		token["id"] = id
		raw, err := files.JSON(token, "  ")
		if err != nil {
			return nil, err
		}
		list = append(list, raw)
	}
	var err error
	if file["added_tokens"], err = files.JSON(list, "  "); err != nil {
		return nil, err
	}
	return files.JSON(file, "  ")
}

func (w *writer) writeDocuments() error {
	p := w.b.Parts()
	var failed []error
	for name, part := range map[string]*checkpoint.Part{
		"preprocessor_config.json":       &p.Processor,
		"video_preprocessor_config.json": &p.Video, "generation_config.json": &p.Generation,
		"fitprune.json": &p.Recipe, "budget.json": &p.Budgets,
		"special_tokens_map.json": &p.Specials,
	} {
		if part.Data != nil {
			failed = append(failed, w.file(name, part.Data))
		}
	}
	if p.Template.Data != nil {
		failed = append(failed, w.object("chat_template.json",
			map[string]string{"chat_template": string(p.Template.Data)}))
	}
	return errors.Join(failed...)
}

// writeProcessor writes the additional settings of the family's processor.
func (w *writer) writeProcessor() error {
	if w.b.Parts().Processor.Data == nil {
		return nil
	}
	settings, err := w.export.Processor(w.config)
	if err != nil {
		return err
	}
	return w.object("processor_config.json", settings)
}

// writeWeights writes b's weights to one file, or to shards with their index.
func (w *writer) writeWeights(b checkpoint.Bundle) error {
	var shards [][]string
	size, total := int64(0), int64(0)
	for _, name := range b.Names() {
		t, _ := b.Tensor(name)
		n := int64(t.Len() * w.d.Size())
		if len(shards) == 0 || size > 0 && size+n > maxShard {
			shards, size = append(shards, nil), 0
		}
		shards[len(shards)-1] = append(shards[len(shards)-1], name)
		size, total = size+n, total+n
	}
	index := map[string]string{}
	for i, names := range shards {
		file := "model.safetensors"
		if len(shards) > 1 {
			file = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		}
		for _, name := range names {
			index[name] = file
		}
		if err := w.shard(file, b, names); err != nil {
			return err
		}
	}
	if len(shards) < 2 {
		return nil
	}
	return w.object("model.safetensors.index.json", map[string]any{
		"metadata": map[string]int64{"total_size": total}, "weight_map": index,
	})
}

func (w *writer) shard(file string, b checkpoint.Bundle, names []string) (err error) {
	f, err := os.Create(filepath.Join(w.dir, file))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := &guarded{f, w.stopped}
	if err := checkpoint.Dump(out, b, names, w.d, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	return f.Sync()
}

// guarded is a writer that stops when stopped returns an error.
type guarded struct {
	to      io.Writer
	stopped func() error
}

func (g *guarded) Write(b []byte) (int, error) {
	if err := g.stopped(); err != nil {
		return 0, err
	}
	return g.to.Write(b)
}
