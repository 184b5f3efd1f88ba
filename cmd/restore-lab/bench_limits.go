package main

import (
	"fmt"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/stats"
)

// benchStage is a part of the time to the first token: medians over the repeats, in seconds.
type benchStage struct {
	Stage    string  `json:"stage"`
	Measured float64 `json:"measured_s"`
	// what the stage's multiply-adds would take at their peak; 0 for a stage of other work
	Limit float64 `json:"limit_s"`
}

// stagesOf splits the time to the first token of a cell's runs. Stages add up to it but for the
// time in the queue and the choice of the token.
func (j *benchJSON) stagesOf(c *benchCell) []benchStage {
	var out []benchStage
	add := func(name string, peak float64, f func(m *lab.Measurement) (time.Duration, int64)) {
		var spent, least []float64
		for _, m := range c.runs {
			t, operations := f(m)
			spent = append(spent, t.Seconds())
			if peak > 0 {
				least = append(least, float64(operations)/1e9/peak)
			}
		}
		s := benchStage{Stage: name, Measured: round(stats.Median(spent))}
		if len(least) > 0 {
			s.Limit = round(stats.Median(least))
		}
		out = append(out, s)
	}
	add("prepare", 0, func(m *lab.Measurement) (time.Duration, int64) { return m.Prepare, 0 })
	add("encode, products", j.Peaks.of(j.Encoder),
		func(m *lab.Measurement) (time.Duration, int64) {
			return m.EncodeWork.Products.Time, m.EncodeWork.Products.Operations
		})
	add("encode, attention", j.Peaks.ofAttention(j.Encoder),
		func(m *lab.Measurement) (time.Duration, int64) {
			return m.EncodeWork.Attention.Time, m.EncodeWork.Attention.Operations
		})
	add("encode, other", 0, func(m *lab.Measurement) (time.Duration, int64) {
		return m.Encode - m.EncodeWork.Products.Time - m.EncodeWork.Attention.Time, 0
	})
	add("select, merge", 0,
		func(m *lab.Measurement) (time.Duration, int64) { return m.Select + m.Merge, 0 })
	add("prefill, products", j.Peaks.of(c.quant),
		func(m *lab.Measurement) (time.Duration, int64) {
			return m.PrefillWork.Products.Time, m.PrefillWork.Products.Operations
		})
	peak := j.Peaks.FMA
	if c.quant == "q4" || c.quant == "q8" || c.quant == "bf16" { // attention rounds too
		peak = j.Peaks.ofAttention("bf16")
	}
	add("prefill, attention", peak, func(m *lab.Measurement) (time.Duration, int64) {
		return m.PrefillWork.Attention.Time, m.PrefillWork.Attention.Operations
	})
	add("prefill, other", 0, func(m *lab.Measurement) (time.Duration, int64) {
		return m.Prefill - m.PrefillWork.Products.Time - m.PrefillWork.Attention.Time, 0
	})
	return out
}

// limitsTable is the table of --limits.
func (j *benchJSON) limitsTable() [][]string {
	rows := [][]string{{"QUANT", "N-VIS", "STAGE", "MEASURED", "SHARE", "AT ITS LIMIT", "REACHED"}}
	for _, r := range j.Rows {
		limit := 0.0
		line := func(stage string, measured, limit float64) {
			at, reached := "-", "-"
			if limit > 0 {
				at, reached = cli.Seconds(limit), fmt.Sprintf("%.0f %%", 100*limit/measured)
			}
			rows = append(rows, []string{
				r.Quant, fmt.Sprint(r.NVis), stage, cli.Seconds(measured),
				fmt.Sprintf("%.1f %%", 100*measured/r.TTFTS), at, reached,
			})
		}
		for _, s := range r.Stages {
			line(s.Stage, s.Measured, s.Limit)
			limit += s.Limit
		}
		line("first token", r.TTFTS, limit)
	}
	return rows
}
