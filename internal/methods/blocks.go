package methods

import (
	"math"
	"slices"

	"github.com/restore-vlm/restore/reduce"
)

// Tap is attention that a method reads of one of the encoder's blocks: the class token's, or what
// every row receives, averaged over the queries.
type Tap struct {
	Need  reduce.Need
	Block int // from 0; -1 if there is none
}

// layered are parameters of a method that name the block of a need.
type layered interface {
	// block returns the block from 0, -1 if the need's default applies.
	block(need reduce.Need) int
}

// Taps returns the attention that the method reads in addition to [reduce.ClsAttn].
func (p *Plan) Taps() []Tap {
	var taps []Tap
	for _, need := range p.method.Require(p.Restore) {
		block := -1
		if l, ok := p.own.(layered); ok {
			block = l.block(need)
		}
		switch {
		case need == reduce.ClsAttnShallow && block < 0:
			block = p.facts.shallowBlock()
		case need == reduce.ReceivedMid && block < 0:
			block = p.facts.middleBlock()
		case need == reduce.ReceivedDeep && !p.facts.NoClass: // else it is that of ClsAttn
			block = p.facts.EncoderBlocks - 1
		case block < 0:
			continue
		}
		taps = append(taps, Tap{need, block})
	}
	return taps
}

// Text returns the text that the method reads after the encoder: [reduce.PromptText],
// [reduce.QuestionText], or "" for none.
func (p *Plan) Text() reduce.Need {
	for _, need := range p.method.Require(p.Restore) {
		if need.ReadsText() {
			return need
		}
	}
	return ""
}

// middleBlock is the block of [reduce.ReceivedMid]: the 9th of 24; without a class token the 16th
// of 32, or the one nearest to half of the depth that sees the whole picture.
func (f *Facts) middleBlock() int {
	if !f.NoClass {
		return f.within(round(3 * float64(f.EncoderDepth) / 8))
	}
	best := -1
	for _, b := range f.fullBlocks() {
		away := func(b int) int { // from half of the depth, twice
			return max(2*(b+1)-f.EncoderDepth, f.EncoderDepth-2*(b+1))
		}
		if best < 0 || away(b) < away(best) {
			best = b
		}
	}
	return best
}

// shallowBlock is the block of [reduce.ClsAttnShallow]: the 6th of 24; where most blocks see only a
// part of the picture, the first that sees all of it.
func (f *Facts) shallowBlock() int {
	if f.EncoderFull != nil {
		return f.EncoderFull[0]
	}
	return f.within(round(float64(f.EncoderDepth) / 4))
}

// within is the k-th block, counted from 1, or the nearest one that the features need.
func (f *Facts) within(k int) int { return min(max(k, 1), f.EncoderBlocks) - 1 }

// fullBlocks are the blocks up to the features that see the whole picture.
func (f *Facts) fullBlocks() []int {
	var all []int
	for b := range f.EncoderBlocks {
		if f.EncoderFull == nil || slices.Contains(f.EncoderFull, b) {
			all = append(all, b)
		}
	}
	return all
}

// round is Python's: halves go to the even number.
func round(v float64) int { return int(math.RoundToEven(v)) }
