package lab

import (
	"context"
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
)

// AttentionShare is the share of attention that visual rows receive in each layer of the decoder
// while it reads a prompt, averaged over heads and queries (the paper's Figures 2 and 5).
type AttentionShare struct {
	Visual []float64 `json:"visual"` // queries are visual rows
	Text   []float64 `json:"text"`   // queries are the rows of text after the first picture
	Last   []float64 `json:"last"`   // the query is the last row, which gives the first token
}

// Attention reads prompt about pics, reduced by o, and returns how much attention the pictures
// receive. It computes the attention matrices, which normal passes do not.
func Attention(
	ctx context.Context, e *engine.Engine, prompt string, places []int, pics *engine.Encoded,
	o methods.Options,
) (*AttentionShare, error) {
	if pics.Len() == 0 {
		return nil, fmt.Errorf("lab: attention: got no picture, want at least one")
	}
	p, err := e.NewPrompt(ctx, engine.Request{
		Prompt: prompt, Places: places, Encoded: pics, Reduce: o,
	})
	if err != nil {
		return nil, err
	}
	out := &AttentionShare{}
	names := map[string]int{}
	for i := range e.Model().Decoder().Shape().Layers {
		names[fmt.Sprintf("text.layer.%d.attn", i)] = i
	}
	trace := func(name string, shape []int, data []float32) {
		if layer, ok := names[name]; ok {
			out.add(p.Visual(layer), shape, data)
		}
	}
	err = e.Do(ctx, func(r *model.Run) error {
		defer p.Free()
		in, err := p.Rows(r)
		if err != nil {
			return err
		}
		_, err = p.Read(r, in, trace)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// AttentionPanels draws shares by layer, one panel for each kind of query. rows is what the visual
// ones are called, and percent what makes a share one. Lines of renumbered positions are dashed.
func AttentionPanels(
	rows string, names []string, shares []AttentionShare, percent float64,
) []chart.Panel {
	var panels []chart.Panel
	kinds := []func(*AttentionShare) []float64{
		func(s *AttentionShare) []float64 { return s.Visual },
		func(s *AttentionShare) []float64 { return s.Text },
	}
	for k, of := range kinds {
		p := chart.Panel{
			Title: "queries: " + []string{"visual ", "text "}[k] + rows, X: "layer",
			Y: "attention on visual " + rows + " (%)", High: 100,
		}
		layers := 0
		for i := range shares {
			s := chart.Series{
				Name: names[i], Style: i, Dashed: strings.HasSuffix(names[i], "renumbered"),
			}
			for layer, v := range of(&shares[i]) {
				s.X, s.Y = append(s.X, float64(layer)), append(s.Y, percent*v)
			}
			if len(s.X) > 0 {
				p.Series = append(p.Series, s)
			}
			layers = max(layers, len(s.X))
		}
		for layer := 0; layer < layers; layer += max(1, layers/8) {
			p.Ticks = append(p.Ticks, float64(layer))
		}
		panels = append(panels, p)
	}
	return panels
}

// add adds a layer: its probabilities [heads, rows, rows], and which rows are visual.
func (s *AttentionShare) add(visual []bool, shape []int, probs []float32) {
	heads, rows := shape[0], shape[1]
	var sum [2]float64 // over text queries and over visual queries
	var n [2]int
	last, after := 0.0, false
	for q := range rows {
		after = after || visual[q]
		if !after {
			continue
		}
		share := 0.0
		for h := range heads {
			for k, v := range probs[(h*rows+q)*rows:][:rows] {
				if visual[k] {
					share += float64(v)
				}
			}
		}
		kind := 0
		if visual[q] {
			kind = 1
		}
		share /= float64(heads)
		sum[kind] += share
		n[kind]++
		last = share
	}
	s.Text = append(s.Text, sum[0]/float64(max(n[0], 1)))
	s.Visual = append(s.Visual, sum[1]/float64(max(n[1], 1)))
	s.Last = append(s.Last, last)
}
