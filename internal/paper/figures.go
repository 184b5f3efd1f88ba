package paper

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/table"
)

// figureTitles are the figures that show measurements.
var figureTitles = map[int]string{
	2: "Attention that visual tokens receive, by layer",
	3: "Decay of attention with distance, and the calibration term",
	4: "Accuracy against latency",
	5: "Attention that visual tokens receive, by layer, with renumbered positions too",
}

// Figures are the numbers of these figures.
var Figures = []int{2, 3, 4, 5}

// noNumbers notes that there are no values to compare with.
const noNumbers = "The paper prints no numbers in this figure."

// figureTitle is a figure's title with the model and the data that were measured.
func (d *draft) figureTitle(number int) string {
	return fmt.Sprintf("Figure %d. %s. Measured: %s on %s.",
		number, figureTitles[number], d.Name(), d.src.title())
}

// attentionSettings are the lines of Figures 2 and 5.
func attentionSettings(number int) (names []string, all []Setting) {
	plain := holov
	plain.Plain = true
	names = []string{"all tokens", "HoloV, renumbered", "HoloV, original positions", "HoloV + ours"}
	all = []Setting{full, plain, plain.with("positions", "original"), holov}
	if number == 5 {
		names = append(names, "HoloV + ours, renumbered")
		all = append(all, holov.with("positions", "sequential"))
	}
	return names, all
}

// attention makes Figures 2 and 5.
func (d *draft) attention(number int) (*table.Table, []chart.Panel) {
	names, settings := attentionSettings(number)
	p, why := d.picturesOf(d.src.main(), attended)
	out := &table.Table{Title: d.figureTitle(number), Columns: []table.Column{{Name: "layer"}}}
	shares := make([]lab.AttentionShare, len(settings)) // in percent
	whys := make([]string, len(settings))
	for i, s := range settings {
		out.Columns = append(out.Columns, table.Column{Name: names[i], Decimals: 2})
		if whys[i] = why; why == "" {
			shares[i], whys[i] = d.share(p, s)
		}
	}
	for k, title := range []string{"Visual-to-visual attention, %", "Text-to-visual attention, %"} {
		of := func(s lab.AttentionShare) []float64 { return [][]float64{s.Visual, s.Text}[k] }
		out.Rows = append(out.Rows, table.Row{title})
		for layer := range layers(shares) {
			row := table.Row{layer}
			for i := range settings {
				row = append(row, d.cell(at(of(shares[i]), layer), whys[i]))
			}
			out.Rows = append(out.Rows, row)
		}
	}
	out.Notes = d.notes()
	if why == "" {
		out.Notes = append(out.Notes, fmt.Sprintf("Means over %d pictures, heads and queries; "+
			"%d of 576 tokens, or that share. %s", len(p.questions), budget, noNumbers))
	}
	return d.finish(out), lab.AttentionPanels("tokens", names, shares, 1)
}

func at(v []float64, i int) float64 {
	if i < len(v) {
		return v[i]
	}
	return 0
}

// layers is the number of layers in the longest share.
func layers(all []lab.AttentionShare) (n int) {
	for _, s := range all {
		n = max(n, len(s.Text))
	}
	return n
}

// share measures one line of Figures 2 and 5.
func (d *draft) share(p *measured, s Setting) (out lab.AttentionShare, why string) {
	_, how, why := d.resolve(s)
	if why != "" {
		return out, why
	}
	n := float64(len(p.questions))
	left := d.take(len(p.questions), s)
	d.measure("attention", []any{p.of, s.key()}, left, &out, func() error {
		for _, q := range p.questions {
			encoded, err := lab.Encode(d.ctx, d.engine(), q.Images)
			if err != nil {
				return err
			}
			x, err := lab.Attention(d.ctx, d.engine(), q.Text, nil, encoded, how)
			if err != nil {
				return err
			}
			if out.Text == nil {
				out.Visual = make([]float64, len(x.Visual))
				out.Text = make([]float64, len(x.Text))
			}
			for layer := range x.Text {
				out.Visual[layer] += 100 * x.Visual[layer] / n
				out.Text[layer] += 100 * x.Text[layer] / n
			}
		}
		return nil
	})
	return out, ""
}

// The model of Figure 3: the decoder of LLaVA-1.5-7B.
const (
	decayHead = 128
	decayBase = 10000
	decayTo   = 640
)

// decay makes Figure 3.
func decay() (*table.Table, []chart.Panel) {
	out := &table.Table{
		Title: "Figure 3. " + figureTitles[3] + ". Computed: Eqs. 3 and 4 with s_n = 1 for " +
			"LLaVA-1.5-7B, whose heads have 128 numbers and whose RoPE has base 10000.",
		Columns: []table.Column{
			{Name: "distance"}, {Name: "D", Decimals: 4}, {Name: "log(c - D)", Decimals: 4},
		},
		Notes: []string{noNumbers},
	}
	rope := nn.NewRoPE(decayHead, decayBase, nil)
	lines := []chart.Series{
		{
			Name:  "D(|m - n|)",
			Style: 0,
			Bare:  true,
		}, {Name: "log(c - D(|m - n|))", Style: 1, Bare: true},
	}
	for d := range decayTo + 1 {
		D := rope.Decay(float64(d))
		for i, v := range []float64{D, nn.CalibrationBias(1, D)} {
			lines[i].X, lines[i].Y = append(lines[i].X, float64(d)), append(lines[i].Y, v)
		}
		if d%16 == 0 {
			out.Rows = append(out.Rows, table.Row{d, D, nn.CalibrationBias(1, D)})
		}
	}
	return out, []chart.Panel{{X: "relative distance", Series: lines}}
}

// tradeoffBudgets are the points of Figure 4's lines.
var tradeoffBudgets = []int{192, 128, 64, 32}

// tradeoff makes Figure 4.
func (d *draft) tradeoff() (*table.Table, []chart.Panel) {
	columns := []column{{name: "GQA", key: "gqa"}, {name: "MMBench", key: "mmbench-en"}}
	if d.src.Scenes {
		columns = []column{{name: "drawn scenes", key: bench.ScenesName}}
	}
	settings, names := []Setting{full}, []string{"all tokens"}
	for _, plain := range []bool{true, false} {
		for _, n := range tradeoffBudgets {
			s := holov
			s.NVis, s.Plain = n, plain
			settings = append(settings, s)
			names = append(names, map[bool]string{true: "HoloV", false: "HoloV + ours"}[plain])
		}
	}
	out := &table.Table{Title: d.figureTitle(4), Columns: []table.Column{
		{Name: "method"}, {Name: "tokens"}, {Name: "ms a question", Decimals: 1},
		{Name: "first token, ms", Decimals: 1}, {Name: "accuracy, %", Decimals: 1},
	}}
	var panels []chart.Panel
	for _, c := range columns {
		times := d.timings(c.key, settings)
		panel := chart.Panel{Title: c.name, X: "ms a question", Y: "accuracy (%)"}
		out.Rows = append(out.Rows, table.Row{c.name})
		for i, s := range settings {
			v, why := d.figure(s, c)
			tokens := any(s.NVis)
			if i == 0 {
				tokens = nil
			}
			x := times[i]
			out.Rows = append(out.Rows, table.Row{names[i], tokens, d.cell(1000*x.Seconds, x.why),
				d.cell(1000*x.FirstToken, x.why), d.cell(v, why)})
			if x.why == "" && why == "" {
				addPoint(&panel, names[i], 1000*x.Seconds, v)
			}
		}
		panels = append(panels, panel)
	}
	out.Notes = append(d.notes(), fmt.Sprintf("Times are medians over up to %d questions, each "+
		"asked alone with its picture, settings in turns. %s", timed, noNumbers))
	return d.finish(out), panels
}

// addPoint adds a point to the line with that name.
func addPoint(p *chart.Panel, name string, x, y float64) {
	i := slices.IndexFunc(p.Series, func(s chart.Series) bool { return s.Name == name })
	if i < 0 {
		i = len(p.Series)
		p.Series = append(p.Series, chart.Series{Name: name, Style: i})
	}
	s := &p.Series[i]
	s.X, s.Y = append(s.X, x), append(s.Y, y)
}
