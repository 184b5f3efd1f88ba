// Package golden compares tensors with references, for tests.
package golden

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// ReadFile returns the bytes of a file or, where only path.gz is there, what that holds.
func ReadFile(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return raw, err
	}
	packed, gzErr := os.Open(path + ".gz")
	if gzErr != nil {
		return nil, err // it names the file that the test asked for
	}
	defer packed.Close()
	z, err := gzip.NewReader(packed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", packed.Name(), err)
	}
	return io.ReadAll(z)
}

// Read returns the tensors of a safetensors file, which [ReadFile] reads.
func Read(path string) (map[string]*tensor.Tensor, error) {
	raw, err := ReadFile(path)
	if err != nil {
		return nil, err
	}
	return checkpoint.ReadSafetensors(raw)
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
