package methods

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/reduce"
)

// Fitting finds FitPrune's schedules: how many rows each layer can drop before too much of the
// attention that rows receive is lost.
type Fitting struct {
	Layers, Hidden, MLP int // sizes of the decoder
	Tokens              int // tokens of every question's picture
	Questions           int
	// Run runs the decoder on question i; p follows the picture's rows.
	Run func(i int, p *Inside) error

	whole   [][][2]float64      // by question and layer: attention received without pruning
	dropped map[float64][][]int // by share of attention lost, question and layer: rows dropped
}

// FitTrial is one step of the search for a schedule.
type FitTrial struct {
	Alpha   float64 // share of attention that may be lost
	Reached bool    // whether the cut was reached
	Drop    []int   // [Layers]
}

// FitTrials is how many trials the bisection for a cut takes: 2^-7 is the first power below
// fitStep.
const FitTrials = 7

// fitStep is the precision at which the bisection ends.
const fitStep = 0.01 + 1e-6

// Schedule finds the schedule that cuts the decoder's work on visual rows by the share cut, and
// returns the steps of the search. It reuses trials of earlier calls.
func (f *Fitting) Schedule(cut float64) (RecipeSchedule, []FitTrial, error) {
	s := RecipeSchedule{Cut: cut}
	if !(cut > 0 && cut < 1) {
		return s, nil, fmt.Errorf("methods: cut: got %v, want more than 0 and less than 1", cut)
	}
	if f.Layers < 1 || f.Layers > recipeLayers || f.Tokens < 1 || f.Questions < 1 {
		return s, nil, fmt.Errorf(
			"methods: fitting: got %d layers, %d tokens, %d questions, want at least 1 of "+
				"each and at most %d layers", f.Layers, f.Tokens, f.Questions, recipeLayers)
	}
	var trials []FitTrial
	for lo, hi := 0.0, 1.0; hi-lo > fitStep; {
		alpha := (lo + hi) / 2
		dropped, err := f.trial(alpha)
		if err != nil {
			return s, nil, err
		}
		t := FitTrial{Alpha: alpha}
		if t.Drop, t.Reached = f.replay(cut, dropped); t.Reached {
			s.Drop, hi = t.Drop, alpha
		} else {
			lo = alpha
		}
		trials = append(trials, t)
	}
	if s.Drop == nil {
		return s, trials, fmt.Errorf("methods: cut: got %v, which no trial reaches, want less", cut)
	}
	return s, trials, nil
}

// trial returns what each question's layers drop if the share alpha of attention may be lost.
func (f *Fitting) trial(alpha float64) ([][]int, error) {
	if f.whole == nil {
		f.whole = make([][][2]float64, f.Questions)
		for q := range f.whole {
			f.whole[q] = make([][2]float64, f.Layers)
			err := f.Run(q, f.probe(func(layer int, self, cross []float64) []bool {
				f.whole[q][layer] = [2]float64{total(self), total(cross)}
				return make([]bool, len(self))
			}))
			if err != nil {
				return nil, err
			}
		}
		f.dropped = map[float64][][]int{}
	}
	if d, ok := f.dropped[alpha]; ok {
		return d, nil
	}
	dropped := make([][]int, f.Questions)
	for q := range dropped {
		dropped[q] = make([]int, f.Layers)
		err := f.Run(q, f.probe(func(layer int, self, cross []float64) []bool {
			go1, go2 := spare(self, (1-alpha)*f.whole[q][layer][0]),
				spare(cross, (1-alpha)*f.whole[q][layer][1])
			for i := range go1 {
				if go1[i] = go1[i] && go2[i]; go1[i] {
					dropped[q][layer]++
				}
			}
			return go1
		}))
		if err != nil {
			return nil, err
		}
	}
	f.dropped[alpha] = dropped
	return dropped, nil
}

// probe returns an Inside that drops, in every layer, the rows that choose marks from the averages
// over rows.
func (f *Fitting) probe(choose func(layer int, self, cross []float64) []bool) *Inside {
	o := &Plan{method: fitPruneMethod, facts: Facts{Tokens: f.Tokens, Layers: f.Layers}}
	o.Base, o.N, o.NVis = fitPruneMethod.Name, f.Tokens, f.Tokens
	o.Positions, o.Calibrate = "original", "off"
	for l := range f.Layers {
		o.Stages = append(o.Stages, reduce.Stage{Layer: l})
	}
	return newInside(
		o, &insideMethod{
			after: 1, within: true, looks: fitLooks,
			score: func(s *Inside, v *Sight, look []float32) ([]float32, error) {
				self, cross := fitSums(s, v, look)
				text := max(1, len(v.Text))
				for j := range self {
					self[j] /= float64(len(self))
					cross[j] /= float64(text)
				}
				st := s.stage()
				out := choose(st.Layer, self, cross)
				score := make([]float32, len(out))
				for i, gone := range out {
					if !gone {
						score[i] = 1
						st.Kept++
					}
				}
				return score, nil
			}})
}

// replay adds up the decoder's work on visual rows, layer by layer, and stops pruning when the
// remaining layers can run unpruned and still reach the cut.
func (f *Fitting) replay(cut float64, dropped [][]int) (drop []int, reached bool) {
	drop = make([]int, f.Layers)
	rows := slices.Repeat([]int{f.Tokens}, f.Questions)
	budget := (1 - cut) * float64(f.Layers) * f.work(f.Tokens, 4, 2, 3) * float64(f.Questions)
	used := 0.0
	for l := range f.Layers {
		rest := 0.0
		for _, n := range rows {
			used += f.work(n, 3, 2, 0)
			rest += f.work(n, 1, 0, 3) + float64(f.Layers-1-l)*f.work(n, 4, 2, 3)
		}
		if used+rest <= budget {
			return drop, true
		}
		sum := 0
		for q := range rows {
			sum += dropped[q][l]
			rows[q] -= dropped[q][l]
			used += f.work(rows[q], 1, 0, 3)
		}
		drop[l] = sum / f.Questions
	}
	return drop, false
}

// work is p·n·d² + a·n²·d + m·n·d·MLP multiply-adds for n rows of width d: projections, attention
// and the gated layers.
func (f *Fitting) work(n int, p, a, m float64) float64 {
	x, d := float64(n), float64(f.Hidden)
	return p*x*d*d + a*x*x*d + m*x*d*float64(f.MLP)
}

// spare marks the rows of lowest value that can be dropped before the sum of the others falls below
// least, minus one row. One row always stays.
func spare(v []float64, least float64) []bool {
	order := iota32(len(v))
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(v[a], v[b]) })
	gone, left := 0, total(v)
	for gone < len(v) && left >= least {
		left -= v[order[gone]]
		gone++
	}
	mark := make([]bool, len(v))
	for _, r := range order[:max(gone-1, 0)] {
		mark[r] = true
	}
	return mark
}

func total(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum
}
