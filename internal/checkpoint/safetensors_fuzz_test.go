package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzReadSafetensors: any bytes are either refused, or read and equal after writing and reading
// again.
func FuzzReadSafetensors(f *testing.F) {
	paths, err := filepath.Glob("testdata/bad/*.safetensors")
	if err != nil || len(paths) == 0 {
		f.Fatalf("seeds: %v", err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(file(`{"a":{"dtype":"F32","shape":[`+strings.Repeat("0,", 5000)+`0],"data_offsets":[0,0]}}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		tensors, err := ReadSafetensors(b)
		if err != nil {
			return
		}
		total := 0
		for name, x := range tensors {
			total += len(x.Data)
			if want := x.Len() * x.DType.Bits() / 8; len(x.Data) != want {
				t.Errorf("%q: got %d bytes, want %d", name, len(x.Data), want)
			}
		}
		if total > len(b) {
			t.Errorf("tensors of %d bytes in a file of %d", total, len(b))
		}
		var out bytes.Buffer
		if err := WriteSafetensors(&out, tensors, nil); err != nil {
			t.Fatalf("write: %v", err)
		}
		again, err := ReadSafetensors(out.Bytes())
		if err != nil || len(again) != len(tensors) {
			t.Errorf("read again: got %d tensors %v, want %d", len(again), err, len(tensors))
		}
	})
}
