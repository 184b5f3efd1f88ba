package engine_test

import (
	"bytes"
	"github.com/restore-vlm/restore/internal/checkpoint/all"
	"github.com/restore-vlm/restore/internal/checkpoint/pack"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/golden"
)

// packed packs ck and opens the file.
func packed(t *testing.T, ck checkpoint.Bundle, o engine.Options) (path string) {
	t.Helper()
	var b bytes.Buffer
	check(t, engine.Pack(ck, o, &b))
	path = filepath.Join(t.TempDir(), "model.rst")
	check(t, os.WriteFile(path, b.Bytes(), 0o600))
	return path
}

// Ensure that a packed file gives the logits of its directory under the same
// plan, keeps as much, and can be packed again.
func TestPacked(t *testing.T) {
	for _, c := range []struct{ name, input string }{
		{"llava15-tiny", "one-image"}, {"llava15-gqa-full-tiny", "two-images"}, {"qwen25vl-tiny", ""},
	} {
		dir := filepath.Join("testdata", c.name)
		for _, o := range []engine.Options{
			{Threads: 2}, {Threads: 2, Quant: "q4", EncoderQuant: "q8"}, {Threads: 2, Quant: "bf16", EncoderQuant: "f16"},
		} {
			ck, err := all.Open(dir)
			check(t, err)
			path := packed(t, ck, o)
			want := openWith(t, dir, o)
			got := openWith(t, path, engine.Options{Threads: 1})
			gi, wi := got.Info(), want.Info()
			if gi.Resident != wi.Resident || gi.Params != wi.Params ||
				gi.Architecture != wi.Architecture || gi.Name != c.name {
				t.Errorf("%s %q: %+v, want %+v", c.name, o.Quant, gi, wi)
			}
			check(t, ck.Close())
			again, err := all.Open(path)
			check(t, err)
			twice, err := os.ReadFile(packed(t, again, engine.Options{}))
			check(t, err)
			check(t, again.Close())
			if once, err := os.ReadFile(path); err != nil || len(once) < len(twice) {
				t.Errorf("%s %q: %d bytes, packed again %d (%v)", c.name, o.Quant, len(once),
					len(twice), err)
			}
			if c.input == "" {
				continue
			}
			ref, err := golden.Read(filepath.Join(dir, c.input+".ref"))
			check(t, err)
			if !slices.Equal(logits(t, got, ref), logits(t, want, ref)) {
				t.Errorf("%s %q: other logits than the directory's", c.name, o.Quant)
			}
		}
	}
}

// Ensure that a packed file is opened as what it is packed as, or not at all, that
// weights are checked, and that what Pack cannot convert is an error.
func TestPackedErrors(t *testing.T) {
	ck, err := all.Open("testdata/llava15-tiny")
	check(t, err)
	defer ck.Close()
	path := packed(t, ck, engine.Options{Quant: "q4"})
	opened := func(path string, o engine.Options) error {
		ck, err := all.Open(path)
		if err != nil {
			return err
		}
		e, err := engine.New(ck, o)
		if err != nil {
			ck.Close()
			return err
		}
		return e.Close()
	}
	check(t, opened(path, engine.Options{Quant: "q4"}))
	for _, c := range []struct {
		o    engine.Options
		want string
	}{
		{engine.Options{Quant: "q8"}, `quant: got "q8", want none or what llava15-tiny is packed as, q4`},
		{engine.Options{EncoderQuant: "f16"}, `encoder-quant: got "f16", want none or what llava15-tiny is packed as, as stored`},
	} {
		if err := opened(path, c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	b, err := os.ReadFile(path)
	check(t, err)
	b[len(b)/2] ^= 1
	check(t, os.WriteFile(path, b, 0o600))
	if err := opened(path, engine.Options{}); err == nil ||
		!strings.Contains(err.Error(), "damaged") {
		t.Errorf("a changed weight: %v", err)
	}

	var other bytes.Buffer
	w, err := pack.NewWriter(&other, ck, checkpoint.Packed{Layout: "panels of 7"})
	check(t, err)
	check(t, w.Close())
	check(t, os.WriteFile(path, other.Bytes(), 0o600))
	if err := opened(path, engine.Options{}); err == nil || !strings.Contains(err.Error(), `packed in the layout "panels of 7"`) {
		t.Errorf("another layout: %v", err)
	}
	if err := engine.Pack(ck, engine.Options{Quant: "q5"}, &other); err == nil ||
		!strings.Contains(err.Error(), `got "q5"`) {
		t.Errorf("an unknown type: %v", err)
	}
}
