// Package golden compares tensors with references, for tests.
package golden

import (
	"archive/zip"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// ReadFile returns the bytes of a file or, where only path.gz is there, what that holds.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	packed, gzErr := os.Open(path + ".gz")
	if gzErr != nil {
		t.Fatal(err) // it names the file that the test asked for
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err == nil {
		raw, err = io.ReadAll(z)
	}
	if err != nil {
		t.Fatalf("%s: %v", packed.Name(), err)
	}
	return raw
}

// JSON decodes a file, which [ReadFile] reads, into v.
func JSON(t testing.TB, path string, v any) {
	t.Helper()
	if err := json.Unmarshal(ReadFile(t, path), v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// Unzip returns the files of an archive by name.
func Unzip(t testing.TB, path string) map[string][]byte {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files := map[string][]byte{}
	for _, f := range z.File {
		if files[f.Name], err = fs.ReadFile(z, f.Name); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// Read returns the tensors of a safetensors file, which [ReadFile] reads.
func Read(t testing.TB, path string) map[string]*tensor.Tensor {
	t.Helper()
	tensors, err := checkpoint.ReadSafetensors(ReadFile(t, path))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return tensors
}

// Compare reports how got differs from want by more than tol times the largest
// absolute value of want, or in shape. A NaN differs from everything.
func Compare(got, want *tensor.Tensor, tol float64) error {
	if fmt.Sprint(got.Shape) != fmt.Sprint(want.Shape) {
		return fmt.Errorf("shape %v, want %v", got.Shape, want.Shape)
	}
	g, err := floats(got)
	if err != nil {
		return err
	}
	w, err := floats(want)
	if err != nil {
		return err
	}
	var largest, worst float64
	for _, v := range w {
		largest = max(largest, math.Abs(v))
	}
	at := -1
	for i := range w {
		d := math.Abs(g[i] - w[i])
		if !(d <= tol*largest) && (at < 0 || !(d <= worst)) {
			worst, at = d, i
		}
	}
	if at >= 0 {
		return fmt.Errorf("at %d of %v: got %v, want %v (off by %.3g of the largest value "+
			"%.4g, tolerance %.3g)", at, want.Shape, g[at], w[at], worst/largest, largest, tol)
	}
	return nil
}

func floats(t *tensor.Tensor) ([]float64, error) {
	if v, err := t.Float32s(); err == nil {
		out := make([]float64, len(v))
		for i := range v {
			out[i] = float64(v[i])
		}
		return out, nil
	}
	v, err := t.Int64s()
	if err != nil {
		return nil, err
	}
	out := make([]float64, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	return out, nil
}
