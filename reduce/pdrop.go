package reduce

// PyramidDrop: "PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy Reduction" (arXiv:2410.17247).
//
// Before each of some layers the visual rows stay to which the prompt's last row would attend most in that layer, averaged over heads: the
// layer's own norm and projections score the rows before any goes. Shares are of the picture's tokens, not of the stage before. Positions
// behind a stage are renumbered without gaps (compat released, or positions sequential), and decoding goes on from there in each layer.
// Parameters: layers 8, 16, 24 of 32 with shares 1/2, 1/4, 1/8, a mean of 270 of 576 tokens.
//
// The paper's tables name budgets but no schedule reaches them that the authors publish. n-vis N of V tokens, the mean over layer inputs, is
// here: from V/3 up the authors' layers with shares a, a^2, a^3, whose a is solved for (1/4 at V/3); below, which these layers
// cannot reach, layers 2, 10, 20 with n, n/2, n/4 rows. With 32 layers and 576 tokens 192, 128 and 64 are 144/36/9, 184/92/46 and
// 56/28/14. In decoders of another depth stages sit at the same relative depth, at least one layer apart.
//
// Departures: none from the authors' version without padding; shares are cut to whole rows, as theirs, but to no fewer than 1.

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

var (
	pdropLayers = []int{8, 16, 24} // of 32
	pdropEarly  = []int{2, 10, 20} // for means below a third of the tokens
)

var pdropMethod = &Method{
	Name: "pdrop", Title: "PyramidDrop: attention of the last row, ahead of some layers", Paper: "https://arxiv.org/abs/2410.17247", Site: InsideDecoder,
	Minimum: "1 token", Params: []Param{{"pdrop-layers", "8,16,24 of 32; 2,10,20 below a third", "the stages' layers, where no schedule is given"}},
}

func init() { // the schedule's search names the method
	pdropMethod.inside = &insideMethod{
		ahead: true, first: 1, sequential: true, score: lastRow,
		share: func(n int, share float64) int { return int(float64(n) * share) },
		plan:  planPDrop,
	}
}

func planPDrop(o *Options, n, budget int) ([]Stage, error) {
	early := o.PDropLayers == "" && 3*budget < n
	layers, err := parseLayers(o.PDropLayers)
	switch {
	case err != nil:
		return nil, err
	case early:
		layers = depths(pdropEarly, o.Layers)
	case layers == nil:
		layers = depths(pdropLayers, o.Layers)
	}
	return nearest(pdropMethod, o.Layers, n, budget, func(yield func([]Stage) bool) {
		quarter := 3*budget == n && o.PDropLayers == ""
		for c := 1; c <= n; c++ {
			stages, rows := make([]Stage, len(layers)), float64(c)
			for i, l := range layers {
				stages[i] = Stage{Layer: l, Kept: max(1, int(rows))}
				if early {
					rows /= 2
				} else {
					rows = float64(n) * math.Pow(float64(c)/float64(n), float64(i+2))
				}
			}
			if quarter && c != n/4 {
				continue
			}
			if !yield(stages) {
				return
			}
		}
	})
}

// parseLayers reads layers separated by commas, nil for an empty text.
func parseLayers(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var layers []int
	for entry := range strings.SplitSeq(text, ",") {
		l, err := strconv.Atoi(strings.TrimSpace(entry))
		if n := len(layers); err != nil || l < 1 || n > 0 && layers[n-1] >= l {
			return nil, fmt.Errorf("reduce: pdrop-layers: got %q, want ascending layers from 1 on, as in 8,16,24", text)
		}
		layers = append(layers, l)
	}
	return layers, nil
}
