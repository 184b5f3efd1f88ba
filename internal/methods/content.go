package methods

// Budgets by content (not in the paper). The gains of covered anchors, chosen with nothing kept,
// say how much each token adds to the earlier ones. The number of gains above a threshold measures
// the picture's content.

import (
	"fmt"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

// contentSharpness is the sharpness of the kernel exp(−2(1−C_ij)), the same for all pictures.
const contentSharpness = 2

// Gains returns the first most gains of a picture's tokens x [n, width], fewer if it has fewer
// tokens. They never rise. About n·most·width multiply-adds.
func Gains(p *kernel.Pool, x []float32, n, width, most int) ([]float64, error) {
	most = min(most, n)
	c, err := newColumns(p, x, n, width, most, "X")
	if err != nil {
		return nil, err
	}
	_, gains := newDeterminant(c, contentSharpness, nil, most).pick(most)
	return gains, nil
}

// contentCount is the number of gains above a threshold, and the budget: that number limited to
// between half the mean and twice it, and to the picture's n tokens.
func contentCount(gains []float64, threshold float64, mean, n int) (above, budget int) {
	for above < len(gains) && gains[above] > threshold {
		above++
	}
	return above, min(max(above, (mean+1)/2), 2*mean, n)
}

// The effect of the guard on a dense picture.
const (
	guardBudget = 2    // factor of the budget
	guardGamma  = 0.75 // the default of gamma then
)

// content turns a budget by content into a number of tokens, and raises budget and gamma if the
// guard finds the picture dense. It changes o to the picture's options.
func (p *Plan) content(o *Options) error {
	if o.AutoMean == 0 && !o.Guard {
		return nil
	}
	ask := contentAsk{"guard", "true"} // the parameter that needs the picture
	if o.AutoMean > 0 {
		ask = contentAsk{"n-vis", autoText(o.AutoMean)}
	}
	switch site := p.method.Site; {
	case site == reduce.BeforeEncoder || site == reduce.InsideEncoder:
		return ask.refused("a method after the encoder",
			p.Base+" acts before there are features to look at")
	case o.AutoMean > 0 && o.KeepRatio != 0:
		return ask.refused("one budget", fmt.Sprintf("keep-ratio %v is given too", o.KeepRatio))
	case o.Schedule != "":
		return conflict("schedule", o.Schedule, o)
	}
	if p.facts.any {
		if o.AutoMean > 0 {
			o.NVis, o.AutoMean = o.AutoMean, 0
		}
		return nil
	}
	mean, err := max(o.AutoMean, o.NVis), error(nil)
	if mean == 0 {
		if mean, err = p.budget(o); err != nil {
			return err
		}
	}
	known, err := p.known(mean, o, ask)
	if err != nil {
		return err
	}
	if p.facts.Gains == nil {
		return ask.refused("a number of tokens", "there is no picture to look at")
	}
	gains, err := p.facts.Gains(2 * mean)
	if err != nil {
		return err
	}
	if o.AutoMean > 0 {
		above, n := contentCount(gains, known.Threshold, mean, p.N)
		p.Content = &reduce.Content{Mean: mean, Threshold: known.Threshold, Above: above}
		o.NVis, o.AutoMean = n, 0
	} else {
		o.NVis, o.KeepRatio = mean, 0
	}
	if o.Guard && mean <= len(gains) { // a smaller picture keeps all tokens, or is refused
		p.guard(o, gains[mean-1], known.Guard)
	}
	return nil
}

// guard raises budget and gamma of a picture whose gain at the budget exceeds a threshold.
func (p *Plan) guard(o *Options, gain, threshold float64) {
	if p.Content == nil {
		p.Content = new(reduce.Content)
	}
	p.Content.Gain, p.Content.Guard, p.Content.Raised = gain, threshold, gain > threshold
	if !p.Content.Raised {
		return
	}
	o.NVis = min(guardBudget*o.NVis, p.N)
	if o.Gamma == nil && !p.method.whole {
		o.Gamma = new(guardGamma)
	}
}

// contentAsk is the parameter that needs the picture's content, and its value.
type contentAsk struct{ name, got string }

func (a contentAsk) refused(want, why string) error {
	return refused(a.name, errs.Conflict, a.got, want, why)
}

// known returns the entry for a mean, from the given budgets or else from the model's.
func (p *Plan) known(mean int, o *Options, ask contentAsk) (*ContentBudget, error) {
	b, err := o.Budgets, error(nil)
	if b == nil && p.facts.Budgets != nil {
		if b, err = p.facts.Budgets(); err != nil {
			return nil, err
		}
	}
	if b == nil {
		return nil, refused("budget-file", errs.Missing, "",
			"a file of budgets, and the model has none", "")
	}
	var have []int
	for i := range b.Means {
		if b.Means[i].Mean == mean {
			return &b.Means[i], nil
		}
		have = append(have, b.Means[i].Mean)
	}
	return nil, ask.refused("a budget among "+commas(have), "those that the file of budgets has")
}

// autoText is the text of a budget by content.
func autoText(mean int) string { return fmt.Sprint(reduce.AutoPrefix, mean) }
