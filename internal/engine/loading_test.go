package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/golden"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// Ensure that, without generation_config.json, the top level of config.json says which ids end an
// answer, and text_config where that does not, as transformers 5.24 reads them.
func TestEnds(t *testing.T) {
	for _, name := range []string{
		"llava15-tiny", "llavanext-mistral-tiny", "llava-onevision-tiny", "qwen2vl-tiny",
		"qwen25vl-tiny", "qwen3vl-tiny", "idefics3-tiny", "internvl-tiny", "gemma3-tiny",
		"pixtral-tiny", "mistral3-tiny",
	} {
		for _, top := range []bool{true, false} {
			dir := copyDir(t, filepath.Join("testdata", name))
			_ = os.Remove(filepath.Join(dir, "generation_config.json"))
			var config map[string]any
			golden.JSON(t, filepath.Join(dir, "config.json"), &config)
			text, _ := config["text_config"].(map[string]any)
			if text == nil { // its keys are at the top
				text = config
			}
			delete(config, "eos_token_id")
			text["eos_token_id"] = 8
			if top {
				config["eos_token_id"] = []int{7, 9}
			}
			data, err := json.Marshal(config)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "config.json"), data, 0o644))
			end := open(t, dir, 1).Info().End
			for id, want := range map[int32]bool{7: top, 8: !top, 9: top} {
				if slices.Contains(end, id) != want {
					t.Errorf("%s: answers end with %v, top level %v: id %d", name, end, top, id)
				}
			}
		}
	}
}

// Ensure that texts of pictures other than those that are written, tokens in pictures that take a
// part of the text next to them, and ends of answers that are no ids are refused by name.
func TestTokensRefused(t *testing.T) {
	for _, c := range []struct{ dir, file, old, with, want string }{
		{"pixtral-tiny", "processor_config.json", `"[IMG_BREAK]"`, `"</s>"`,
			`image_break_token: got "</s>", want "[IMG_BREAK]"`},
		{"mistral3-tiny", "processor_config.json", `"[IMG_END]"`, `"</s>"`,
			`image_end_token: got "</s>", want "[IMG_END]"`},
		{"gemma3-tiny", "tokenizer_config.json", `"<start_of_image>"`, `"<bos>"`,
			`boi_token: got "<bos>", want "<start_of_image>"`},
		{"internvl-tiny", "tokenizer_config.json", `"end_image_token": "</img>"`,
			`"end_image_token": {"content": "<|im_end|>"}`,
			`end_image_token: got "<|im_end|>", want "</img>"`},
		{"smolvlm-tiny", "tokenizer_config.json", `{`, `{"fake_image_token": "x",`,
			`fake_image_token: got "x", want "<fake_token_around_image>"`},
		{"qwen2vl-tiny", "generation_config.json", `"eos_token_id": `, `"eos_token_id": {}, "x": `,
			`model: generation_config.json: "eos_token_id": got {}, want`},
		{"idefics3-tiny", "tokenizer.json", `"<image>",`, `"<image>", "rstrip": true,`,
			`tokenizer.json: token "<image>": got lstrip, rstrip or single_word`},
		{"pixtral-tiny", "tokenizer.json", `"[IMG]",`, `"[IMG]", "lstrip": true,`,
			`tokenizer.json: token "[IMG]": got lstrip, rstrip or single_word`},
	} {
		dir := copyDir(t, filepath.Join("testdata", c.dir))
		file := filepath.Join(dir, c.file)
		data, err := os.ReadFile(file)
		must(t, err)
		text := string(data)
		if c.file == "tokenizer.json" { // the last of two equal keys counts
			for _, flag := range []string{"lstrip", "rstrip", "single_word"} {
				text = strings.ReplaceAll(text, `"`+flag+`": false,`, "")
				text = strings.ReplaceAll(text, `"`+flag+`":false,`, "")
			}
		}
		changed := strings.Replace(text, c.old, c.with, 1)
		if changed == text {
			t.Fatalf("%s: %s has no %s", c.dir, c.file, c.old)
		}
		must(t, os.WriteFile(file, []byte(changed), 0o644))
		if err := load(dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one with %q", c.dir, err, c.want)
		}
	}
}

type mutation struct {
	ID         string   `json:"id"`
	Base       string   `json:"base"`
	Ops        []edit   `json:"ops"`
	Expect     string   `json:"expect"`
	ErrorNames []string `json:"error_names"`
}

type edit struct {
	Op, File, Name, To, Dtype, Field, Text string
	Shape                                  []int
	By                                     int64
	Count                                  int
	KeepBytes                              *int `json:"keep_bytes"`
	CutBytes                               int  `json:"cut_bytes"`
	Path                                   []string
	Value                                  json.RawMessage
}

// Ensure that every edit of a checkpoint that a loader must refuse returns an error of one line
// that names the cause, and that the other edits load.
func TestMutatedCheckpoints(t *testing.T) {
	var all struct{ Cases []mutation }
	golden.JSON(t, "testdata/mutations.json", &all)
	n := 0
	for _, c := range all.Cases {
		if !strings.HasPrefix(c.Base, "llava") {
			continue
		}
		n++
		t.Run(c.ID, func(t *testing.T) {
			var dir string
			if c.Base == "llava15-tiny-bf16-sharded" {
				dir = roundedModel(t, c.Base)
			} else {
				dir = copyDir(t, filepath.Join("testdata", c.Base))
			}
			for _, op := range c.Ops {
				op.apply(t, dir)
			}
			err := load(dir)
			switch {
			// any error that names the tensor is enough
			case c.Expect == "ok" && err != nil && c.ID != "duplicate-in-shards":
				t.Fatalf("refused: %v", err)
			case c.Expect == "error" && err == nil:
				t.Fatal("accepted")
			}
			if err == nil {
				return
			}
			t.Log(err)
			for _, want := range c.ErrorNames {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than one line", err)
			}
		})
	}
	if n < 50 {
		t.Errorf("%d cases, want all", n)
	}
}

func load(dir string) error {
	e, err := engine.OpenWith(formats.Files{Model: dir}, engine.Options{Threads: 1}, engine.Hooks{})
	if err != nil {
		return err
	}
	return e.Close()
}

type entry struct {
	Dtype   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

func readHeader(t *testing.T, path string) (map[string]entry, []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(raw)
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw[8:8+n], &fields); err != nil {
		t.Fatal(err)
	}
	head := map[string]entry{}
	for k, v := range fields {
		var e entry
		if k != "__metadata__" && json.Unmarshal(v, &e) == nil {
			head[k] = e
		}
	}
	return head, raw[8+n:]
}

func writeHeader(t *testing.T, path string, head map[string]any, data []byte) {
	t.Helper()
	text, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, bytes.Repeat([]byte(" "), -len(text)&7)...)
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err := os.WriteFile(path, append(append(out, text...), data...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// apply performs one operation as mutations.json defines it.
func (op edit) apply(t *testing.T, dir string) {
	t.Helper()
	file := op.File
	if file == "" {
		file = "model.safetensors"
	}
	if file == "*" {
		var index struct {
			Map map[string]string `json:"weight_map"`
		}
		raw, err := os.ReadFile(filepath.Join(dir, "model.safetensors.index.json"))
		if err == nil {
			err = json.Unmarshal(raw, &index)
		}
		if err != nil {
			t.Fatal(err)
		}
		file = index.Map[op.Name]
	}
	path := filepath.Join(dir, file)
	switch op.Op {
	case "delete_file":
		must(t, os.Remove(path))
	case "write_text":
		must(t, os.WriteFile(path, []byte(op.Text), 0o644))
	case "truncate_file", "append_bytes", "set_header_length":
		op.bytes(t, path)
	case "set_json", "delete_json":
		op.json(t, path)
	default:
		op.tensors(t, path)
	}
}

func (op edit) bytes(t *testing.T, path string) {
	raw, err := os.ReadFile(path)
	must(t, err)
	switch {
	case op.Op == "append_bytes":
		raw = append(raw, make([]byte, op.Count)...)
	case op.Op == "set_header_length":
		var n uint64
		must(t, json.Unmarshal(op.Value, &n))
		binary.LittleEndian.PutUint64(raw, n)
	case op.KeepBytes != nil:
		raw = raw[:*op.KeepBytes]
	default:
		raw = raw[:len(raw)-op.CutBytes]
	}
	must(t, os.WriteFile(path, raw, 0o644))
}

func (op edit) json(t *testing.T, path string) {
	raw, err := os.ReadFile(path)
	must(t, err)
	var root map[string]any
	must(t, json.Unmarshal(raw, &root))
	at := root
	for _, k := range op.Path[:len(op.Path)-1] {
		at = at[k].(map[string]any)
	}
	last := op.Path[len(op.Path)-1]
	if op.Op == "delete_json" {
		delete(at, last)
	} else {
		at[last] = op.Value
	}
	raw, err = json.Marshal(root)
	must(t, err)
	must(t, os.WriteFile(path, raw, 0o644))
}

// tensors edits a weight file's table and repacks the data if the operation needs it.
func (op edit) tensors(t *testing.T, path string) {
	head, data := readHeader(t, path)
	if op.Op == "set_header_field" || op.Op == "shift_offsets" {
		out := map[string]any{}
		for k, e := range head {
			fields := map[string]any{"dtype": e.Dtype, "shape": e.Shape, "data_offsets": e.Offsets}
			if k == op.Name && op.Op == "set_header_field" {
				fields[op.Field] = op.Value
			} else if k == op.Name {
				fields["data_offsets"] = [2]int64{e.Offsets[0] + op.By, e.Offsets[1] + op.By}
			}
			out[k] = fields
		}
		writeHeader(t, path, out, data)
		return
	}
	size := map[string]int{"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "F8_E4M3": 1}
	zeros := func(dtype string, shape []int) []byte {
		n := size[dtype]
		for _, d := range shape {
			n *= d
		}
		return make([]byte, n)
	}
	blobs := map[string][]byte{}
	for k, e := range head {
		blobs[k] = data[e.Offsets[0]:e.Offsets[1]]
	}
	e := head[op.Name]
	switch op.Op {
	case "drop_tensor":
		delete(head, op.Name)
	case "add_tensor":
		head[op.Name] = entry{Dtype: op.Dtype, Shape: op.Shape}
		blobs[op.Name] = zeros(op.Dtype, op.Shape)
	case "rename_tensor":
		delete(head, op.Name)
		head[op.To], blobs[op.To] = e, blobs[op.Name]
	case "reshape_tensor":
		e.Shape = op.Shape
		head[op.Name] = e
	case "resize_tensor":
		e.Shape = op.Shape
		head[op.Name], blobs[op.Name] = e, zeros(e.Dtype, op.Shape)
	case "retype_tensor":
		e.Dtype = op.Dtype
		head[op.Name], blobs[op.Name] = e, zeros(e.Dtype, e.Shape)
	case "widen_tensor":
		e.Dtype = "F32"
		var wide []byte
		for b := blobs[op.Name]; len(b) > 0; b = b[2:] {
			wide = append(wide, 0, 0, b[0], b[1])
		}
		head[op.Name], blobs[op.Name] = e, wide
	default:
		t.Fatalf("unknown operation %q", op.Op)
	}
	out := map[string]any{}
	var packed []byte
	for _, k := range slices.Sorted(maps.Keys(head)) {
		e := head[k]
		at := int64(len(packed))
		packed = append(packed, blobs[k]...)
		out[k] = entry{e.Dtype, e.Shape, [2]int64{at, int64(len(packed))}}
	}
	writeHeader(t, path, out, packed)
}

// Ensure that opening a folder that is not a model returns an error that names the folder.
func TestNotAModel(t *testing.T) {
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "absent"), "loading_test.go"} {
		err := load(dir)
		if err == nil || !strings.Contains(err.Error(), filepath.Base(dir)) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line that names it", dir, err)
		}
	}
}

// Ensure that a picture processor for another model is refused with an error that names the
// setting, even if shapes agree.
func TestProcessorDisagrees(t *testing.T) {
	for _, c := range []struct{ dir, key, value, names string }{
		{talking(t), "merge_size", "4", "merge_size: got 4"},
		{talking(t), "patch_size", "28", "pixel_values"},
		{talkingNext(t), "image_grid_pinpoints", "[[112, 56]]", "image_grid_pinpoints"},
	} {
		path := filepath.Join(c.dir, "preprocessor_config.json")
		data, err := os.ReadFile(path)
		must(t, err)
		var config map[string]json.RawMessage
		must(t, json.Unmarshal(data, &config))
		config[c.key] = json.RawMessage(c.value)
		data, err = json.Marshal(config)
		must(t, err)
		must(t, os.WriteFile(path, data, 0o644))
		pic := &imageproc.Picture{Width: 180, Height: 60, Pix: make([]byte, 180*60*3)}
		_, err = open(t, c.dir, 1).Ask(context.Background(), engine.Request{
			Prompt: "x", Images: engine.Pictures(pic), MaxTokens: 1,
		})
		if err == nil || !strings.Contains(err.Error(), c.names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s: got %v, want one line that names %q", c.key, c.value, err, c.names)
		}
	}
}
