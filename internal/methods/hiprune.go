package methods

// HiPrune: "HiPrune: Training-Free Visual Token Pruning via Hierarchical Attention in
// Vision-Language Models" (arXiv:2508.00553).

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

var hiPruneMethod = &method{
	Method: reduce.Method{
		Name:    "hiprune",
		Title:   "HiPrune: attention of a middle and a deep layer of the encoder",
		Summary: "Keeps patches that others attend to, midway through the encoder and at its end.",
		Paper:   "https://arxiv.org/abs/2508.00553",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.ReceivedMid, reduce.ReceivedDeep, reduce.Grid},
		Minimum: "1 token",
		PerView: true,
		Cost:    "none",
		Notes: reduce.Notes{
			Equations: `
p is the attention that a token receives, mean over heads and over all queries, the class token's
included. m = round(k·alpha/5), halves to even. Anchors are the m tokens of largest p in the object
layer, a middle one of the encoder; buffers their neighbours A-1, A+1, A-W and A+W in a grid of W
columns; registers the tokens of largest p in the layer of the features that fill up the k. If
anchors and buffers are more than k, m is lowered. At alpha 0.1 there are no anchors in a budget of
25 tokens and less: then it is the k tokens of largest p.`,
			Departures: `
A neighbour is an index, as in the authors' code: left of a row's first token is the last one of the
row above; indices end at the first and the last token. The authors' code fails where m would have
to be lowered. Their code without a class token leaves out chosen tokens by subtracting 1 from sums that
may be larger, so a token may be chosen twice; here they are left out by index. Their object layer
is the 9th of 24 with a class token and the 16th of 32 without; other depths are ours: 3/8 of the
depth, or the layer nearest to half of it that sees the whole picture. Without a class token the
deep layer is the last that sees the whole picture. The authors' budgets are per view; here the
views share the budget equally. HiPrune++, which reads the question, was not released.`,
			Licence: "The authors' code: MIT.",
		},
	},
	parameters: func() own { return new(hiPruneParams) },
	pick:       hiPrune,
	raster:     true,
	ops:        noOps,
}

// hiPruneParams are HiPrune's parameters.
type hiPruneParams struct {
	alpha float64
	layer int // from 1; 0: the default
}

// Declare implements own.
func (h *hiPruneParams) Declare(d *reduce.Declaration) {
	h.alpha = 0.1
	d.Float(&h.alpha, reduce.Parameter{
		Name: "hiprune-alpha", Unit: "share", Least: new(0.), Most: new(1.),
		Help: "share of the budget for anchors with their neighbours",
	})
	d.Int(&h.layer, reduce.Parameter{
		Name: "hiprune-layer", Unit: "K", Default: "9 of 24, 16 of 32 without a class token",
		Least: new(1.), Help: "layer of the encoder, from 1, whose attention chooses the anchors",
	})
}

// block implements layered.
func (h *hiPruneParams) block(need reduce.Need) int {
	if need == reduce.ReceivedMid {
		return h.layer - 1
	}
	return -1
}

// complete refuses a layer that the encoder does not have, or that sees only parts of the picture.
func (h *hiPruneParams) complete(p *Plan, d *reduce.Declaration) error {
	f := &p.facts
	if h.layer == 0 || f.any {
		return nil
	}
	got := strconv.Itoa(h.layer)
	if f.EncoderDepth == 0 {
		return useless("hiprune-layer", got, "without an encoder (a file has the attention itself)")
	}
	var full []int
	for _, b := range f.fullBlocks() {
		full = append(full, b+1)
	}
	switch {
	case h.layer > f.EncoderBlocks:
		return refused("hiprune-layer", errs.TooLarge, got, fmt.Sprintf("at most %d",
			f.EncoderBlocks), "the encoder's layers up to the features")
	case !slices.Contains(full, h.layer):
		return refused("hiprune-layer", errs.Invalid, got, "one of "+commas(full),
			"the layers that see the whole picture")
	}
	return nil
}

func hiPrune(w *work, k int) (*selection, error) {
	in, alpha := w.in, w.o.own.(*hiPruneParams).alpha
	middle, deep := meanHeads(in.ReceivedMid, in.N), meanHeads(in.ReceivedDeep, in.N)
	grids := gridsOf(in)
	object := rank(middle)
	var anchors, buffers []int32
	for m := round(float64(k) * alpha / 5); m > 0; m-- {
		anchors = object[:m]
		if buffers = neighboursOf(anchors, grids, in.N); m+len(buffers) <= k {
			break
		}
		anchors, buffers = nil, nil
	}
	kept := slices.Concat(anchors, buffers)
	list := others(in.N, kept)
	p := make([]float64, len(list))
	for i, t := range list {
		p[i] = deep[t]
	}
	registers := make([]int32, k-len(kept))
	for i, at := range topK(p, len(registers)) {
		registers[i] = list[at]
	}
	return &selection{
		kept:    append(kept, registers...),
		scores:  map[string][]float32{"middle": float32s(middle), "deep": float32s(deep)},
		indices: map[string][]int32{"anchor": anchors, "buffer": buffers, "register": registers},
	}, nil
}

// neighboursOf returns the neighbours of tokens in their grids, ascending, without the tokens.
func neighboursOf(tokens []int32, grids []reduce.Cut, n int) []int32 {
	near := make([]bool, n)
	for _, g := range grids {
		last := len(g.Tokens) - 1
		for i, t := range g.Tokens {
			if slices.Contains(tokens, t) {
				for _, to := range [4]int{i - 1, i + 1, i - g.W, i + g.W} {
					near[g.Tokens[min(max(to, 0), last)]] = true
				}
			}
		}
	}
	for _, t := range tokens {
		near[t] = false
	}
	var out []int32
	for t, is := range near {
		if is {
			out = append(out, int32(t))
		}
	}
	return out
}

// gridsOf returns the grids of the tokens.
func gridsOf(in *reduce.Input) []reduce.Cut {
	if in.Grids != nil {
		return in.Grids
	}
	return []reduce.Cut{{H: in.GridH, W: in.GridW, Tokens: iota32(in.N)}}
}
