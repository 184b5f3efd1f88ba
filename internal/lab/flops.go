package lab

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// PaperPrompt is the prompt of the paper's Table 20, in rows of the decoder without the picture's:
// 35 of the system, 25 of the question.
const PaperPrompt = 60

// FLOPs are the operations of reading one picture and one prompt, as multiply-adds that are counted
// once, which is what the paper's tables call FLOPs.
type FLOPs struct {
	Base    string  `json:"base"`
	Restore bool    `json:"restore"`
	NVis    int     `json:"n_vis"`   // as asked for
	Mean    float64 `json:"mean"`    // visual rows that enter a layer of the decoder, on average
	Encoder float64 `json:"encoder"` // by Table 20: all blocks, over the visual tokens alone
	Choice  float64 `json:"choice"`  // of tokens and anchors; Table 8 has anchors alone
	Decoder float64 `json:"decoder"` // by Table 20
	Total   float64 `json:"total"`   // Encoder and Decoder, as Table 8 has it
	// Engine is what this program multiplies for the same: the blocks that the features need, over
	// a class token too, the patches, the projector, what the schedule leaves in each layer, and
	// only the last row in the decoder's last block and the head.
	Engine float64        `json:"engine"`
	Stages []reduce.Stage `json:"stages,omitempty"`
}

// Overhead is Choice in percent of Total.
func (f *FLOPs) Overhead() float64 { return 100 * f.Choice / f.Total }

// block counts block i of t that rows rows enter, of which queries look at keys, projected reach
// the projection of attention and kept the MLP, by Table 20: 4·N·D² + 2·N²·D for attention and
// 2·N·F·D or 3·N·F·D for the MLP. With windows of W rows, attention has 2·N·W·D; the order of
// blocks does not matter.
func block(t *engine.Tower, i, rows, queries, projected, kept int) float64 {
	n, m, h := float64(rows), float64(queries), float64(t.Hidden)
	q, k := float64(t.Query), float64(t.Key)
	seen := n
	if t.Window > 0 && i >= t.Whole {
		seen = float64(min(rows, t.Window))
	}
	return h*(m*q+n*2*k) + 2*m*seen*q + float64(projected)*q*h +
		float64(kept)*float64(t.Products*t.MLP)*h
}

// CountFLOPs counts for a model of sizes s what r asks for, with prompt rows of text. nVis is the
// budget that r was made from. A prompt of 0 rows and a reduction without a budget are refused. The
// cuts of FlowCut before the last depend on the picture and are not counted.
func CountFLOPs(s *engine.Sizes, r *methods.Plan, nVis, prompt int) (*FLOPs, error) {
	if prompt < 1 {
		return nil, fmt.Errorf("lab: flops: prompt: got %d rows, want at least 1", prompt)
	}
	if r.NVis == 0 {
		return nil, fmt.Errorf("lab: flops: %s: finds the number of tokens in the picture, "+
			"want a budget", r.Base)
	}
	f := &FLOPs{Base: r.Base, Restore: r.Restore, NVis: r.NVis, Stages: r.Stages}
	if len(r.Stages) > 0 {
		f.NVis = nVis
	}
	enter, leave := r.EncoderRows(s.Vision.Blocks)
	views, cell, class := float64(s.Views), max(1, s.Cell), 1
	if s.NoClass {
		class = 0
	}
	f.Engine = float64(cell*enter[0]) * float64(s.Patch) * float64(s.Vision.Hidden)
	for b := range enter {
		n, m := cell*enter[b]/s.Views, cell*leave[b]/s.Views
		f.Encoder += views * block(&s.Vision, b, n, n, n, m)
		if b < s.Vision.Run {
			n, m = n+class, m+class
			f.Engine += views * block(&s.Vision, b, n, n, n, m)
		}
	}
	features := enter[0]
	if s.Vision.Run > 0 { // not the embedding
		features = leave[s.Vision.Run-1]
	}
	for i, w := range s.Projector[1:] {
		f.Engine += float64(max(1, s.Projectors)*features) * float64(s.Projector[i]) * float64(w)
	}
	enter, leave = r.LayerRows(s.Text.Blocks)
	for l := range enter {
		n, m := prompt+enter[l], prompt+leave[l]
		b := block(&s.Text, l, n, n, m, m)
		f.Decoder += b
		if l == len(enter)-1 && n == m {
			b = block(&s.Text, l, n, 1, 1, 1)
		}
		f.Engine += b
		f.Mean += float64(enter[l])
	}
	f.Mean /= float64(len(enter))
	width := s.Vision.Hidden
	if cell > 1 { // the features before the projector are patches'
		width = s.Text.Hidden
	}
	if s.Features > 0 {
		width = s.Features
	}
	f.Choice, _ = r.Operations(methods.Dims{
		C: s.Text.Hidden, Cv: width, KeyDim: s.Vision.Hidden / s.Vision.Heads, Text: prompt,
	})
	f.Engine += float64(s.Text.Hidden) * float64(s.Vocab)
	f.Total = f.Encoder + f.Decoder
	return f, nil
}
