package engine_test

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint/pack"
	"github.com/restore-vlm/restore/internal/formats"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/tensor"
)

// packed packs ck and opens the file.
func packed(t *testing.T, ck checkpoint.Bundle, o engine.Options) (path string) {
	t.Helper()
	var b bytes.Buffer
	must(t, engine.Pack(ck, o, &b))
	path = filepath.Join(t.TempDir(), "model.rst")
	must(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// Ensure that a packed file gives the same logits as its directory with the same plan, takes the
// same memory, and can be packed again.
func TestPacked(t *testing.T) {
	for _, c := range []struct{ name, input string }{
		{"llava15-tiny", "one-image"}, {"llava15-gqa-full-tiny", "two-images"}, {"qwen25vl-tiny", ""}, {"qwen2vl-tiny", ""},
	} {
		dir := filepath.Join("testdata", c.name)
		for _, o := range []engine.Options{
			{Threads: 2}, {Threads: 2, Quant: "q4", EncoderQuant: "q8"}, {Threads: 2, EncoderQuant: "q12"}, {Threads: 2, Quant: "bf16", EncoderQuant: "f16"},
		} {
			ck, err := formats.Open(dir)
			must(t, err)
			path := packed(t, ck, o)
			want := openWith(t, dir, o, engine.Hooks{})
			got := open(t, path, 1)
			gi, wi := got.Info(), want.Info()
			if gi.Resident != wi.Resident || gi.Params != wi.Params ||
				gi.Architecture != wi.Architecture || gi.Name != c.name {
				t.Errorf("%s %q: %+v, want %+v", c.name, o.Quant, gi, wi)
			}
			must(t, ck.Close())
			again, err := formats.Open(path)
			must(t, err)
			twice, err := os.ReadFile(packed(t, again, engine.Options{}))
			must(t, err)
			must(t, again.Close())
			if once, err := os.ReadFile(path); err != nil || len(once) < len(twice) {
				t.Errorf("%s %q: %d bytes, packed again %d (%v)", c.name, o.Quant, len(once),
					len(twice), err)
			}
			if c.input == "" {
				continue
			}
			ref := golden.Read(t, filepath.Join(dir, c.input+".ref"))
			if !slices.Equal(logits(t, got, ref), logits(t, want, ref)) {
				t.Errorf("%s %q: other logits than the directory's", c.name, o.Quant)
			}
		}
	}
}

// ordered is a bundle whose decoder has weights in blocks of columns that are not adjacent.
type ordered struct {
	checkpoint.Bundle
	weights map[string]*checkpoint.Weight
}

// Tensor implements checkpoint.Bundle.
func (o *ordered) Tensor(name string) (*checkpoint.Weight, bool) {
	if w := o.weights[name]; w != nil {
		return w, true
	}
	return o.Bundle.Tensor(name)
}

// inOrder returns dir's bundle with the decoder's square and wide weights in Q8, each with its own
// order of columns.
func inOrder(t *testing.T, dir string) *ordered {
	t.Helper()
	ck, err := formats.Open(dir)
	must(t, err)
	o := &ordered{ck, map[string]*checkpoint.Weight{}}
	for seed, name := range ck.Names() {
		w, _ := ck.Tensor(name)
		if !strings.Contains(name, "language_model.model.layers.") || len(w.Shape) != 2 ||
			w.Shape[1]%32 != 0 {
			continue
		}
		v, err := w.Float32s()
		must(t, err)
		in := w.Shape[1]
		order := make([]int32, in)
		for i, at := range rand.New(rand.NewPCG(1, uint64(seed))).Perm(in) {
			order[i] = int32(at)
		}
		const scale = 0x1p-8
		number := func(row, col int) int {
			return int(max(-127, min(127, math.Round(float64(v[row*in+col])/scale))))
		}
		o.weights[name] = &checkpoint.Weight{
			Tensor: tensor.Tensor{DType: tensor.Q8, Shape: w.Shape, Order: order},
			Raw:    [][]byte{w.Data},
			Read: func(dst []float32, at int) error {
				for i := range dst {
					dst[i] = float32(number((at+i)/in, (at+i)%in)) * scale
				}
				return nil
			},
			Blocks: func(scales, _ []float32, q []uint8, row int) error {
				for i := range scales {
					scales[i] = scale
				}
				for i, col := range order {
					q[i] = uint8(number(row, int(col)) + 128)
				}
				return nil
			},
		}
	}
	if len(o.weights) < 8 {
		t.Fatalf("%d weights in order, want 8 or more", len(o.weights))
	}
	return o
}

// Ensure that weights in blocks of columns that are not adjacent give the result of their values,
// up to the rounding of activations to 8 bits, and the same from a packed file. The bound is twice
// the measured error.
func TestOrdered(t *testing.T) {
	const dir = "testdata/llava15-tiny"
	ref := golden.Read(t, filepath.Join(dir, "one-image.ref"))
	open := func(o engine.Options) *engine.Engine {
		ck := inOrder(t, dir)
		e, err := engine.New(ck, o, engine.Hooks{})
		must(t, err)
		t.Cleanup(func() { e.Close() })
		return e
	}
	e := open(engine.Options{Threads: 2})
	got, want := logits(t, e, ref), logits(t, open(engine.Options{Threads: 2, Quant: "f32"}), ref)
	var sum, square float64
	for i, x := range want {
		sum += float64(got[i]-x) * float64(got[i]-x)
		square += float64(x) * float64(x)
	}
	if err := math.Sqrt(sum / square); !(err <= 0.04) || err == 0 {
		t.Errorf("error of the logits %.3g, want at most 0.04 of their root mean square", err)
	} else {
		t.Logf("error of the logits %.3g of their root mean square", err)
	}
	path := packed(t, inOrder(t, dir), engine.Options{Threads: 2})
	again := openWith(t, path, engine.Options{Threads: 1}, engine.Hooks{})
	if !slices.Equal(logits(t, again, ref), got) {
		t.Error("packed: other logits")
	}
	if a, b := again.Info().Resident, e.Info().Resident; a != b {
		t.Errorf("packed: %d bytes in memory, want %d", a, b)
	}
}

// Ensure that a packed file opens only with the types it was packed with, that weights are checked,
// and that Pack returns an error for weights that it cannot convert.
func TestPackedErrors(t *testing.T) {
	ck, err := formats.Open("testdata/llava15-tiny")
	must(t, err)
	defer ck.Close()
	path := packed(t, ck, engine.Options{Quant: "q4"})
	opened := func(path string, o engine.Options) error {
		ck, err := formats.Open(path)
		if err != nil {
			return err
		}
		e, err := engine.New(ck, o, engine.Hooks{})
		if err != nil {
			ck.Close()
			return err
		}
		return e.Close()
	}
	must(t, opened(path, engine.Options{Quant: "q4"}))
	for _, c := range []struct {
		o    engine.Options
		want string
	}{
		{engine.Options{Quant: "q8"}, `quant: got q8, want none or the packed type of llava15-tiny, q4`},
		{engine.Options{EncoderQuant: "f16"}, `encoder-quant: got f16, want none or the packed type of llava15-tiny, as stored`},
	} {
		if err := opened(path, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	b, err := os.ReadFile(path)
	must(t, err)
	b[len(b)/2] ^= 1
	must(t, os.WriteFile(path, b, 0o600))
	bad, err := formats.Open(path)
	must(t, err)
	defer bad.Close()
	described, err := engine.New(bad, engine.Options{}, engine.Hooks{Describe: true})
	must(t, err)
	defer described.Close()
	read := int64(0)
	if err := described.Verify(func(done, _ int64) { read = done }); err == nil ||
		!strings.Contains(err.Error(), "damaged") || read == 0 {
		t.Errorf("a changed weight: %v after %d bytes", err, read)
	}
	if err := engine.Pack(bad, engine.Options{}, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "damaged") {
		t.Errorf("a changed weight packed again: %v", err)
	}

	var other bytes.Buffer
	w, err := pack.NewWriter(&other, ck, checkpoint.Packed{Layout: "panels of 7"})
	must(t, err)
	must(t, w.Close())
	must(t, os.WriteFile(path, other.Bytes(), 0o600))
	if err := opened(path, engine.Options{}); err == nil || !strings.Contains(err.Error(), `packed in the layout "panels of 7"`) {
		t.Errorf("another layout: %v", err)
	}
	if err := engine.Pack(ck, engine.Options{Quant: "q5"}, &other); err == nil ||
		!strings.Contains(err.Error(), `got "q5"`) {
		t.Errorf("an unknown type: %v", err)
	}
}
