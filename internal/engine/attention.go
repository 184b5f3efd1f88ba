package engine

import (
	"context"
	"fmt"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
)

// AttentionShare is the share of attention that visual rows receive in each layer of the decoder
// while it reads a prompt, as the mean over heads and queries (the paper's Figures 2 and 5).
type AttentionShare struct {
	Visual []float64 `json:"visual"` // queries are visual rows
	Text   []float64 `json:"text"`   // queries are the rows of text after the first picture
	Last   []float64 `json:"last"`   // the query is the last row, from which the answer begins
}

// Attention reads prompt about pics, reduced by o, and returns how much attention they receive. It
// builds the matrices that the fast path never does.
func (e *Engine) Attention(
	ctx context.Context, prompt string, places []int, pics *Encoded, o methods.Options,
) (*AttentionShare, error) {
	if pics.Len() == 0 {
		return nil, fmt.Errorf("engine: attention: got no picture, want at least one")
	}
	s, err := e.sequence(ctx, Request{
		Prompt: prompt, Places: places, Encoded: pics, Reduce: o, NoCache: true,
	})
	if err != nil {
		return nil, err
	}
	out := &AttentionShare{}
	names := map[string]int{}
	for i := range e.shape.Layers {
		names[fmt.Sprintf("text.layer.%d.attn", i)] = i
	}
	trace := func(name string, shape []int, data []float32) {
		if layer, ok := names[name]; ok {
			out.add(layer, s.units, shape, data)
		}
	}
	err = e.Do(ctx, func(r *model.Run) error {
		in, err := s.rows(r)
		if err != nil {
			return err
		}
		cache := e.newCache()
		defer cache.Free()
		spans := []model.Span{
			{
				Pos: in.pos, Size: in.size, FirstSize: in.firstSize, Cache: cache, Calib: s.calib,
				Staged: in.staged, Context: ctx, Trace: trace,
			},
		}
		e.m.Decoder().Forward(r, in.x, spans)
		return spans[0].Err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// rows encodes and reduces the pictures of s and lays its whole prompt out.
func (s *sequence) rows(r *model.Run) (*rows, error) {
	for _, p := range s.pics {
		f, err := s.e.features(r, p)
		if err != nil {
			return nil, err
		}
		p.tokens = f
	}
	return s.e.layout(s.units, 0)
}

// add takes in the probabilities [heads, rows, rows] of a layer.
func (s *AttentionShare) add(layer int, units []unit, shape []int, probs []float32) {
	heads, rows := shape[0], shape[1]
	var visual []bool
	for _, u := range units {
		for range u.keys(layer) {
			visual = append(visual, u.pic != nil)
		}
	}
	var sum [2]float64 // of text and of visual queries
	var n [2]int
	last, behind := 0.0, false
	for q := range rows {
		behind = behind || visual[q]
		if !behind {
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
