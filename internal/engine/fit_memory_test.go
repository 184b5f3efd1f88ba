package engine

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that weights that do not fit in free memory are refused before any is read, that the error
// names a type that fits, and that auto chooses this type and says so.
func TestFitMemory(t *testing.T) {
	defer func(f func() (int64, bool)) { available = f }(available)
	open := func(quant string, free int64, known bool) (*Engine, string, error) {
		available = func() (int64, bool) { return free, known }
		ck, err := formats.Open("testdata/llava15-tiny")
		if err != nil {
			t.Fatal(err)
		}
		var said []string
		e, err := New(ck, Options{Threads: 1, Quant: quant, Warn: func(s string) {
			if strings.Contains(s, "auto") {
				said = append(said, s)
			}
		}}, Hooks{})
		if err != nil {
			ck.Close()
			return nil, "", err
		}
		t.Cleanup(func() { e.Close() })
		return e, strings.Join(said, "; "), nil
	}
	whole, _, err := open("", 0, false)
	if err != nil {
		t.Fatal(err)
	}
	stored, _ := whole.ck.Resident()
	sizes := map[string]int64{}
	for _, quant := range smaller {
		sizes[quant], err = residentAs(whole.ck.Bundle, Options{Quant: quant}, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !(stored > sizes["f16"] && sizes["f16"] > sizes["q8"] && sizes["q8"] > sizes["q4"]) {
		t.Fatalf("stored %d, smaller %v", stored, sizes)
	}
	room := func(n int64) int64 { return n*8/7 + 8 } // plus the memory that auto leaves free
	for _, c := range []struct {
		quant string
		free  int64
		kept  string // type of the decoder's weights; "" means an error
		fits  string // type that the error names
	}{
		{"", stored, "F32", ""}, {"", stored - 1, "", "f16"}, {"", room(sizes["q8"]), "", "q8"}, {"", room(sizes["q4"]), "", "q4"}, {"", 1000, "", ""},
		{"f32", stored - 1, "", "f16"}, {"q8", room(sizes["q8"]), "Q8", ""}, {"q8", sizes["q8"] - 1, "", ""},
		{"auto", room(stored), "F32", ""}, {"auto", room(sizes["f16"]), "F16", ""}, {"auto", room(sizes["q8"]), "Q8", ""},
		{"auto", room(sizes["q4"]), "Q4", ""}, {"auto", 1000, "", ""},
	} {
		e, said, err := open(c.quant, c.free, true)
		var memory *errs.MemoryError
		switch {
		case c.kept == "":
			if !errors.As(err, &memory) || memory.Weights != c.fits || memory.Have != c.free ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%q in %d bytes: got %v, want one that names %q", c.quant, c.free, err,
					c.fits)
			}
		case err != nil:
			t.Errorf("%q in %d bytes: %v", c.quant, c.free, err)
		case e.Info().Kept[c.kept] < e.Info().Params/4:
			t.Errorf("%q in %d bytes: kept as %v, want %s", c.quant, c.free, e.Info().Kept, c.kept)
		case (said != "") != (c.quant == "auto"):
			t.Errorf("%q in %d bytes: warned %q", c.quant, c.free, said)
		}
	}
	if e, said, err := open("auto", 0, false); err != nil ||
		!strings.Contains(said, "does not say") ||
		e.Info().Kept["F32"] == 0 {
		t.Errorf("a system that does not report free memory: %q %v", said, err)
	}

	available = func() (int64, bool) { return room(sizes["q4"]), true }
	ck, err := formats.Open("testdata/llava15-tiny")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	var b bytes.Buffer
	if err := Pack(ck, Options{Threads: 1, Quant: "auto"}, &b); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(b.Bytes(), []byte(`"quant":"q4"`)) {
		t.Error("auto is not packed as q4")
	}
}

// Ensure that weights that Hooks.Weights would make are refused too before any is made, and made if
// they fit.
func TestFitMadeWeights(t *testing.T) {
	defer func(f func() (int64, bool)) { available = f }(available)
	stored, err := formats.Open("testdata/llava15-tiny")
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	made := 0
	h := Hooks{Weights: func(_ *kernel.Memory, name string, _ tensor.DType,
		_ []int) *tensor.Tensor {
		made++
		w, ok := stored.Tensor(name)
		if !ok {
			t.Fatalf("made %q", name)
		}
		return &w.Tensor
	}}
	ck, err := checkpoint.FromConfig("shape", stored.Parts().Config.Data)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Threads: 1, Quant: "f32", EncoderQuant: "f32"}
	need, err := residentAs(ck, o, h)
	if err != nil {
		t.Fatal(err)
	}
	available = func() (int64, bool) { return need - 1, true }
	var memory *errs.MemoryError
	_, err = New(ck, o, h)
	if !errors.As(err, &memory) || memory.Need != need || memory.Have != need-1 {
		t.Errorf("%d bytes in %d: got %v", need, need-1, err)
	}
	if made > 0 {
		t.Errorf("made %d weights", made)
	}
	available = func() (int64, bool) { return need, true }
	e, err := New(ck, o, h)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if got := e.Info().Resident; got != need || made == 0 {
		t.Errorf("%d weights in %d bytes, predicted %d", made, got, need)
	}
}

// Ensure that keys and values get a quarter of the free memory if no limit is given.
func TestMemoryForKeys(t *testing.T) {
	weights := tiny(t, Options{}).Info().Resident
	defer func(f func() (int64, bool)) { available = f }(available)
	for _, c := range []struct {
		free  int64
		known bool
		given int64
		all   int64 // Options.MemoryBytes
		want  int64
	}{
		{8 << 30, true, 0, 0, 2 << 30},       // 8/4
		{8 << 30, true, 3 << 30, 0, 3 << 30}, // as given
		{0, false, 0, 0, keysUnknown},
		{8 << 30, true, 0, 1 << 30, (1<<30 - weights) / 4},
		{8 << 30, true, 512 << 20, 1 << 30, 512 << 20},
		{0, false, 0, 1 << 30, (1<<30 - weights) / 4},
		{1 << 30, true, 0, 8 << 30, 1 << 28}, // the system has less
	} {
		available = func() (int64, bool) { return c.free, c.known }
		e := tiny(t, Options{KVBytes: c.given, MemoryBytes: c.all})
		// the limit is a whole number of pages
		got, page := e.Stats().KVLimit, e.pages.PageBytes()
		if got > c.want || got+page <= c.want {
			t.Errorf("%d bytes free, %d given: got at most %d for keys and values, want %d",
				c.free, c.given, got, c.want)
		}
	}
}

// Ensure that a limit of the memory refuses weights, and keys and values, that exceed it.
func TestMemoryLimit(t *testing.T) {
	defer func(f func() (int64, bool)) { available = f }(available)
	available = func() (int64, bool) { return 8 << 30, true }
	const folder = "testdata/llava15-tiny"
	ck, err := formats.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	weights, err := residentAs(ck, Options{}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	open := func(memory, kv int64) error {
		ck, err := formats.Open(folder)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		e, err := New(ck, Options{Threads: 1, MemoryBytes: memory, KVBytes: kv}, Hooks{})
		if err == nil {
			err = e.Close()
		}
		return err
	}
	var memory *errs.MemoryError
	if err := open(weights-1, 0); !errors.As(err, &memory) || memory.Have != weights-1 {
		t.Errorf("weights: got %v, want an errs.MemoryError", err)
	}
	var option *errs.OptionError
	if err := open(weights+1e6, 2e6); !errors.As(err, &option) || option.Name != "kv-mb" {
		t.Errorf("keys and values: got %v, want an error about kv-mb", err)
	}
	if err := open(weights+4e6, 2e6); err != nil {
		t.Errorf("enough: %v", err)
	}
}
