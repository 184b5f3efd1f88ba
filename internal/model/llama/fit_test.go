package llama_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/model/llama"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// fitDecoder is a decoder of five layers, with the tensors of its file.
func fitDecoder(t *testing.T) (*llama.Decoder, map[string]*tensor.Tensor) {
	t.Helper()
	f := golden.Read(t, filepath.Join("testdata", "fit.safetensors"))
	ck, err := checkpoint.FromConfig("fit", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	src := &model.Source{
		Bundle: ck, Make: func(_ *nn.Memory, name string, _ tensor.DType, _ []int) *tensor.Tensor {
			return f[name]
		},
	}
	c := llama.Config{
		Hidden: 48, Heads: 3, KVHeads: 3, HeadDim: 16, Layers: 5, MLP: 40, Vocab: 40,
		MaxPositions: 64, Eps: 1e-5, Theta: 10000, Tied: true,
	}
	b := model.NewBinder(src)
	d := llama.New(b, c)
	if err := b.Finish(); err != nil {
		t.Fatal(err)
	}
	return d, f
}

// Ensure that the search for FitPrune's schedules takes the same steps as the reference
// implementation, with a decoder of five layers and three questions whose picture of 30 tokens
// follows the fifth token of text.
func TestFitting(t *testing.T) {
	d, f := fitDecoder(t)
	c := d.Config
	const tokens, before = 30, 5
	var want struct {
		Cross, Self [][]float64
		Cases       []struct {
			Cut    float64
			Trials []struct {
				Alpha    float64
				Reached  bool
				Schedule []int
			}
			LastReaching []int `json:"last_reaching"`
		}
	}
	golden.JSON(t, filepath.Join("testdata", "fit.json"), &want)

	run := func(q int, p *methods.Inside) error {
		visual, err := f["visual."+string(rune('0'+q))].Float32s()
		if err != nil {
			return err
		}
		ids, err := f["input_ids."+string(rune('0'+q))].Int64s()
		if err != nil {
			return err
		}
		n := len(ids) + tokens
		x, pos := make([]float32, n*c.Hidden), make([]nn.Pos, n)
		for i, id := range ids {
			row := i
			if i >= before {
				row += tokens
			}
			if err := d.Embed(x[row*c.Hidden:(row+1)*c.Hidden], []int32{int32(id)}); err != nil {
				return err
			}
		}
		copy(x[before*c.Hidden:], visual)
		for i := range pos {
			pos[i] = nn.At(float64(i))
		}
		staged := model.Staged{
			Inside: p, First: before, Start: before, Extent: tokens,
			At: func(row *reduce.Row) nn.Pos { return nn.At(before + row.Position) },
		}
		span := model.Span{
			Pos: pos, Cache: nn.NewKVPool(c.KVHeads, c.HeadDim, false).NewCache(c.Layers),
			Staged: []model.Staged{staged},
		}
		spans := []model.Span{span}
		d.Forward(&model.Run{Pool: kernel.NewPool(1)}, x, spans)
		return spans[0].Err
	}
	fit := &methods.Fitting{
		Layers: c.Layers, Hidden: c.Hidden, MLP: c.MLP, Tokens: tokens, Questions: 3, Run: run,
	}
	for _, w := range want.Cases {
		s, trials, err := fit.Schedule(w.Cut)
		if err != nil {
			t.Fatal(err)
		}
		if s.Cut != w.Cut || !slices.Equal(s.Drop, w.LastReaching) {
			t.Errorf("cut %v: got %v, want %v", w.Cut, s.Drop, w.LastReaching)
		}
		if len(trials) != len(w.Trials) {
			t.Fatalf("cut %v: %d trials, want %d", w.Cut, len(trials), len(w.Trials))
		}
		for i, x := range w.Trials {
			if got := trials[i]; got.Alpha != x.Alpha || got.Reached != x.Reached ||
				!slices.Equal(got.Drop, x.Schedule) {
				t.Errorf("cut %v, trial %d: got %+v, want %+v", w.Cut, i, got, x)
			}
		}
	}
}

// Ensure that heads of an odd width are refused, if weights have it, too.
func TestOddHeads(t *testing.T) {
	ck, err := checkpoint.FromConfig("odd", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	src := &model.Source{Bundle: ck, Make: func(
		_ *nn.Memory, _ string, _ tensor.DType, shape []int,
	) *tensor.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return tensor.From(shape, make([]float32, n))
	}}
	b := model.NewBinder(src)
	llama.New(b, llama.Config{
		Hidden: 45, Heads: 3, KVHeads: 3, HeadDim: 15, Layers: 1, MLP: 40, Vocab: 40,
		MaxPositions: 64, Eps: 1e-5, Theta: 1e4, Tied: true,
	})
	if err := b.Finish(); err == nil || !strings.Contains(err.Error(), "got 15, want an even") {
		t.Errorf("got %v, want an error about 15", err)
	}
}
