package checkpoint

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"

	"github.com/restore-vlm/restore/internal/tensor"
)

// dumpPart is about how many values are converted at a time.
const dumpPart = 4 << 20

// Dump writes the weights called names as one safetensors file, all of type d, which is F32, F16 or
// BF16. Values are rounded to nearest, ties to even; a finite value that is out of d's range is an
// error.
func Dump(w io.Writer, b Bundle, names []string, d tensor.DType, metadata map[string]string) error {
	if err := CheckNow(b); err != nil {
		return err
	}
	heads := make(map[string]tensor.Tensor, len(names))
	for _, name := range names {
		t, ok := b.Tensor(name)
		if !ok {
			return fmt.Errorf("checkpoint: write: no tensor %q", name)
		}
		heads[name] = tensor.Tensor{DType: d, Shape: t.Shape}
	}
	return StreamSafetensors(w, heads, metadata, func(w io.Writer, name string) error {
		t, _ := b.Tensor(name)
		defer b.Drop()
		if t.DType == d && t.Data != nil {
			_, err := w.Write(t.Data)
			return err
		}
		return t.dump(w, d)
	})
}

// dump writes the weight's values as d, one part at a time.
func (w *Weight) dump(to io.Writer, d tensor.DType) error {
	n, width := w.Len(), 1
	if axes := len(w.Shape); axes > 0 {
		width = max(1, w.Shape[axes-1])
	}
	step := max(1, dumpPart/width) * width
	values, out := make([]float32, min(step, n)), make([]byte, min(step, n)*d.Size())
	for at := 0; at < n; at += step {
		v := values[:min(step, n-at)]
		out := out[:len(v)*d.Size()]
		threads := runtime.GOMAXPROCS(0)
		share := (len(v)/width + threads - 1) / threads * width
		failed := make([]error, threads)
		var wait sync.WaitGroup
		for i := range threads {
			lo, hi := min(i*share, len(v)), min((i+1)*share, len(v))
			wait.Go(func() {
				if failed[i] = w.Floats(v[lo:hi], at+lo); failed[i] == nil {
					failed[i] = narrow(out[lo*d.Size():hi*d.Size()], v[lo:hi], d)
				}
			})
		}
		wait.Wait()
		for _, err := range failed {
			if err != nil {
				return err
			}
		}
		if _, err := to.Write(out); err != nil {
			return err
		}
	}
	return nil
}

// narrow writes v as d.
func narrow(out []byte, v []float32, d tensor.DType) error {
	le := binary.LittleEndian
	switch d {
	case tensor.F32:
		for i, x := range v {
			le.PutUint32(out[4*i:], math.Float32bits(x))
		}
		return nil
	case tensor.F16:
		for i, x := range v {
			h := tensor.F32ToF16(x)
			if h&0x7fff == 0x7c00 && !math.IsInf(float64(x), 0) {
				return fmt.Errorf("got %g, want at most 65504 in float16", x)
			}
			le.PutUint16(out[2*i:], h)
		}
		return nil
	case tensor.BF16:
		for i, x := range v {
			h := tensor.F32ToBF16(x)
			if h&0x7fff == 0x7f80 && !math.IsInf(float64(x), 0) {
				return fmt.Errorf("got %g, want at most 3.39e38 in bfloat16", x)
			}
			le.PutUint16(out[2*i:], h)
		}
		return nil
	}
	return fmt.Errorf("type: got %v, want F32, F16 or BF16", d)
}
