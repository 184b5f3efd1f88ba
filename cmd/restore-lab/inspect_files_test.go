package main

import (
	"bytes"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that numbers of every type are written as float32, 64-bit ones rounded, and that files
// without tensors are refused in one line.
func TestInspectTensors(t *testing.T) {
	var b bytes.Buffer
	in := map[string]*tensor.Tensor{
		"f32": tensor.From([]int{2},
			[]float32{1.5, -2}), "i64": tensor.From([]int{2}, []int64{1<<24 + 1, -3}),
		"bool": {
			DType: tensor.Bool,
			Shape: []int{3},
			Data:  []byte{1, 0, 1},
		}, "f16": {DType: tensor.F16, Shape: []int{}, Data: []byte{0, 0x3c}},
		"f8": {
			DType: tensor.F8,
			Shape: []int{3},
			Data:  []byte{0x38, 0x01, 0xfe},
		}, "none": {DType: tensor.F64, Shape: []int{0, 3}},
		"f8_e5m2": {DType: tensor.F8E5M2, Shape: []int{2}, Data: []byte{0x3c, 0x7b}},
	}
	if err := checkpoint.WriteSafetensors(&b, in, nil); err != nil {
		t.Fatal(err)
	}
	file, out := clitest.Written(t, "in.safetensors",
		b.String()), filepath.Join(t.TempDir(), "out.safetensors")
	if r := commandLine("inspect", "tensors", file, "--out", out); r.Code != cli.ExitOK ||
		r.Out+r.Err != "" {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	got := clitest.Floats(t, out)
	want := map[string][]float32{
		"f32":     {1.5, -2},
		"i64":     {1 << 24, -3},
		"bool":    {1, 0, 1},
		"f16":     {1},
		"f8":      {1, 0x1p-9, -448},
		"none":    {},
		"f8_e5m2": {1, 57344},
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
	for name, content := range map[string]string{
		"empty.bin": "", "text": "hello, world, this is a text", "zip.bin": "PK\x03\x04", "pickle.bin": "\x80\x02cos\nsystem\n", "cut.safetensors": b.String()[:90],
	} {
		r := commandLine("inspect", "tensors", clitest.Written(t, name, content), "--out", out)
		if r.Code != cli.ExitFailure || r.Out != "" || strings.Count(r.Err, "\n") != 1 ||
			!strings.Contains(r.Err, name) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, r.Code, r.Out, r.Err)
		}
	}
	if r := commandLine("inspect", "tensors", "--out", out); r.Code != cli.ExitUsage {
		t.Errorf("no file: exit %d", r.Code)
	}
}

// Ensure that the written weights of a packed file are the values that it computes with.
func TestInspectWeights(t *testing.T) {
	dir := t.TempDir()
	stored, packed, out := filepath.Join(dir,
		"stored"), filepath.Join(dir, "model.rst"), filepath.Join(dir, "packed")
	for _, args := range [][]string{
		{"inspect", "weights", "--out", stored}, {"pack", "--quant", "q8", "--encoder-quant", "bf16", "-o", packed}, {"inspect", "weights", "-m", packed, "--out", out},
	} {
		if r := commandLine(args...); r.Code != cli.ExitOK || r.Err != "" {
			t.Fatalf("%v: exit %d, stderr %q", args, r.Code, r.Err)
		}
	}
	a, b := clitest.Floats(t, stored), clitest.Floats(t, out)
	if len(a) < 100 || len(a) != len(b) {
		t.Fatalf("got %d tensors, packed %d", len(a), len(b))
	}
	exact := 0
	for name, v := range a {
		w := b[name]
		if len(w) != len(v) {
			t.Fatalf("%q: %d values, want %d", name, len(w), len(v))
		}
		most := 0.0
		for i := range v {
			most = max(most, math.Abs(float64(v[i])))
		}
		for i := range v {
			// half a step of q8, plus half a step of bfloat16
			if d := math.Abs(float64(v[i] - w[i])); !(d <= most/127) {
				t.Fatalf("%q: %v at %d, want %v", name, w[i], i, v[i])
			}
		}
		if slices.Equal(v, w) {
			exact++
		}
	}
	if exact == len(a) {
		t.Error("nothing was rounded")
	}
	empty, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	if r := commandLine("inspect", "weights", "-m", empty, "--out",
		other); r.Code != cli.ExitFailure ||
		strings.Count(r.Err, "\n") != 1 {
		t.Errorf("no model: exit %d, stderr %q", r.Code, r.Err)
	}
	if r := commandLine("inspect", "weights", "--mmproj", empty, "--out",
		other); r.Code == cli.ExitOK ||
		!strings.Contains(r.Err, "no effect") {
		t.Errorf("a tower for a model that has one: exit %d, stderr %q", r.Code, r.Err)
	}
}
