package pack

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

var update = flag.Bool("update", false, "write testdata/form*.rst if this form has none yet")

// Ensure that the file which the first program of this form wrote is read as it was meant, and that
// a file of an earlier form is refused with what to do. The file is never written again: who
// changes the form raises packVersion.
func TestForm(t *testing.T) {
	want := map[string]*tensor.Tensor{
		"f32": tensor.From([]int{2, 3}, []float32{1, -2, 0.5, 4, -8, 1e-3}),
		"f16": {DType: tensor.F16, Shape: []int{5}, Data: []byte("0123456789")},
		"q8": {
			DType: tensor.Q8, Shape: []int{3, 40}, Data: bytes.Repeat([]byte{1, 2, 3}, 70),
			Order: make([]int32, 40),
		},
	}
	for i := range want["q8"].Order {
		want["q8"].Order[i] = int32(39 - i)
	}
	path := filepath.Join("testdata", fmt.Sprintf("form%d.rst", packVersion))
	if _, err := os.Stat(path); *update && err != nil {
		writeForm(t, path, want)
	}
	p, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got := p.About(); got.Name != "tiny" ||
		*got.Packed != (checkpoint.Packed{Layout: "form", Quant: "q8", EncoderQuant: "q8"}) {
		t.Errorf("got %q, packed as %+v", got.Name, got.Packed)
	}
	if got := string(p.Docs.Config.Data); got != `{"model_type": "x"}` {
		t.Errorf("got config %q", got)
	}
	for name, w := range want {
		got, ok := p.Tensor(name)
		if !ok || got.DType != w.DType || !slices.Equal(got.Shape, w.Shape) ||
			!bytes.Equal(got.Data, w.Data) || !slices.Equal(got.Order, w.Order) {
			t.Errorf("%q is %v, want %v", name, got, w)
		}
		if _, err := p.Check(name, nil, never); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(Magic)]--
	old := filepath.Join(t.TempDir(), "old.rst")
	if err := os.WriteFile(old, data, 0o600); err != nil {
		t.Fatal(err)
	}
	refusal := fmt.Sprintf("packed in version %d of the form, want %d: pack the checkpoint again",
		packVersion-1, packVersion)
	if _, err := Open(old); err == nil || !strings.Contains(err.Error(), refusal) ||
		!strings.Contains(err.Error(), old) {
		t.Errorf("an earlier form: got %v, want %q and the file", err, refusal)
	}
}

func writeForm(t *testing.T, path string, weights map[string]*tensor.Tensor) {
	t.Helper()
	var b bytes.Buffer
	c := model(t)
	c.What.Files = nil // another machine does not have them
	w, err := NewWriter(&b, c, checkpoint.Packed{Layout: "form", Quant: "q8", EncoderQuant: "q8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"q8", "f32", "f16"} {
		if err := w.Add(name, weights[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
