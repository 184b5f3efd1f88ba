package engine

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// bufferTolerance is how much buffers may differ from their prediction, which leaves out the
// buffers of one row and of a reducer.
const bufferTolerance = 0.03

// Ensure that a forward and an encoder take the predicted memory: buffers within the tolerance, and
// results.
func TestFootprintOfBuffers(t *testing.T) {
	pic := &imageproc.Picture{Width: 100, Height: 80, Pix: make([]byte, 3*100*80)}
	for _, name := range []string{"", "llavanext-vicuna-tiny", "qwen25vl-tiny"} {
		var ck checkpoint.Bundle
		var err error
		if name == "" {
			ck, err = formats.Open("")
		} else {
			ck, err = formats.Open(filepath.Join("testdata", name))
		}
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(ck, Options{Threads: 2}, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		px, err := e.proc.Process([]*imageproc.Picture{pic})
		if err != nil {
			t.Fatal(err)
		}
		r := &model.Run{Pool: e.pool}
		pics, err := e.m.Pictures(px)
		if err != nil {
			t.Fatal(err)
		}
		v, err := e.m.Encode(r, pics, model.Needs{})
		if err != nil {
			t.Fatal(err)
		}
		got, want := r.Bytes()+4*int64(len(v[0].X)), e.m.EncodeBytes(px)
		// the prediction includes copied results and a product's input
		if ratio := float64(want) / float64(got); !(ratio >= 0.95 && ratio <= 1.6) {
			t.Errorf("%q: encoder takes %d bytes, predicted %d", name, got, want)
		}

		r = &model.Run{Pool: e.pool}
		const n = 90
		cache, pos := e.newCache(), make([]nn.Pos, n)
		for i := range pos {
			pos[i] = nn.At(float64(i))
		}
		cache.Reserve(n, n)
		e.m.Decoder().Forward(r, make([]float32, n*e.shape.Hidden), []model.Span{
			{Pos: pos, Cache: cache},
		})
		if got, want := float64(r.Bytes()),
			float64(e.shape.ForwardBytes(n)); !(math.Abs(got/want-1) <= bufferTolerance) {
			t.Errorf("%q: forward takes %g bytes, predicted %g", name, got, want)
		}
		if got, want := int64(cache.Held())*e.pages.PageBytes(),
			e.shape.CacheBytes(n, e.half); got != want {
			t.Errorf("%q: cache takes %d bytes, predicted %d", name, got, want)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
