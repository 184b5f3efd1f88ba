package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/tensor"
)

// TestReferenceVerdicts: every file of testdata/bad is accepted or refused as by the reference
// library.
func TestReferenceVerdicts(t *testing.T) {
	var d struct {
		Files map[string]struct {
			Reference string
			Tensors   map[string][]int
		}
	}
	raw, err := os.ReadFile("testdata/files.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Files) != 48 {
		t.Fatalf("got %d files, want 48", len(d.Files))
	}
	for name, want := range d.Files {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", "bad", name+".safetensors")
			f, err := OpenSafetensors(path)
			if want.Reference == "error" {
				if err == nil {
					t.Fatal("accepted, want an error")
				}
				if msg := err.Error(); !strings.Contains(msg, name+".safetensors") ||
					strings.Contains(msg, "\n") ||
					len(msg) > 400 {
					t.Errorf("got error %q, want one line that names the file", msg)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if len(f.Tensors) != len(want.Tensors) {
				t.Errorf("got %d tensors, want %d", len(f.Tensors), len(want.Tensors))
			}
			for name, shape := range want.Tensors {
				x := f.Tensors[name]
				if x == nil || !slices.Equal(x.Shape, shape) {
					t.Errorf("tensor %q: got %v, want shape %v", name, x, shape)
					continue
				}
				if x.DType == tensor.F32 {
					if _, err := x.Float32s(); err != nil {
						t.Errorf("tensor %q: %v", name, err)
					}
				}
			}
		})
	}
}

// file builds a safetensors file from a header's text and the size of its data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func TestReadSafetensorsErrors(t *testing.T) {
	const a = `"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"key twice, same range", file(`{`+a+`,`+a+`}`, 8), `key "a" occurs twice`},
		{"field twice", file(`{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), `"dtype" occurs twice`},
		{"escaped key twice", file(`{`+a+`,"\u0061":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}}`, 8), "occurs twice"},
		{"unknown type", file(`{"a":{"dtype":"Q7","shape":[2],"data_offsets":[0,8]}}`, 8), `tensor "a": dtype: got "Q7"`},
		{"field case", file(`{"a":{"DType":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), "dtype missing"},
		{"null tensor", file(`{"a":null}`, 0), `tensor "a"`},
		{"null shape", file(`{"a":{"dtype":"F32","shape":null,"data_offsets":[0,8]}}`, 8), "shape"},
		{"exponent", file(`{"a":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}`, 8), "shape"},
		{"too long", file(`{`+a+`}`, 9), "trailing data: got 9"},
		{"cut", file(`{`+a+`}`, 7), "got 7 bytes of data"},
		{"mismatch", file(`{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,8]}}`, 8), "got 8 bytes, want 4"},
		{"half a byte", file(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), "want 1.5"},
		{"metadata null value", file(`{"__metadata__":{"x":null}}`, 0), "__metadata__"},
		{"deep", file(strings.Repeat(`{"a":`, 129)+"1"+strings.Repeat("}", 129), 0), "nested deeper"},
		{"axis overflow", file(`{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}`, 0), "overflow"},
		{"dimensions", file(`{"a":{"dtype":"F32","shape":[`+strings.Repeat("1,", 64)+`1],"data_offsets":[0,4]}}`, 4), "shape: got 65 numbers, want at most 64"},
		{"not json", file(`{"a":}`, 0), "line 1 column"},
	} {
		_, err := ReadSafetensors(c.file)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line with %q", c.name, err, c.want)
		}
	}
	if got, err := ReadSafetensors(file(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]},"__metadata__":null}`, 2)); err != nil ||
		got["a"].DType != tensor.F4 {
		t.Errorf("sub-byte type: got %v %v", got, err)
	}
}

func TestWriteReads(t *testing.T) {
	in := map[string]*tensor.Tensor{
		"b":         tensor.From([]int{2, 3}, []float32{1, 2, 3, 4, 5, 6}),
		"a\"\n<é>":  tensor.From([]int{3}, []int64{1, 2, 3}),
		"scalar":    tensor.From(nil, []float32{7}),
		"empty":     tensor.From[float32]([]int{0, 4}, nil),
		"odd bytes": {DType: tensor.U8, Shape: []int{3}, Data: []byte{1, 2, 3}},
		"z":         tensor.From([]int{1}, []float32{8}), // unaligned: after three bytes
	}
	meta := map[string]string{"format": "pt", "x": "<&>"}
	var one, two bytes.Buffer
	if err := errors.Join(WriteSafetensors(&one, in, meta),
		WriteSafetensors(&two, in, meta)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two writes differ")
	}
	if n := binary.LittleEndian.Uint64(one.Bytes()); n%8 != 0 {
		t.Errorf("header of %d bytes, want a multiple of 8", n)
	}
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, one.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenSafetensors(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Tensors) != len(in) || f.Metadata["x"] != "<&>" || f.Metadata["format"] != "pt" {
		t.Errorf("got %v %v", f.Tensors, f.Metadata)
	}
	for name, want := range in {
		got := f.Tensors[name]
		if got == nil || got.DType != want.DType || !slices.Equal(got.Shape, want.Shape) ||
			!bytes.Equal(got.Data, want.Data) {
			t.Errorf("%q: got %v, want %v", name, got, want)
		}
	}
	if v, err := f.Tensors["z"].Float32s(); err != nil || v[0] != 8 {
		t.Errorf("unaligned: got %v %v", v, err)
	}
	if err := errors.Join(f.Close(), f.Close()); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]*tensor.Tensor{
		"short":        {DType: tensor.F32, Shape: []int{2}, Data: make([]byte, 7)},
		"negative":     {DType: tensor.F32, Shape: []int{-1}},
		"unknown":      {DType: 99, Shape: []int{0}},
		"__metadata__": tensor.From(nil, []float32{1}),
		"\xff":         tensor.From(nil, []float32{1}),
	} {
		var b bytes.Buffer
		if err := WriteSafetensors(&b, map[string]*tensor.Tensor{name: bad}, nil); err == nil ||
			b.Len() > 0 {
			t.Errorf("%s: got %v and %d bytes, want an error and none", name, err, b.Len())
		}
	}
}

func TestOpenSafetensorsPaths(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "missing.safetensors")} {
		if _, err := OpenSafetensors(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want an error that names %s", err, path)
		}
	}
}
