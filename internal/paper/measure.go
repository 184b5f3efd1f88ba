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
func (mk *Maker) timings(ctx context.Context, src *Source, name string,
	settings []Setting) ([]timing, error) {
	p, why, err := mk.picturesOf(src, name, timed)
	if err != nil {
		return nil, err
	}
	out := make([]timing, len(settings))
	how := make([]*restore.Reduction, len(settings))
	var left time.Duration
	for i, s := range settings {
		if out[i].why = why; why == "" {
			how[i], _, out[i].why = mk.resolve(s)
			left += mk.take(len(p.questions), s)
		}
	}
	if why != "" {
		return out, nil
	}
	of := []any{mk.machine(), p.of, fmt.Sprint(settings)}
	medians := make([]timing, len(settings))
	err = mk.kept("times", of, left, &medians, func() error {
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
				x, err := mk.time(ctx, restore.Request{
					Prompt: q.Text, System: mk.System, Pictures: []*restore.Picture{pic},
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
	if err == nil && len(medians) != len(out) {
		err = fmt.Errorf("paper: %s: times of %d settings on record, want %d", mk.Records,
			len(medians), len(out))
	}
	if err != nil {
		return nil, err
	}
	for i := range medians {
		medians[i].why = out[i].why
		if mk.work != nil {
			medians[i].why = planned
		}
	}
	return medians, nil
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
func (mk *Maker) latency(ctx context.Context, t *printed, src *Source) (*table.Table, error) {
	settings := t.settings()
	name := src.main()
	times, err := mk.timings(ctx, src, name, settings)
	if err != nil {
		return nil, err
	}
	out := &table.Table{Title: mk.title(t, src), Columns: []table.Column{
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
	m := &marks{}
	var whole float64
	for i, s := range settings {
		v, why, err := mk.figure(ctx, src, s, column{name: "GQA", key: name})
		if err != nil {
			return nil, err
		}
		if i == 0 {
			whole = v
		}
		x, all := times[i], times[0]
		var ours [6]any
		for k := range ours {
			ours[k] = m.cell(0, x.why)
		}
		if x.why == "" {
			ours = [6]any{1000 * x.Seconds, all.Seconds / x.Seconds, 1000 * x.FirstToken,
				all.FirstToken / x.FirstToken, 1000 * x.Prefill, mk.cacheMB(x.Rows)}
		}
		var change any
		if i > 0 && why == "" && whole > 0 {
			change = 100 * (v - whole) / whole
		}
		out.Rows = append(out.Rows, table.Row{
			mk.rowName(t, i),
			ours[0], ours[1], t.value(i, "Total Inference Speedup"),
			ours[2], t.value(i, "Prefill Time"), ours[3], t.value(i, "Prefill Speedup"),
			ours[4], ours[5],
			m.cell(v, why), t.value(i, "Accuracy"), change, t.value(i, "Accuracy Δ"),
		})
	}
	out.Notes = append(m.notes(), fmt.Sprintf("Times are medians over up to %d questions, each "+
		"asked alone with its picture, settings in turns; the paper's are of all of GQA on eight "+
		"GPUs. Its prefill is compared with our first token, which includes the encoder.", timed))
	return mk.finish(out, t, src), nil
}

// main is the benchmark on which the paper measures times, attention and distances.
func (s *Source) main() string {
	if s.Scenes {
		return bench.ScenesName
	}
	return "gqa"
}

// distances makes Table 18.
func (mk *Maker) distances(ctx context.Context, t *printed, src *Source) (*table.Table, error) {
	out := &table.Table{Title: mk.title(t, src), Columns: []table.Column{{Name: "method"}}}
	for _, c := range t.Columns[1:] {
		out.Columns = append(out.Columns, table.Column{Name: c, Decimals: 4}, paperColumn(c, 4))
	}
	p, why, err := mk.picturesOf(src, src.main(), distanced)
	if err != nil {
		return nil, err
	}
	m := &marks{}
	for i, base := range four {
		row := table.Row{base}
		for j, s := range reductions(base) {
			var mean float64
			_, how, whyNot := mk.resolve(s)
			if why != "" {
				whyNot = why
			}
			if whyNot == "" {
				left := mk.take(len(p.questions), s)
				err = mk.kept("distance", []any{p.of, s.key()}, left, &mean, func() error {
					for _, q := range p.questions {
						encoded, err := lab.Encode(ctx, mk.engine(), q.Images)
						if err != nil {
							return err
						}
						d, err := lab.Hausdorff(ctx, mk.engine(), encoded, how)
						if err != nil {
							return err
						}
						mean += d[0] / float64(len(p.questions))
					}
					return nil
				})
				if err != nil {
					return nil, err
				}
			}
			row = append(row, m.cell(mean, whyNot), t.value(i, t.Columns[1+j]))
		}
		out.Rows = append(out.Rows, row)
	}
	out.Notes = m.notes()
	if why == "" {
		out.Notes = append(out.Notes,
			fmt.Sprintf("Means over %d pictures; lower is better.", len(p.questions)))
	}
	return mk.finish(out, t, src), nil
}
