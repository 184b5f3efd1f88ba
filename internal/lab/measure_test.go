package lab_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
)

// Ensure that a measurement covers every stage: rows as the budget says, the operations of the
// decoder's products as its shape gives them (a layer: q, k, v, o of 64·64 and three of 64·88; the
// head 64·320; of the head and the last layer, except k and v, only the last row), and rates.
func TestMeasure(t *testing.T) {
	work := new(nn.Work)
	files := formats.Files{Model: filepath.Join("..", "engine", "testdata", "llava15-tiny")}
	e, err := engine.OpenWith(files, engine.Options{Threads: 2}, engine.Hooks{Work: work})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	pic := &imageproc.Picture{Width: 56, Height: 56, Pix: make([]byte, 3*56*56)}
	const layers, keys, head, towerLayers = 3, 2 * 2 * 64 * 64, 2 * 64 * 320, 3
	const perRow = keys + 2*(2*64*64+3*64*88)
	for _, c := range []struct {
		reduce methods.Options
		rows   int64
	}{
		{methods.Options{}, 16 + 7},
		{methods.Options{Base: "holov", NVis: 8, Restore: true, Own: map[string]any{"holov-patches": 4}}, 8 + 7},
	} {
		m, err := lab.Measure(context.Background(), e, lab.MeasureRequest{
			Image: pic, Reduce: c.reduce, Text: 7, Steps: 3,
		})
		if err != nil {
			t.Fatal(err)
		}
		if int64(m.PromptTokens) != c.rows || m.Before != 16 || m.GeneratedTokens != 4 {
			t.Errorf("%+v: %d rows of %d visual tokens, %d generated, want %d of 16, 4", c.reduce,
				m.PromptTokens, m.Before, m.GeneratedTokens, c.rows)
		}
		prefill := m.PrefillWork
		if got, want := prefill.Products.Operations,
			c.rows*(layers*perRow-perRow+keys)+perRow-keys+head; got != want {
			t.Errorf("%+v: %d operations in the prompt's products, want %d", c.reduce, got, want)
		}
		decode := m.DecodeWork
		if got, want := decode.Products.Operations, int64(3*(layers*perRow+head)); got != want {
			t.Errorf("%+v: %d operations in three steps' products, want %d", c.reduce, got, want)
		}
		// row i of a prompt sees i keys: 4·64 operations each for all heads of a layer
		pairs := c.rows * (c.rows + 1) / 2
		if got, want := prefill.Attention.Operations, (pairs*(layers-1)+c.rows)*4*64; got != want {
			t.Errorf("%+v: %d operations in the prompt's attention, want %d", c.reduce, got, want)
		}
		// the tower's 16 patches and class token see each other in each of its layers
		const tower = towerLayers * 17 * 17 * 4 * 48
		if got := m.EncodeWork.Attention.Operations; got != tower {
			t.Errorf("%+v: %d operations in the tower's attention, want %d", c.reduce, got, tower)
		}
		if !(m.Prefill >= prefill.Products.Time+prefill.Attention.Time &&
			m.Decode >= decode.Products.Time+decode.Attention.Time &&
			m.FirstToken >= m.Encode+m.Prefill) || m.EncodeWork.Products.Operations == 0 {
			t.Errorf("%+v: times %+v", c.reduce, m)
		}
	}
	for want, req := range map[string]lab.MeasureRequest{
		"0 tokens of text":      {Image: pic},
		"-1 steps":              {Image: pic, Text: 1, Steps: -1},
		"523 positions":         {Image: pic, Text: 7, Steps: 500},
		"700 positions, want a": {Text: 700},
	} {
		if _, err := lab.Measure(context.Background(), e, req); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", req, err, want)
		}
	}
}
