package paper

import (
	"context"
	"fmt"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/internal/table"
)

// Sizes of measurements for which the paper gives none.
const (
	timed     = 24  // questions for Table 9 and Figure 4
	attended  = 20  // pictures for Figures 2 and 5
	distanced = 100 // pictures for Table 18
)

// timing is the time of a question with its picture: medians over questions.
type timing struct {
	Seconds    float64 // until the answer is complete
	FirstToken float64
	Prefill    float64 // of this, the decoder's time
	Rows       float64 // rows of keys and values in the cache
	why        string  // why there is no timing
}

// timings asks questions, each with its picture as if it were the only one, under all settings in
// turns.
func (d *draft) timings(name string, settings []Setting) []timing {
	p, why := d.picturesOf(name, timed)
	out := make([]timing, len(settings))
	how := make([]*restore.Reduction, len(settings))
	var left time.Duration
	for i, s := range settings {
		if out[i].why = why; why == "" {
			how[i], _, out[i].why = d.resolve(s)
			left += d.take(len(p.questions), s)
		}
	}
	if why != "" {
		return out
	}
	of := []any{d.machine(), p.of, fmt.Sprint(settings)}
	medians := make([]timing, len(settings))
	d.measure("times", of, left, &medians, func() error {
		taken := make([][]timing, len(settings))
		for at := -1; at < len(p.questions); at++ { // -1 is a warm-up
			q := p.questions[max(0, at)]
			pic, err := q.Images[0].Picture()
			if err == nil {
				_, err = pic.Decode() // before the time starts
			}
			if err != nil {
				return err
			}
			for i := range settings {
				if out[i].why != "" {
					continue
				}
				x, err := d.time(d.ctx, restore.Request{
					Prompt: q.Text, System: d.System, Pictures: []*restore.Picture{pic},
					Reduction: how[i], MaxTokens: answerTokens, NoCache: true,
				})
				if err != nil {
					return err
				}
				if at >= 0 {
					taken[i] = append(taken[i], x)
				}
			}
		}
		for i := range medians {
			medians[i] = timing{
				Seconds:    median(taken[i], func(t timing) float64 { return t.Seconds }),
				FirstToken: median(taken[i], func(t timing) float64 { return t.FirstToken }),
				Prefill:    median(taken[i], func(t timing) float64 { return t.Prefill }),
				Rows:       median(taken[i], func(t timing) float64 { return t.Rows }),
			}
		}
		return nil
	})
	if len(medians) != len(out) {
		d.fail(fmt.Errorf("paper: %s: times of %d settings on record, want %d", d.Records,
			len(medians), len(out)))
		return out
	}
	for i := range medians {
		medians[i].why = out[i].why
		if d.work != nil {
			medians[i].why = planned
		}
	}
	return medians
}

// time asks one question as if it were the only one.
func (mk *Maker) time(ctx context.Context, req restore.Request) (timing, error) {
	start := time.Now()
	a, err := mk.Model.Ask(ctx, req)
	if err != nil {
		return timing{}, err
	}
	return timing{
		Seconds: time.Since(start).Seconds(), FirstToken: a.Timings.FirstToken.Seconds(),
		Prefill: a.Timings.Prefill.Seconds(),
		Rows:    float64(a.Usage.Prompt + a.Usage.Generated - 1),
	}, nil
}

// median is the median of a field; 0 without timings.
func median(all []timing, of func(timing) float64) float64 {
	var v []float64
	for _, t := range all {
		v = append(v, of(t))
	}
	if len(v) == 0 {
		return 0
	}
	return stats.Median(v)
}

// planned is a placeholder for figures while runs are counted.
const planned = "planned"

// answerTokens is the most tokens of a timed answer; answers to benchmarks are short.
const answerTokens = 16

// cacheMB is the memory of that many rows' keys and values; 0 if sizes are not known.
func (mk *Maker) cacheMB(rows float64) float64 {
	s := mk.engine().Info().Sizes
	if s == nil {
		return 0
	}
	bytes := 4.
	if mk.Model.Info().Settings["cache-type"] == "f16" {
		bytes = 2
	}
	return rows * bytes * 2 * float64(s.Text.Blocks*s.Text.Key) / 1e6
}

// latency makes Table 9.
func (d *draft) latency() *table.Table {
	t, name, settings := d.t, d.src.main(), d.t.settings()
	times := d.timings(name, settings)
	out := &table.Table{Title: d.title(), Columns: []table.Column{
		{Name: "method"},
		{Name: "ms a question", Decimals: 1},
		{Name: "total speed-up", Label: "faster", Decimals: 2}, paperColumn("total speed-up", 2),
		{Name: "first token, ms", Decimals: 1}, paperColumn("prefill, ms", 1),
		{Name: "first token speed-up", Label: "faster", Decimals: 2},
		paperColumn("prefill speed-up", 2),
		{Name: "prefill, ms", Decimals: 1}, {Name: "KV, MB", Decimals: 1},
		{Name: "accuracy", Decimals: 1}, paperColumn("accuracy", 1),
		{Name: "Δ, %", Decimals: 2, Signed: true},
		{Name: "Δ, %, paper", Label: "paper", Decimals: 2, Signed: true},
	}}
	var whole float64
	for i, s := range settings {
		v, why := d.figure(s, column{name: "GQA", key: name})
		if i == 0 {
			whole = v
		}
		x, all := times[i], times[0]
		var ours [6]any
		for k := range ours {
			ours[k] = d.cell(0, x.why)
		}
		if x.why == "" {
			ours = [6]any{1000 * x.Seconds, all.Seconds / x.Seconds, 1000 * x.FirstToken,
				all.FirstToken / x.FirstToken, 1000 * x.Prefill, d.cacheMB(x.Rows)}
		}
		var change any
		if i > 0 && why == "" && whole > 0 {
			change = 100 * (v - whole) / whole
		}
		out.Rows = append(out.Rows, table.Row{
			d.rowName(t, i),
			ours[0], ours[1], t.value(i, "Total Inference Speedup"),
			ours[2], t.value(i, "Prefill Time"), ours[3], t.value(i, "Prefill Speedup"),
			ours[4], ours[5],
			d.cell(v, why), t.value(i, "Accuracy"), change, t.value(i, "Accuracy Δ"),
		})
	}
	out.Notes = append(d.notes(), fmt.Sprintf("Times are medians over up to %d questions, each "+
		"asked alone with its picture, settings in turns; the paper's are of all of GQA on eight "+
		"GPUs. Its prefill is compared with our first token, which includes the encoder.", timed))
	return d.finish(out)
}

// main is the benchmark on which the paper measures times, attention and distances.
func (s *Source) main() string {
	if s.Scenes {
		return bench.ScenesName
	}
	return "gqa"
}

// distances makes Table 18.
func (d *draft) distances() *table.Table {
	columns := d.t.Columns[1:]
	out := &table.Table{Title: d.title(), Columns: []table.Column{{Name: "method"}}}
	for _, c := range columns {
		out.Columns = append(out.Columns, table.Column{Name: c, Decimals: 4}, paperColumn(c, 4))
	}
	p, why := d.picturesOf(d.src.main(), distanced)
	for i, base := range four {
		row := table.Row{base}
		for j, s := range reductions(base) {
			mean, whyNot := 0., why
			if why == "" {
				mean, whyNot = d.distance(p, s)
			}
			row = append(row, d.cell(mean, whyNot), d.t.value(i, columns[j]))
		}
		out.Rows = append(out.Rows, row)
	}
	out.Notes = d.notes()
	if why == "" {
		out.Notes = append(out.Notes,
			fmt.Sprintf("Means over %d pictures; lower is better.", len(p.questions)))
	}
	return d.finish(out)
}

// distance is the mean distance of pictures under a setting.
func (d *draft) distance(p *measured, s Setting) (mean float64, why string) {
	_, how, why := d.resolve(s)
	if why != "" {
		return 0, why
	}
	left := d.take(len(p.questions), s)
	d.measure("distance", []any{p.of, s.key()}, left, &mean, func() error {
		for _, q := range p.questions {
			encoded, err := lab.Encode(d.ctx, d.engine(), q.Images)
			if err != nil {
				return err
			}
			far, err := lab.Hausdorff(d.ctx, d.engine(), encoded, how)
			if err != nil {
				return err
			}
			mean += far[0] / float64(len(p.questions))
		}
		return nil
	})
	return mean, ""
}
