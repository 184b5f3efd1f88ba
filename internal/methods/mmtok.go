package methods

// MMTok: "MMTok: Multimodal Coverage Maximization for Efficient Inference of VLMs"
// (arXiv:2508.18264).

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

const (
	mmTokText      = 0.02 // temperature; without a class token:
	mmTokClassless = 0.01
	mmTokWords     = 4096 // most tokens of a question: each is compared with each of the picture's
)

var mmTokMethod = &method{
	Method: reduce.Method{
		Name:    "mmtok",
		Title:   "MMTok: coverage of the question and of the picture",
		Summary: "Keeps patches that together cover the question and the picture.",
		Paper:   "https://arxiv.org/abs/2508.18264",
		Site:    reduce.AfterEncoder,
		Needs:   []reduce.Need{reduce.Cells, reduce.QuestionText},
		Text:    true,
		Minimum: "1 token",
		PerView: true,
		Cost:    "N²·Cv + M·N·C (cosines; M: tokens of the question) and k·N·(N+M) comparisons",
		Notes: reduce.Notes{
			Equations: `
P_ij is the softmax over the picture's tokens j of cos(text_i, x_j)/t, divided by the number M of
text rows; Q_ij the softmax over j of cos(v_i, v_j)/u, divided by N. x are features after the
projector, v before it (without a class token: the mean of a token's patches before they are
joined), text the decoder's embeddings of the question. The rows of P and of alpha·Q are one matrix
R; best_i = 0 at first. Then k times: the unused token j of largest sum over i of max(0, R_ij -
best_i) is taken, and best_i = max(best_i, R_ij). Tokens that show only the padding around a picture
are taken last.`,
			Departures: `
The text is the question as the user wrote it, without template. Only the two usual sentences about
the form of the answer are left out: "Answer the question using a single word or phrase." and
"Answer with the option's letter from the given choices directly." The authors' code with a class
token also leaves out function words, that without one puts "Question: " before it. Without text, Q alone
decides. Padding that is left is taken by index. The paper's optional model that drafts an answer is
not in the authors' code. The authors' budgets are per view; here the views share the budget equally.
The choice holds for one question only: in a conversation every question chooses again.`,
			Licence: "The authors' code: Apache-2.0.",
		},
	},
	parameters: func() own { return new(mmTokParams) },
	pick:       mmTok,
	raster:     true,
	ops: func(o *Plan, d Dims) float64 {
		n := float64(o.N)
		return n*n*float64(d.Cv) + float64(d.Text)*n*float64(d.C)
	},
}

// mmTokParams are MMTok's parameters.
type mmTokParams struct{ alpha, text, vision float64 }

// Declare implements own.
func (m *mmTokParams) Declare(d *reduce.Declaration) {
	m.alpha, m.vision = 0.5, 0.2
	d.Float(&m.alpha, reduce.Parameter{
		Name: "mmtok-alpha", Least: new(0.),
		Help: "weight of the picture's coverage against the question's",
	})
	d.Float(&m.text, reduce.Parameter{
		Name: "mmtok-text-temperature", Default: "0.02, or 0.01 without a class token",
		Least: new(0.), Above: true, Help: "temperature of the softmax for the question",
	})
	d.Float(&m.vision, reduce.Parameter{
		Name: "mmtok-vision-temperature", Least: new(0.), Above: true,
		Help: "temperature of the softmax for the picture",
	})
}

// complete sets the temperature for the question.
func (m *mmTokParams) complete(p *Plan, d *reduce.Declaration) error {
	if !d.Given("mmtok-text-temperature") {
		if m.text = mmTokText; p.NoClass {
			m.text = mmTokClassless
		}
	}
	return nil
}

func mmTok(w *work, k int) (*selection, error) {
	in := w.in
	v, width := in.Cells, in.CellDim
	if !in.NoClass {
		v, width = in.Hidden[in.Cv:], in.Cv
	}
	if in.N*in.N*width > fineWork {
		c, err := newCosines(w.pool, v, in.N, width, string(reduce.Cells))
		if err != nil {
			return nil, err
		}
		return mmTokCover(w, k, slices.Collect(slices.Chunk(c.c, in.N)))
	}
	c, err := newColumns(w.pool, v, in.N, width, in.N, string(reduce.Cells))
	if err != nil {
		return nil, err
	}
	c.load(iota32(in.N))
	picture := make([][]float64, in.N)
	for j := range picture {
		picture[j] = slices.Clone(c.to(int32(j))) // which copies of a token share
	}
	return mmTokCover(w, k, picture)
}

// mmTokCover chooses k tokens, given the cosines of each to all. It uses their memory.
func mmTokCover[T float32 | float64](w *work, k int, picture [][]T) (*selection, error) {
	m, n := w.o.own.(*mmTokParams), w.in.N
	text, err := mmTokTextRows[T](w)
	if err != nil {
		return nil, err
	}
	softmaxRows(w.pool, picture, m.vision, m.alpha/float64(n))
	softmaxRows(w.pool, text, m.text, 1/float64(max(1, len(text[0]))))
	parts := [2][][]T{text, picture}
	best := [2][]T{make([]T, len(text[0])), make([]T, n)}
	gain := func(j int) float64 {
		sum := 0.0
		for p := range parts {
			for i, v := range parts[p][j] {
				if v > best[p][i] {
					sum += float64(v) - float64(best[p][i])
				}
			}
		}
		return sum
	}
	take := func(j int) {
		for p := range parts {
			for i, v := range parts[p][j] {
				best[p][i] = max(best[p][i], v)
			}
		}
	}
	used, shown := make([]bool, n), n
	for i, padding := range w.in.Padding {
		if used[i] = padding; padding {
			shown--
		}
	}
	kept, gains := coverage(w.pool, min(k, shown), used, gain, take)
	for i := int32(0); len(kept) < k; i++ {
		if !slices.Contains(kept, i) {
			kept, gains = append(kept, i), append(gains, 0)
		}
	}
	sel := &selection{kept: kept}
	if !w.o.inViews { // a picture's scores are its tokens', one each
		sel.scores = map[string][]float32{"gain": float32s(gains)}
	}
	return sel, nil
}

// mmTokTextRows returns the cosines of each token to all rows of text.
func mmTokTextRows[T float32 | float64](w *work) ([][]T, error) {
	in := w.in
	n, rows := in.N, len(in.Text)/in.C
	if rows > mmTokWords {
		return nil, refused("base", errs.TooLarge, w.o.Base, fmt.Sprintf(
			"a question of at most %d tokens", mmTokWords), fmt.Sprintf("it has %d", rows))
	}
	out, all := make([][]T, n), make([]T, n*rows)
	for j := range out {
		out[j] = all[j*rows:][:rows]
	}
	both := append(slices.Clone(in.X), in.Text...)
	c, err := columnsOf(w.pool, both, n+rows, in.C, rows*n*in.C <= wideWork, "X and text")
	if err != nil {
		return nil, err
	}
	for lo := 0; lo < rows; lo += fewColumns {
		list := iota32(n + min(lo+fewColumns, rows))[n+lo:]
		c.load(list)
		for i, t := range list {
			for j, v := range c.to(t)[:n] {
				out[j][lo+i] = T(v)
			}
		}
		clear(c.col)
	}
	return out, nil
}

// softmaxRows replaces cosines, given by column, by the softmax of each row, times weight.
func softmaxRows[T float32 | float64](
	p *kernel.Pool, cols [][]T, temperature, weight float64,
) {
	rows := len(cols[0])
	most, sum := slices.Repeat([]T{T(math.Inf(-1))}, rows), make([]float64, rows)
	for _, col := range cols {
		for i, v := range col {
			most[i] = max(most[i], v)
		}
	}
	p.Run(len(cols), func(j int) {
		for i, v := range cols[j] {
			cols[j][i] = T(math.Exp((float64(v) - float64(most[i])) / temperature))
		}
	})
	for _, col := range cols {
		for i, v := range col {
			sum[i] += float64(v)
		}
	}
	p.Run(len(cols), func(j int) {
		for i, v := range cols[j] {
			cols[j][i] = T(float64(v) * (weight / sum[i]))
		}
	})
}

// answerForms are sentences of benchmarks that say how to answer, and ask nothing.
var answerForms = []string{
	"Answer the question using a single word or phrase.",
	"Answer with the option's letter from the given choices directly.",
}

// BareQuestion returns a question without the usual sentences about the form of the answer, or all
// of it if nothing else is left.
func BareQuestion(text string) string {
	bare := text
	for _, form := range answerForms {
		bare = strings.ReplaceAll(bare, form, "")
	}
	if bare = strings.TrimSpace(bare); bare == "" {
		return text
	}
	return bare
}
