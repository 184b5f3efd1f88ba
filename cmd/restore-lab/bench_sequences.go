package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/stats"
)

// benchSequencesOptions are the flags of `restore-lab bench sequences`.
type benchSequencesOptions struct {
	benchOptions
	counts []int
	prompt int
	rows   []int
}

func newBenchSequences(a *cli.App) *cobra.Command {
	o := new(benchSequencesOptions)
	cmd := &cobra.Command{
		Use:   "sequences",
		Short: "Decode several sequences together, and stall them with another prompt",
		Long: `Decode 1, 2, 4, … sequences together and print how many tokens per second all of them produce. Then let --streams sequences run, read
a prompt of --rows rows while they run, and print how long they waited between two tokens: p50 is the median wait, 99 of 100 waits are
shorter than p99, which is also given in steps of these sequences alone. Within a repeat the numbers of sequences take turns;
rates are medians. With q8 or q4 weights the operations of the products per second are compared with the 8-bit peak, sampled just before and
just after each run. A second table says what a step of all sequences consists of. Products allow as many times the tokens per second of one
sequence as there would be if only the products' time counted.`,
		Example: `  restore-lab bench sequences --shape llava-1.5-7b --quant q4
  restore-lab bench sequences --shape llava-1.5-7b --counts 1,8 --rows 124,636 --json`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.addModel(fs, "`type` of the language model's weights")
	o.addCache(fs)
	fs.IntSliceVar(&o.counts, "counts", []int{1, 2, 4, 8, 16}, "`numbers` of sequences")
	fs.IntVar(&o.prompt, "prompt", 124, "`N` tokens of each prompt")
	fs.IntVar(&o.gen, "gen", 24, "measure at least `N` tokens of each sequence")
	fs.IntVar(&o.parallel, "streams", 8, "`N` sequences run while a prompt is read")
	fs.IntSliceVar(&o.rows, "rows", []int{124, 636}, "`numbers` of rows of that prompt")
	cli.Within(fs, 1, 64, "counts", "streams")
	cli.Within(fs, 1, 1<<16, "rows", "prompt")
	cli.Within(fs, 1, 1<<12, "gen")
	o.addRepeats(fs)
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		b, err := o.prepare()
		if err != nil {
			return err
		}
		result, err := o.run(cmd.Context(), a, b)
		return printResult(cmd, a, o.json, result, err)
	}
	return cmd
}

// stallTokens is the most tokens that a stream produces while a prompt is read.
const stallTokens = 1024

// prepare checks the flags.
func (o *benchSequencesOptions) prepare() (*bench, error) {
	if err := o.oneQuant(); err != nil {
		return nil, err
	}
	o.base, o.text = "grid", 1 // there is no picture
	return o.benchOptions.prepare()
}

// sequencesJSON is the output of --json.
type sequencesJSON struct {
	Model   string       `json:"model"`
	Quant   string       `json:"quant"`
	Cache   string       `json:"cache_type"`
	Kernel  string       `json:"kernel"`
	Threads int          `json:"threads"`
	Prompt  int          `json:"prompt_tokens"`
	Repeat  int          `json:"repeat"`
	Decode  []decodeRow  `json:"decode"`
	Streams int          `json:"streams"`
	StepMS  float64      `json:"step_ms"` // of these streams
	Stalls  []stalledRow `json:"stalls"`
}

// decodeRow is the result for one number of sequences.
type decodeRow struct {
	Sequences int     `json:"sequences"`
	TokS      float64 `json:"tok_s"`  // of all sequences together
	Over      float64 `json:"over_1"` // tok_s / tok_s of one sequence; 0 if that was not measured
	GOPS      float64 `json:"gops"`   // of the products
	// OfPeak is the median of gops / the 8-bit peak around each run; 0 with other weights.
	OfPeak float64 `json:"of_8_bit_peak"`
	// one step of all sequences, its products, its attention and the rest: a median each
	StepMS      float64 `json:"step_ms"`
	ProductsMS  float64 `json:"products_ms"`
	AttentionMS float64 `json:"attention_ms"`
	OtherMS     float64 `json:"other_ms"`
	// over_1 if only the products' time counted; 0 if one sequence was not measured
	Allowed float64 `json:"products_allow_over_1"`
}

// decodeSamples are the measurements of one number of sequences, one for each repeat.
type decodeSamples struct{ rate, ofPeak, step, products, attention, other []float64 }

// add adds a measurement; ops is the number of operations a token, peak the number a second.
func (s *decodeSamples) add(d *lab.Decoded, ops, peak float64) {
	rate := float64(d.Tokens) / d.Time.Seconds()
	perStep := func(t time.Duration) float64 { return 1000 * t.Seconds() / float64(d.Steps) }
	s.rate, s.ofPeak = append(s.rate, rate), append(s.ofPeak, rate*ops/peak)
	products, attention := d.Work.Products.Time, d.Work.Attention.Time
	s.step = append(s.step, perStep(d.Time))
	s.products = append(s.products, perStep(products))
	s.attention = append(s.attention, perStep(attention))
	s.other = append(s.other, perStep(d.Time-products-attention))
}

// stalledRow is the result for one length of the prompt that is read while the streams run.
type stalledRow struct {
	Rows   int     `json:"rows"`
	P50MS  float64 `json:"p50_ms"`
	P99MS  float64 `json:"p99_ms"`
	MostMS float64 `json:"most_ms"`
	Steps  float64 `json:"p99_steps"`
	FirstS float64 `json:"ttft_s"` // of that prompt
}

func (o *benchSequencesOptions) run(
	ctx context.Context, a *cli.App, b *bench,
) (*sequencesJSON, error) {
	streams := o.parallel
	o.parallel = max(streams+1, slices.Max(append(slices.Clone(o.counts), 1)))
	b.o = &o.benchOptions
	limits := newMachineLimits(o.threads)
	defer limits.close()
	m, err := b.open(a, o.quants[0], limits.work)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	j := &sequencesJSON{
		Model: b.shape.Name, Quant: o.quants[0], Cache: m.About().CacheType,
		Kernel: kernel.Implementation(), Threads: o.threads, Prompt: o.prompt, Repeat: o.repeat,
		Streams: streams,
	}
	shown := a.Meter("runs")
	defer shown.End()
	done, total := int64(0), int64(o.repeat*(len(o.counts)+1+len(o.rows)))
	tick := func() { done++; shown.Set(done, total) }
	shown.Set(done, total)
	ops, err := tokenOps(ctx, m)
	if err != nil {
		return nil, err
	}
	s := &sequenceSamples{
		ops: ops, decode: make([]decodeSamples, len(o.counts)),
		stalled: make([]stallSamples, len(o.rows)),
	}
	for range o.repeat {
		if err := o.round(ctx, m, streams, limits, s, tick); err != nil {
			return nil, err
		}
	}
	o.summarise(j, s)
	return j, nil
}

// sequenceSamples are the measurements of all rounds.
type sequenceSamples struct {
	ops     float64         // of a decoded token
	decode  []decodeSamples // for each of counts
	steps   []float64       // seconds of one step of the streams
	stalled []stallSamples  // for each of rows
}

// stallSamples are the measurements of one length of a prompt.
type stallSamples struct {
	waits  []time.Duration // between tokens of the streams
	firsts []float64       // seconds to the prompt's first token
}

// round measures everything once.
func (o *benchSequencesOptions) round(
	ctx context.Context, m *engine.Engine, streams int, limits *machineLimits, s *sequenceSamples,
	tick func(),
) error {
	for i, n := range o.counts {
		clear(limits.samples)
		limits.sampleDot()
		d, err := lab.Decode(ctx, m, n, o.prompt, o.gen)
		if err != nil {
			return err
		}
		limits.sampleDot()
		s.decode[i].add(d, s.ops, limitOf(limits.samples["dot"]))
		tick()
	}
	d, err := lab.Decode(ctx, m, streams, o.prompt, o.gen)
	if err != nil {
		return err
	}
	s.steps = append(s.steps, d.Time.Seconds()/float64(d.Steps))
	tick()
	for i, rows := range o.rows {
		stall, err := lab.Stall(ctx, m, streams, o.prompt, rows, stallTokens)
		if err != nil {
			return err
		}
		t := &s.stalled[i]
		t.waits, t.firsts = append(t.waits, stall.Gaps...), append(t.firsts, stall.First.Seconds())
		tick()
	}
	return nil
}

// summarise adds the medians of all rounds to j.
func (o *benchSequencesOptions) summarise(j *sequencesJSON, all *sequenceSamples) {
	for i, n := range o.counts {
		s := &all.decode[i]
		r := decodeRow{
			Sequences: n, TokS: round(stats.Median(s.rate)),
			GOPS:   round(stats.Median(s.rate) * all.ops),
			StepMS: round(stats.Median(s.step)), ProductsMS: round(stats.Median(s.products)),
			AttentionMS: round(stats.Median(s.attention)), OtherMS: round(stats.Median(s.other)),
		}
		if o.quants[0] == "q8" || o.quants[0] == "q4" {
			r.OfPeak = round(stats.Median(s.ofPeak))
		}
		if k := slices.Index(o.counts, 1); k >= 0 {
			one := &all.decode[k]
			r.Over = round(r.TokS / stats.Median(one.rate))
			r.Allowed = round(float64(n) * stats.Median(one.products) / r.ProductsMS)
		}
		j.Decode = append(j.Decode, r)
	}
	step := stats.Median(all.steps)
	j.StepMS = round(1000 * step)
	for i, rows := range o.rows {
		s := &all.stalled[i]
		ms := func(q float64) float64 { return round(1000 * stats.Upper(s.waits, q).Seconds()) }
		j.Stalls = append(j.Stalls, stalledRow{
			Rows: rows, P50MS: ms(0.5), P99MS: ms(0.99), MostMS: ms(1),
			Steps:  round(stats.Upper(s.waits, 0.99).Seconds() / step),
			FirstS: round(stats.Median(s.firsts)),
		})
	}
}

// tokenOps is the number of operations, in 10⁹, of the products of a decoded token.
func tokenOps(ctx context.Context, m *engine.Engine) (float64, error) {
	const steps = 2
	one, err := lab.Measure(ctx, m, lab.MeasureRequest{Text: 8, Steps: steps})
	if err != nil {
		return 0, err
	}
	return float64(one.DecodeWork.Products.Operations) / steps / 1e9, nil
}

// write prints the tables.
func (j *sequencesJSON) write(w io.Writer) error {
	fmt.Fprintf(w, "%s, %s, keys and values %s, %s, threads %d, after %d tokens, median of %d\n",
		j.Model, j.Quant, j.Cache, j.Kernel, j.Threads, j.Prompt, j.Repeat)
	rows := [][]string{{"sequences", "tokens/s", "over one", "GOP/s", "of the 8-bit peak"}}
	for _, r := range j.Decode {
		over, peak := "–", "–"
		if r.Over > 0 {
			over = fmt.Sprintf("%.2f", r.Over)
		}
		if r.OfPeak > 0 {
			peak = fmt.Sprintf("%.0f %%", 100*r.OfPeak)
		}
		rows = append(rows, []string{strconv.Itoa(r.Sequences), fmt.Sprintf("%.2f", r.TokS), over,
			fmt.Sprintf("%.0f", r.GOPS), peak})
	}
	if err := cli.Table(w, rows); err != nil {
		return err
	}
	fmt.Fprintf(w, "\na step, in ms\n")
	if err := cli.Table(w, j.steps()); err != nil || len(j.Stalls) == 0 {
		return err
	}
	fmt.Fprintf(w, "\nwaits of %d sequences, a step of which takes %.0f ms, while a prompt "+
		"is read\n", j.Streams, j.StepMS)
	rows = [][]string{{"rows", "p50 ms", "p99 ms", "most ms", "p99 in steps", "first token s"}}
	for _, r := range j.Stalls {
		rows = append(rows, []string{
			strconv.Itoa(r.Rows), fmt.Sprintf("%.0f", r.P50MS), fmt.Sprintf("%.0f", r.P99MS),
			fmt.Sprintf("%.0f", r.MostMS), fmt.Sprintf("%.1f", r.Steps),
			fmt.Sprintf("%.2f", r.FirstS),
		})
	}
	return cli.Table(w, rows)
}

// steps is the table of what a step consists of.
func (j *sequencesJSON) steps() [][]string {
	rows := [][]string{{
		"sequences", "step", "products", "attention", "other", "products allow", "reached",
	}}
	for _, r := range j.Decode {
		allowed, reached := "–", "–"
		if r.Allowed > 0 {
			allowed = fmt.Sprintf("%.2f", r.Allowed)
			reached = fmt.Sprintf("%.0f %%", 100*r.Over/r.Allowed)
		}
		ms := func(v float64) string { return fmt.Sprintf("%.1f", v) }
		rows = append(rows, []string{
			strconv.Itoa(r.Sequences), ms(r.StepMS), ms(r.ProductsMS), ms(r.AttentionMS),
			ms(r.OtherMS), allowed, reached,
		})
	}
	return rows
}
