package methods

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// A method inside the decoder shrinks a picture's rows by a schedule of stages: one given as text,
// or one that the method plans for a budget (see search.go).

// step is one entry of a given schedule.
type step struct {
	layer, count int
	share        float64 // used when count is -1
}

// parseSchedule reads "layer:count" and "layer:share" entries separated by commas: a whole
// number is a count of rows, one with a decimal point a share of the picture's tokens.
func parseSchedule(text string) ([]step, error) {
	bad := func(format string, a ...any) error {
		return refused("schedule", errs.Invalid, strconv.Quote(text),
			"LAYER:COUNT or LAYER:SHARE, as in 2:0.5,16:64", fmt.Sprintf(format, a...))
	}
	var steps []step
	for entry := range strings.SplitSeq(text, ",") {
		layer, amount, ok := strings.Cut(strings.TrimSpace(entry), ":")
		if !ok {
			return nil, bad("no colon in %q", entry)
		}
		l, err := strconv.Atoi(layer)
		if err != nil || l < 0 {
			return nil, bad("layer %q is no whole number of at least 0", layer)
		}
		if n := len(steps); n > 0 && steps[n-1].layer >= l {
			return nil, bad("layer %d does not come after %d", l, steps[n-1].layer)
		}
		s := step{layer: l, count: -1}
		if c, err := strconv.Atoi(amount); err == nil {
			if c < 1 {
				return nil, bad("count %d is less than 1", c)
			}
			s.count = c
		} else if s.share, err = strconv.ParseFloat(amount, 64); err != nil ||
			!(s.share > 0 && s.share <= 1) {
			return nil, bad("%q is neither a count nor a share above 0 and at most 1", amount)
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// declareLayers declares a parameter that lists layers from first on; count is how many there must
// be, any number if omitted.
func declareLayers(d *reduce.Declaration, v *[]int, first int, p reduce.Parameter, count ...int) {
	p.Kind, p.Unit = reduce.Text, "layers"
	if p.Want == "" {
		p.Want = fmt.Sprintf("ascending layers from %d on, as in 8,16,24", first)
	}
	d.Func(p, func(x any) error {
		var layers []int
		for entry := range strings.SplitSeq(x.(string), ",") {
			l, err := strconv.Atoi(strings.TrimSpace(entry))
			if n := len(layers); err != nil || l < first || n > 0 && layers[n-1] >= l {
				return fmt.Errorf("%q does not fit", entry)
			}
			layers = append(layers, l)
		}
		if len(count) > 0 && len(layers) != count[0] {
			return fmt.Errorf("there are %d", len(layers))
		}
		*v = layers
		return nil
	}, func() any { return *v })
}

// commas joins numbers with commas.
func commas(v []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(v), " ", ","), "[]")
}

// stages returns the schedule for p.N tokens and the mean number of tokens that enter a layer (0 if
// the depth is not known).
func (p *Plan) stages(o *Options) (stages []reduce.Stage, mean float64, err error) {
	in, layers := p.inside, p.facts.Layers
	switch {
	case o.Schedule != "" && (o.NVis != 0 || o.KeepRatio != 0):
		return nil, 0, conflict("schedule", o.Schedule, o)
	case o.Schedule != "":
		stages, err = p.explicit(o.Schedule)
	default:
		var budget int
		if budget, err = o.budget(p.N); err != nil {
			return nil, 0, err
		}
		switch {
		case budget == p.N:
		case layers == 0:
			return nil, 0, refused("base", errs.Conflict, p.Base, "a schedule instead of a budget",
				fmt.Sprintf("a mean of %d tokens a layer needs a model, and there is none", budget))
		default:
			stages, err = in.plan(p, budget)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	before := p.N
	for i, s := range stages {
		if s, err = p.checkStage(s, before); err != nil {
			return nil, 0, err
		}
		stages[i], before = s, s.Rows()
	}
	mean = p.meanRows(stages)
	// Skip a stage that removes nothing.
	before = p.N
	stages = slices.DeleteFunc(stages, func(s reduce.Stage) bool {
		same := s.Rows() == before
		before = s.Rows()
		return same
	})
	if o.Restore {
		for i := range stages {
			rows := stages[i].Rows()
			stages[i].Kept = int(o.gamma() * float64(rows))
			stages[i].Merged = rows - stages[i].Kept
		}
	}
	return stages, mean, nil
}

// checkStage refuses a stage that the method or the model does not have, or that would leave more
// rows than enter it. It returns the stage with the rows that the plain method adds.
func (p *Plan) checkStage(s reduce.Stage, before int) (reduce.Stage, error) {
	in, layers := p.inside, p.facts.Layers
	highest := layers - 1 - in.after + btoi(in.within)
	switch {
	case s.Layer < in.first:
		return s, refused("schedule", errs.TooSmall, fmt.Sprintf("layer %d", s.Layer),
			fmt.Sprintf("%d or more", in.first), "for "+p.Base)
	case layers > 0 && s.Layer > highest:
		return s, refused("schedule", errs.TooLarge, fmt.Sprintf("layer %d", s.Layer),
			fmt.Sprintf("%d to %d", in.first, highest),
			fmt.Sprintf("for %s: the model has %d layers", p.Base, layers))
	case s.Kept > before:
		return s, refused("schedule", errs.TooLarge,
			fmt.Sprintf("%d rows at layer %d", s.Kept, s.Layer),
			fmt.Sprintf("at most %d", before), "those that enter the stage")
	case in.merge != nil && s.Kept < before:
		return in.merge(before, s)
	}
	return s, nil
}

// explicit converts a given schedule to stages.
func (p *Plan) explicit(schedule string) ([]reduce.Stage, error) {
	steps, err := parseSchedule(schedule)
	if err != nil {
		return nil, err
	}
	mixed := slices.ContainsFunc(steps, func(s step) bool {
		return (s.count < 0) != (steps[0].count < 0)
	})
	var stages []reduce.Stage
	for _, s := range steps {
		if p.facts.any && mixed {
			s.count = 1
		}
		if s.count < 0 {
			if s.count = p.inside.share(p.N, s.share); s.count < 1 {
				return nil, refused("schedule", errs.TooSmall,
					fmt.Sprintf("a share of %v at layer %d", s.share, s.layer), "more",
					fmt.Sprintf("that is no token of %d", p.N))
			}
		}
		stages = append(stages, reduce.Stage{Layer: s.layer, Kept: s.count})
	}
	return stages, nil
}

// LayerRows returns how many of the picture's rows enter each of the first layers of the decoder,
// and how many remain after attention.
func (p *Plan) LayerRows(layers int) (enter, leave []int) {
	enter, leave = make([]int, layers), make([]int, layers)
	rows, within, after := p.start(), false, 0
	if p.inside != nil {
		within, after = p.inside.within, p.inside.after
	}
	for l := range layers {
		for _, s := range p.Stages {
			if !within && s.Layer+after == l {
				rows = s.Rows()
			}
		}
		enter[l] = rows
		for _, s := range p.Stages {
			if within && s.Layer == l {
				rows = s.Rows()
			}
		}
		leave[l] = rows
	}
	return enter, leave
}

// start is the number of the picture's rows that enter the decoder.
func (p *Plan) start() int {
	switch {
	case p.first != nil:
		return p.first.NVis
	case p.inside != nil:
		return p.N
	}
	return p.NVis
}

// EncoderRows returns how many of the picture's tokens enter each of the first blocks of the
// encoder, and how many remain after attention. It does not count the class token.
func (p *Plan) EncoderRows(blocks int) (enter, leave []int) {
	p = p.BeforeDecoder()
	enter, leave = make([]int, blocks), make([]int, blocks)
	rows, m := p.N, p.method
	if m.Site == reduce.BeforeEncoder {
		rows = p.NVis
	}
	merging, _ := p.own.(interface{ left(block, rows int) int })
	for b := range blocks {
		enter[b] = rows
		switch {
		case m.encoder == nil:
		case merging != nil:
			rows = merging.left(b, rows)
		case b == p.EncoderBlocks-1:
			rows, enter[b] = p.NVis, p.NVis
		}
		leave[b] = rows
	}
	return enter, leave
}
