package torch

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/tensor"
)

// oracle returns the files of testdata/oracle.zip: files that PyTorch wrote or that were made to do
// harm, the expected result of each, and the content of the valid ones.
func oracle(t testing.TB) map[string][]byte {
	t.Helper()
	return golden.Unzip(t, filepath.Join("testdata", "oracle.zip"))
}

// Ensure that files of every container, type, stride and protocol are read exactly, that those that
// would execute something or reach outside are refused in one line, and that nothing is written.
func TestOracle(t *testing.T) {
	files := oracle(t)
	values, err := checkpoint.ReadSafetensors(files["values.safetensors"])
	if err != nil {
		t.Fatal(err)
	}
	var verdicts []struct {
		File, Expected, Why string
		Tensors             map[string]json.RawMessage
	}
	if err := json.Unmarshal(files["files.json"], &verdicts); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	for _, v := range verdicts {
		b := files["files/"+v.File]
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := Read(b)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > uint64(40*len(b)+1<<20) {
			t.Errorf("%s: %d bytes of memory for %d of file", v.File, used, len(b))
		}
		if err != nil {
			if v.Expected == "accept" || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s (%s): %v", v.File, v.Why, err)
			}
			continue
		}
		if v.Expected == "refuse" {
			t.Errorf("%s (%s): accepted, with %v", v.File, v.Why, slices.Collect(maps.Keys(got)))
			continue
		}
		if v.Tensors != nil && len(got) != len(v.Tensors) {
			t.Errorf("%s: got %d tensors, want %d", v.File, len(got), len(v.Tensors))
		}
		for name := range v.Tensors {
			key := strings.TrimSuffix(v.File, ".bin") + "/" + name
			want, w := values[key], got[name]
			if want == nil || w == nil || w.DType != want.DType ||
				!slices.Equal(w.Shape, want.Shape) {
				t.Errorf("%s: %q is %v, want %v", v.File, name, w, want)
				continue
			}
			a, err := w.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			c, err := (&checkpoint.Weight{Tensor: *want}).Float32s()
			if err != nil || !slices.Equal(a, c) {
				t.Errorf("%s: %q is %v, want %v", v.File, name, a, c)
			}
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files were written: %v %v", left, err)
	}
}

// Ensure that a range of a tensor whose strides are out of order equals the same range of the
// whole.
func TestRead(t *testing.T) {
	a := &array{
		of:      &storage{tensor.I8, 24, []byte("abcdefghijklmnopqrstuvwx")},
		offset:  1,
		shape:   []int{3, 2, 3},
		strides: []int{1, 4, 8},
	}
	whole := make([]float32, 18)
	if err := a.read(whole, 0); err != nil {
		t.Fatal(err)
	}
	if want := []float32{'b', 'j', 'r', 'f', 'n', 'v', 'c', 'k', 's'}; !slices.Equal(whole[:9],
		want) {
		t.Errorf("got %v, want %v", whole[:9], want)
	}
	for at := 0; at < 18; at += 3 {
		for end := at + 3; end <= 18; end += 3 {
			part := make([]float32, end-at)
			if err := a.read(part, at); err != nil || !slices.Equal(part, whole[at:end]) {
				t.Errorf("%d to %d: %v %v", at, end, part, err)
			}
		}
	}
}

// Ensure that a tensor whose values torch would negate is refused, because its storage holds other
// values.
func TestNegated(t *testing.T) {
	note := func(value any) any {
		d := new(dict)
		if err := d.add("neg", value); err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, c := range []struct {
		metadata any
		want     string
	}{
		{nil, ""}, {new(dict), ""}, {note(false), ""}, {note(true), `"neg"`}, {tuple{}, "a tuple"},
	} {
		s := &storage{tensor.I8, 2, []byte("ab")}
		args := tuple{s, int64(0), tuple{int64(2)}, tuple{int64(1)}, false, new(dict), c.metadata}
		_, err := (&reader{file: 2}).call(rebuildTensor, args)
		if c.want == "" && err != nil || c.want != "" &&
			(err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("metadata %v: %v, want %q", c.metadata, err, c.want)
		}
	}
}

// Ensure that a tensor without elements may begin after its storage, as torch.zeros(3, 0)[1:],
// which torch.save writes with offset 1.
func TestEmptyView(t *testing.T) {
	s := &storage{tensor.F32, 0, []byte{}}
	args := tuple{s, int64(1), tuple{int64(2), int64(0)}, tuple{int64(1), int64(1)}, false,
		new(dict)}
	got, err := (&reader{file: 2}).call(rebuildTensor, args)
	if err != nil {
		t.Fatal(err)
	}
	a, ok := got.(*array)
	if !ok {
		t.Fatalf("got %T, want a tensor", got)
	}
	w := a.weight()
	if v, err := w.Float32s(); err != nil || len(v) != 0 || !slices.Equal(w.Shape, []int{2, 0}) {
		t.Errorf("got %v, %v, %v, want 2 rows of 0", w.Shape, v, err)
	}
}

// FuzzRead: any file is either refused, or gives tensors that can be read.
func FuzzRead(f *testing.F) {
	for name, b := range oracle(f) {
		if strings.HasPrefix(name, "files/") && len(b) < 4096 {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		weights, err := Read(b)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q is more than a line", err)
			}
			return
		}
		for name, w := range weights {
			if _, err := w.Float32s(); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}

// FuzzPickle: any pickle is either refused or run, without checksums that the fuzzer would have to
// compute.
func FuzzPickle(f *testing.F) {
	for name, b := range oracle(f) {
		if i := strings.Index(string(b), "data.pkl"); strings.HasPrefix(name, "files/") && i >= 0 &&
			len(b) < 4096 {
			f.Add(b[i:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := reader{file: len(b), storages: map[string]*storage{}}
		m := &machine{data: b, storage: r.storage, call: r.call}
		state, err := m.run()
		if err != nil {
			return
		}
		for _, s := range r.storages {
			if err := s.fill(make([]byte, s.count*s.dtype.Size())); err != nil {
				t.Fatal(err)
			}
		}
		weights, err := r.weights(state)
		if err != nil {
			return
		}
		for name, w := range weights {
			if _, err := w.Float32s(); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
	})
}
