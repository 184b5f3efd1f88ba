package main

import (
	"bytes"
	"encoding/json"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that strings come back as objects in their order, with empty lists instead of null and
// text without escapes.
func TestInspectTokens(t *testing.T) {
	in := clitest.Written(t, "strings.json", `["", "What <b>number</b> is écrit?", "a\nb"]`)
	out := filepath.Join(t.TempDir(), "out.json")
	tokenizer := clitest.Embedded(t, "tokenizer.json")
	r := commandLine("inspect", "tokens", "--tokenizer", tokenizer, "--in", in, "--out", out)
	if r.Code != cli.ExitOK || r.Out+r.Err != "" {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte("null")) || !bytes.Contains(b, []byte("<b>")) ||
		!bytes.Contains(b, []byte("é")) {
		t.Errorf("got %s", b)
	}
	var all []tokensJSON
	if err := json.Unmarshal(b, &all); err != nil || len(all) != 3 {
		t.Fatalf("got %d objects, %v", len(all), err)
	}
	if e := all[0]; len(e.IDs) != 0 || len(e.IDsWithSpecial) != 1 || len(e.Offsets) != 0 ||
		len(e.Stream) != 0 {
		t.Errorf("empty string: %+v", e)
	}
	if s := all[1]; s.DecodedSkip != "What <b>number</b> is écrit?" ||
		strings.Join(s.Stream, "")+s.StreamFlush != s.DecodedSkip ||
		len(s.Offsets) != len(s.IDs) || len(s.IDsWithSpecial) != len(s.IDs)+1 {
		t.Errorf("string 1: %+v", s)
	}
	if r := commandLine("inspect", "tokens", "--tokenizer", tokenizer, "--in",
		in); r.Out != string(b) {
		t.Errorf("without --out: stdout %q, want %q", r.Out, b)
	}
	if r := commandLine("inspect", "tokens", "--tokenizer", tokenizer, "--in",
		clitest.Written(t, "empty.json", "[]")); r.Out != "[]\n" {
		t.Errorf("no strings: stdout %q, want []", r.Out)
	}
}

// Ensure that the output is the rendered conversation and nothing else, from Jinja text and from
// each JSON form.
func TestInspectChat(t *testing.T) {
	const jinja = "{% for m in messages %}{{ m.role | upper }}: {{ m.content if m.content " +
		"is string else m.content[0].text }}{{ eos_token }}{% endfor %}" +
		"{% if add_generation_prompt %}ASSISTANT:{% endif %}"
	quoted, err := json.Marshal(jinja)
	if err != nil {
		t.Fatal(err)
	}
	in := clitest.Written(t, "messages.json", `[{"role": "user", "content": "a {{ b }} </s>"}]`)
	special := clitest.Written(t, "special.json",
		`{"eos_token": {"content": "</s>", "lstrip": false}, "bos_token": "<s>", "additional_special_tokens": ["x"]}`)
	const want = "USER: a {{ b }} </s></s>ASSISTANT:"
	for name, file := range map[string]string{
		"text":   clitest.Written(t, "chat_template.jinja", jinja),
		"object": clitest.Written(t, "chat_template.json", `{"chat_template": `+string(quoted)+`}`),
		"list":   clitest.Written(t, "tokenizer_config.json", `{"chat_template": [{"name": "other", "template": "no"}, {"name": "default", "template": `+string(quoted)+`}]}`),
	} {
		r := commandLine("inspect", "chat", "--template", file, "--in", in,
			"--add-generation-prompt",
			"--special-tokens", special)
		if r.Code != cli.ExitOK || r.Out != want || r.Err != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want %q", name, r.Code, r.Out, r.Err, want)
		}
	}
	file := clitest.Written(t, "t.jinja", jinja)
	r := commandLine("inspect", "chat", "--template", file, "--in", in, "--add-generation-prompt",
		"--continue-final-message")
	if r.Code == cli.ExitOK || r.Out != "" || strings.Count(r.Err, "\n") > 2 {
		t.Errorf("both ends: exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	if r := commandLine("inspect", "chat", "--template", file, "--in",
		clitest.Written(t, "none.json", "[]")); r.Code != cli.ExitFailure || r.Out != "" {
		t.Errorf("no messages: exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
}

// Ensure that a picture is prepared, and that padding keeps the parts that cropping would cut off.
func TestInspectImage(t *testing.T) {
	wide := image.NewGray(image.Rect(0, 0, 80, 20))
	for i := range wide.Pix {
		wide.Pix[i] = 255
	}
	file := filepath.Join(t.TempDir(), "wide.png")
	clitest.Filled(t, file, func(w io.Writer) error { return png.Encode(w, wide) })
	processor := clitest.Embedded(t, "preprocessor_config.json")
	read := func(flags ...string) ([]float32, []int, []int64) {
		t.Helper()
		out := filepath.Join(t.TempDir(), "px.safetensors")
		r := commandLine(
			append(
				[]string{
					"inspect", "image", "--processor", processor, "--image", file, "--out", out,
				}, flags...)...)
		if r.Code != cli.ExitOK || r.Out+r.Err != "" {
			t.Fatalf("%v: exit %d, stdout %q, stderr %q", flags, r.Code, r.Out, r.Err)
		}
		f, err := checkpoint.OpenSafetensors(out)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		px, err := f.Tensors["pixel_values"].Float32s()
		if err != nil {
			t.Fatal(err)
		}
		sizes, err := f.Tensors["image_sizes"].Int64s()
		if err != nil {
			t.Fatal(err)
		}
		return px, f.Tensors["pixel_values"].Shape, sizes
	}
	cropped, shape, sizes := read()
	if !slices.Equal(shape, []int{3, 336, 336}) || !slices.Equal(sizes, []int64{20, 80}) ||
		slices.Min(cropped[:336*336]) != cropped[0] {
		t.Errorf("shape %v, sizes %v", shape, sizes)
	}
	padded, _, _ := read("--pad")
	if top, middle := padded[0], padded[168*336+168]; top >= middle || middle != cropped[0] {
		t.Errorf("padded: top %v, middle %v, want the background above and %v", top, middle,
			cropped[0])
	}
}

// Ensure that the given pixel limits apply to pictures of any size, that the grid of patches is
// written, and that limits without effect are refused.
func TestInspectImageLimits(t *testing.T) {
	file, out := clitest.Drawn(t, 3), filepath.Join(t.TempDir(), "px.safetensors")
	qwen := clitest.Written(t, "preprocessor_config.json",
		`{"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056}`)
	for flags, want := range map[string][]int64{
		"": {1, 24, 24}, "--max-pixels=50176": {1, 16, 16}, "--min-pixels=200704": {1, 32, 32},
	} {
		args := []string{"inspect", "image", "--processor", qwen, "--image", file, "--out", out}
		if flags != "" {
			args = append(args, flags)
		}
		if r := commandLine(args...); r.Code != cli.ExitOK {
			t.Fatalf("%s: %s", flags, r.Err)
		}
		f, err := checkpoint.OpenSafetensors(out)
		if err != nil {
			t.Fatal(err)
		}
		grid, err := f.Tensors["image_grid_thw"].Int64s()
		if err != nil || !slices.Equal(grid, want) {
			t.Errorf("%s: grid %v, %v, want %v", flags, grid, err, want)
		}
		if shape := f.Tensors["pixel_values"].Shape; shape[0] != int(want[1]*want[2]) ||
			shape[1] != 1176 {
			t.Errorf("%s: shape %v", flags, shape)
		}
		f.Close()
	}
	for _, c := range []struct {
		args  []string
		code  int
		names string
	}{
		{[]string{"inspect", "image", "--processor", clitest.Embedded(t, "preprocessor_config.json"), "--max-pixels", "5000"}, cli.ExitUsage, "--max-pixels: got 5000, which has no effect"},
		{[]string{"inspect", "image", "--processor", qwen, "--min-pixels", "0"}, cli.ExitUsage, "--min-pixels"},
		{[]string{"inspect", "image", "--processor", qwen, "--min-pixels", "9", "--max-pixels", "8"}, cli.ExitUsage, "--min-pixels"},
		{[]string{"trace", "-p", "x", "--max-pixels", "5000"}, cli.ExitUsage, "--max-pixels: got 5000, which has no effect"},
		{[]string{"trace", "--in", file, "--max-pixels", "5000"}, cli.ExitUsage, "--max-pixels"},
	} {
		if c.args[0] == "inspect" {
			c.args = append(c.args, "--image", file)
		}
		if r := commandLine(append(c.args, "--out", out)...); r.Code != c.code ||
			!strings.Contains(r.Err, c.names) {
			t.Errorf("%v: exit %d, stderr %q, want %d and %q", c.args, r.Code, r.Err, c.code,
				c.names)
		}
	}
}

// Ensure that features from a file are reduced, that both names of the kept tokens occur, and that
// the grid is required where it is needed.
func TestReduce(t *testing.T) {
	const n, c = 15, 4
	x, attn := make([]float32, n*c), make([]float32, n+1)
	for i := range x {
		x[i] = float32((i*7)%13) - 6
	}
	for i := range attn {
		attn[i] = float32((i*5)%16+1) / 136
	}
	in := filepath.Join(t.TempDir(), "in.safetensors")
	tensors := map[string]*tensor.Tensor{
		"X": tensor.From([]int{n, c}, x), "cls_attn": tensor.From([]int{1, n + 1}, attn),
		"unused": tensor.From([]int{1}, []int64{1})}
	f, err := os.Create(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.WriteSafetensors(f, tensors, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out.safetensors")
	for name, c := range map[string]struct {
		args []string
		has  string
	}{
		"restore":        {[]string{"--base", "divprune", "--n-vis", "6"}, "retained"},
		"plain":          {[]string{"--base", "divprune", "--n-vis", "6", "--restore=false"}, "kept"},
		"ratio":          {[]string{"--base", "random", "--keep-ratio", "0.4", "--seed", "3"}, "retained"},
		"grid of 3 by 5": {[]string{"--base", "pool", "--n-vis", "6", "--grid", "3x5"}, "retained"},
	} {
		r := commandLine(append([]string{"reduce", "--in", in, "--out", out}, c.args...)...)
		if r.Code != cli.ExitOK || r.Out != "" || !strings.Contains(r.Err, "15 -> ") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, r.Code, r.Out, r.Err)
			continue
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		got, err := checkpoint.ReadSafetensors(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{c.has, "group", "size", "position", "feat"} {
			if got[want] == nil {
				t.Errorf("%s: lacks %s", name, want)
			}
		}
		if !slices.Equal(got["feat"].Shape, []int{6, 4}) ||
			!slices.Equal(got["group"].Shape, []int{n}) {
			t.Errorf("%s: feat %v, group %v", name, got["feat"].Shape, got["group"].Shape)
		}
	}
	for name, c := range map[string]struct {
		args  []string
		want  string
		code  int
		lines int
	}{
		"grid unknown":  {[]string{"--base", "pool", "--n-vis", "6"}, "grid", cli.ExitFailure, 1},
		"grid wrong":    {[]string{"--base", "pool", "--n-vis", "6", "--grid", "4x4"}, "4x4", cli.ExitFailure, 1},
		"needs more":    {[]string{"--base", "visionzip", "--n-vis", "6", "--restore=false"}, "hidden", cli.ExitFailure, 1},
		"above N":       {[]string{"--base", "divprune", "--n-vis", "16"}, "15", cli.ExitUsage, 2},
		"ratio of none": {[]string{"--base", "divprune", "--keep-ratio", "0.01"}, "more than 0.03333", cli.ExitUsage, 2},
		"merges":        {[]string{"--base", "divprune", "--n-vis", "6", "--newlines", "keep"}, "--newlines: got keep, which has no effect", cli.ExitUsage, 2},
	} {
		if r := commandLine(append([]string{"reduce", "--in", in, "--out", out},
			c.args...)...); r.Code != c.code || !strings.Contains(r.Err, c.want) ||
			strings.Count(r.Err, "\n") != c.lines {
			t.Errorf("%s: exit %d, stderr %q, want %q", name, r.Code, r.Err, c.want)
		}
	}
}
