package engine

import (
	"math"
	"path/filepath"
	"testing"
	"time"

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
	for _, name := range []string{
		"", "llavanext-vicuna-tiny", "qwen25vl-tiny", "qwen2vl-tiny", "qwen3vl-tiny",
		"internvl-tiny",
	} {
		path := ""
		if name != "" {
			path = filepath.Join("testdata", name)
		}
		e := openedAt(t, path, Options{}, Hooks{})
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
		got, want := r.Bytes()+4*int64(len(v[0].X)), e.m.EncodeBytes(px, 1)
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
			e.shape.CacheBytes(n, e.halves(e.ck)); got != want {
			t.Errorf("%q: cache takes %d bytes, predicted %d", name, got, want)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Ensure that an engine at rest gives its workspaces back, not before, and answers as before.
func TestGivesBackAtRest(t *testing.T) {
	defer func(after time.Duration) { restAfter = after }(restAfter)
	open := func(after time.Duration) *Engine {
		restAfter = after
		return opened(t, Options{})
	}
	ask := func(e *Engine) (answer string, kept int64) {
		a, err := e.Ask(t.Context(), Request{Prompt: "How many circles are there?", MaxTokens: 8})
		if err == nil {
			time.Sleep(10 * time.Millisecond)
			err = e.Do(t.Context(), func(r *model.Run) error { kept = r.Bytes(); return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		return a.Text, kept
	}
	e := open(time.Hour)
	want, kept := ask(e)
	if kept == 0 {
		t.Error("gave back before restAfter")
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	e = open(time.Millisecond)
	defer e.Close()
	for range 100 {
		var got string
		if got, kept = ask(e); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
		if kept == 0 {
			return
		}
	}
	t.Errorf("kept %d bytes at rest", kept)
}
