package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/shape"
	"github.com/restore-vlm/restore/reduce"
)

// benchMethodsOptions are the flags of `restore-lab bench methods`.
type benchMethodsOptions struct {
	sizes   flopsOptions
	nVis    int
	bases   []string
	threads int
	repeat  int
	ttft    time.Duration
	json    bool
}

func newBenchMethods(a *cli.App) *cobra.Command {
	o := new(benchMethodsOptions)
	cmd := &cobra.Command{
		Use:   "methods",
		Short: "Time each method's choice and merging",
		Long: `Time each method's choice of tokens, RESTORE's merging and the calibration of attention, on random features with a model's sizes, and print their
share of the time to the first token. That time is --ttft, or else a lower bound: the products of the reduced picture and prompt alone at this machine's
best rates, f16 for the encoder and q8 for the decoder. Times are the minimum of the repeats. Methods inside the decoder read given attention;
FitPrune drops an eighth of the tokens in every layer.`,
		Example: `  restore-lab bench methods
  restore-lab bench methods --base holov,divprune --n-vis 128 --ttft 9.2s --json`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringVar(&o.sizes.shape, "shape", "llava-1.5-7b",
		"sizes of a published model, of the embedded one, or of a config.json `FILE`")
	cli.ShowChoices(fs, "shape", append(shape.Names(shape.OneSquare), embeddedShape, "FILE")...)
	fs.StringVarP(&o.sizes.dir, "model", "m", "",
		"sizes of the model in this `folder`, file or ORG/NAME instead")
	fs.IntVar(&o.nVis, "n-vis", 64, "`budget` of visual tokens")
	fs.StringSliceVar(&o.bases, "base", nil, "`methods`, see 'restore methods'")
	cli.OneOf(fs, "base", cli.MethodNames()[1:]...)
	cli.ShowDefault(fs, "base", "all")
	fs.IntVarP(&o.threads, "threads", "t", runtime.GOMAXPROCS(0), "compute on `N` threads")
	fs.IntVar(&o.repeat, "repeat", 5, "measure `N` times")
	fs.DurationVar(&o.ttft, "ttft", 0,
		"a measured `time` to the first token, as from 'restore-lab bench'")
	cli.ShowDefault(fs, "ttft", "estimated")
	cli.Within(fs, 0, math.Inf(1), "ttft")
	cli.Within(fs, 1, cli.MaxThreads, "threads")
	cli.Within(fs, 1, 1000, "repeat")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		result, err := o.run(cmd.Context(), a)
		return printResult(cmd, a, o.json, result, err)
	}
	return cmd
}

// methodTimes is the output of --json. Times are in milliseconds.
type methodTimes struct {
	Model   string       `json:"model"`
	Tokens  int          `json:"tokens"`
	Width   int          `json:"width"`
	NVis    int          `json:"n_vis"`
	Threads int          `json:"threads"`
	Encoder float64      `json:"encoder_gops,omitempty"` // f16; two operations per multiply-add
	Decoder float64      `json:"decoder_gops,omitempty"` // q8
	Rows    []methodCost `json:"rows"`
}

type methodCost struct {
	Base      string  `json:"base"`
	Restore   bool    `json:"restore"`
	Select    float64 `json:"select_ms"`
	Merge     float64 `json:"merge_ms"`
	Calibrate float64 `json:"calibrate_ms"`
	Total     float64 `json:"total_ms"`
	TTFT      float64 `json:"ttft_ms"`
	Share     float64 `json:"share_percent"`
}

// setBases sets the default of --base.
func (o *benchMethodsOptions) setBases() {
	if o.bases == nil {
		for _, m := range methods.Methods() {
			if m.TakesBudget() {
				o.bases = append(o.bases, m.Name)
			}
		}
	}
}

func (o *benchMethodsOptions) run(ctx context.Context, a *cli.App) (*methodTimes, error) {
	o.setBases()
	name, s, resolve, err := o.sizes.sizes(a)
	if err != nil {
		return nil, err
	}
	if s.Views != 1 {
		return nil, cli.Flagf("shape", "got %s, whose pictures are encoded in views, want one "+
			"that sees them whole", name)
	}
	if o.nVis < 1 || o.nVis >= s.Tokens {
		return nil, cli.Flagf("n-vis", "out of range, got %d, want 1 to %d", o.nVis, s.Tokens-1)
	}
	pool := kernel.NewPool(o.threads)
	defer pool.Close()
	b := newMethodBench(pool, s)
	j := &methodTimes{
		Model: name, Tokens: s.Tokens, Width: s.Text.Hidden, NVis: o.nVis, Threads: o.threads,
	}
	var rates *productRates
	if o.ttft == 0 {
		if rates, err = newProductRates(pool); err != nil {
			return nil, err
		}
		defer rates.close()
	}
	if o.sizes.shape != embeddedShape && o.sizes.dir == "" { // a shape has no recipe
		f := s.Facts()
		f.Recipe = func() (*methods.Recipe, error) { return evenRecipe(s), nil }
		resolve = func(r methods.Options) (*methods.Plan, error) { return methods.Resolve(r, f) }
	}
	var ops []*lab.FLOPs
	shown := a.Meter("methods")
	defer shown.End()
	for i, base := range o.bases {
		shown.Set(int64(i), int64(len(o.bases)))
		for _, on := range []bool{false, true} {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r := methods.Options{Base: base, NVis: o.nVis, Restore: on}
			how, err := resolve(r)
			if err != nil { // this method cannot reach the budget; continue with the others
				a.Note("%s: %v", methodLabel(base, on), err)
				break
			}
			c, err := b.best(how, o.repeat)
			if err != nil {
				return nil, fmt.Errorf("bench methods: %s: %w", methodLabel(base, on), err)
			}
			c.Base, c.Restore = base, on
			f, err := lab.CountFLOPs(s, how, o.nVis, lab.PaperPrompt)
			if err != nil {
				return nil, err
			}
			rates.sample()
			ops, j.Rows = append(ops, f), append(j.Rows, c)
		}
	}
	if rates != nil {
		j.Encoder, j.Decoder = rates.best[0], rates.best[1]
	}
	j.share(o.ttft, ops)
	return j, nil
}

// share sets the times to the first token, which are given or follow from the rates of products,
// and the share of each method.
func (j *methodTimes) share(ttft time.Duration, ops []*lab.FLOPs) {
	for i := range j.Rows {
		c := &j.Rows[i]
		if c.TTFT = float64(ttft) / 1e6; ttft == 0 {
			c.TTFT = 2e-6 * ((ops[i].Engine-ops[i].Decoder)/j.Encoder + ops[i].Decoder/j.Decoder)
		}
		c.Share = 100 * c.Total / c.TTFT
	}
}

// evenRecipe drops an eighth of the tokens in every layer, until none are left.
func evenRecipe(s *engine.Sizes) *methods.Recipe {
	r := &methods.Recipe{
		Layers: s.Text.Blocks, Tokens: s.Tokens, Schedules: []methods.RecipeSchedule{
			{Cut: 0.5, Drop: make([]int, s.Text.Blocks)},
		},
	}
	left := s.Tokens
	for l := range r.Schedules[0].Drop {
		r.Schedules[0].Drop[l] = left / 8
		left -= left / 8
	}
	return r
}

// productRates measures products of 124 rows with weights of a 7B model's size, in no cache.
type productRates struct {
	pool   *kernel.Pool
	memory kernel.Memory
	w      [2]*benchWeights // f16, q8
	x, out []float32
	best   [2]float64 // 10⁹ operations per second
}

const (
	rateRows  = 124
	rateWidth = 4096
)

func newProductRates(pool *kernel.Pool) (*productRates, error) {
	r := &productRates{
		pool: pool, x: gaussian(rand.NewPCG(1, 0), rateRows*rateWidth),
		out: make([]float32, rateRows*rateWidth),
	}
	for i, f := range []kernel.Format{kernel.F16, kernel.Q8} {
		var err error
		if r.w[i], err = newBenchWeights(pool, &r.memory, f, rateWidth*rateWidth); err != nil {
			return nil, errors.Join(err, r.memory.Free())
		}
	}
	r.sample()
	return r, nil
}

func (r *productRates) close() { _ = r.memory.Free() } // no longer used

// sample takes one more sample. It does nothing on nil.
func (r *productRates) sample() {
	if r == nil {
		return
	}
	for i, w := range r.w {
		m := w.next(rateWidth, rateWidth)
		start := time.Now()
		kernel.MatMul(r.pool, r.out, r.x, rateRows, m, nil)
		r.best[i] = max(r.best[i], 2*rateRows*rateWidth*rateWidth/float64(time.Since(start)))
	}
}

// methodBench holds random tensors of a model's sizes.
type methodBench struct {
	pool *kernel.Pool
	s    *engine.Sizes
	in   *reduce.Input
	text []float32 // [text, C]
	look []float32 // probabilities, enough for every read

	calibration map[int]time.Duration // by number of rows
}

// The prompt's rows before and after the picture.
const (
	benchBefore = 35
	benchBehind = lab.PaperPrompt - benchBefore
)

func newMethodBench(pool *kernel.Pool, s *engine.Sizes) *methodBench {
	n, c, w, h := s.Tokens, s.Text.Hidden, s.Vision.Hidden, s.Vision.Heads
	seed := uint64(0)
	random := func(n int) []float32 {
		seed++
		return gaussian(rand.NewPCG(seed, 7), n)
	}
	attention := func() []float32 { return probabilities(random(h*(n+1)), n+1) }
	b := &methodBench{pool: pool, s: s, calibration: map[int]time.Duration{}}
	b.in = &reduce.Input{
		N: n, C: c, X: random(n * c), Heads: h, ClsAttn: attention(), Cv: w,
		Hidden: random((n + 1) * w),
		KeyDim: w / h, Keys: random((n + 1) * w), LastQuery: random(w),
		LastKeys: random((n + 1) * w), ClsAttnShallow: attention(), ReceivedMid: attention(),
		ReceivedDeep: attention(),
	}
	if side := int(math.Sqrt(float64(n))); side*side == n {
		b.in.GridH, b.in.GridW = side, side
	}
	keys := n + lab.PaperPrompt
	b.in.Text = random(lab.PaperPrompt * c)
	b.text, b.look = random(benchBehind*c), probabilities(random((n+benchBehind)*keys), keys)
	return b
}

// gaussian draws n normal random numbers.
func gaussian(src rand.Source, n int) []float32 {
	r, v := rand.New(src), make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64())
	}
	return v
}

// probabilities normalises each row of v to a sum of 1.
func probabilities(v []float32, width int) []float32 {
	for row := range slices.Chunk(v, width) {
		kernel.Softmax(row)
	}
	return v
}

// best times a method and returns the minimum of each of its parts.
func (b *methodBench) best(o *methods.Plan, repeat int) (methodCost, error) {
	c := methodCost{Select: math.Inf(1), Merge: math.Inf(1), Total: math.Inf(1)}
	for range repeat {
		start := time.Now()
		merge, idle, err := b.once(o)
		if err != nil {
			return c, err
		}
		total := float64(time.Since(start)-idle) / 1e6
		c.Total, c.Merge = min(c.Total, total), min(c.Merge, float64(merge)/1e6)
		c.Select = min(c.Select, total-float64(merge)/1e6)
	}
	if o.Restore && o.Calibrate != "off" {
		enter, _ := o.LayerRows(b.s.Text.Blocks)
		for l, n := range enter {
			if l >= o.FirstReduced() {
				c.Calibrate += float64(b.calibrate(n, o.Calibrate != "size", repeat)) / 1e6
			}
		}
	}
	c.Total += c.Calibrate
	return c, nil
}

// once runs a method's choice and merging. It returns the time of the merging, and the time that
// does not count because it is not the method's.
func (b *methodBench) once(o *methods.Plan) (merge, idle time.Duration, err error) {
	switch {
	case len(o.Stages) > 0:
		return b.inside(o)
	case o.EncoderBlocks > 0:
		return b.encoder(o)
	}
	if m, err := methods.Lookup(o.Base); err != nil || m.Site == reduce.BeforeEncoder {
		return 0, 0, err // a smaller picture: no choice
	}
	r, err := methods.Reduce(b.in, o, b.pool)
	if err != nil {
		return 0, 0, err
	}
	return r.MergeTime, 0, nil
}

// inside passes the rows of a picture through the layers of a decoder that computes nothing else.
func (b *methodBench) inside(o *methods.Plan) (merge, idle time.Duration, err error) {
	width := b.s.Text.Hidden
	in, err := methods.NewInside(o, nil)
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	x, text := slices.Clone(b.in.X), make([]int32, benchBehind)
	idle = time.Since(start)
	if in.Begins() {
		if err := in.Begin(b.pool, x, b.text, width); err != nil {
			return 0, 0, err
		}
	}
	sight := func() *methods.Sight {
		n := len(in.Rows())
		for i := range text {
			text[i] = int32(benchBefore + n + i)
		}
		return &methods.Sight{
			First: benchBefore, Key: benchBefore, Keys: n + lab.PaperPrompt, Text: text,
			Last: text[benchBehind-1],
		}
	}
	read := func() error {
		v := sight()
		rows, _ := in.AttentionRows(v)
		return in.Read(v, b.look[:len(rows)*v.Keys])
	}
	shrink := func(layer int, within bool) error {
		if !in.Shrinks(layer, within) {
			return nil
		}
		n := len(in.Rows())
		mixes, err := in.Shrink(b.pool, x[:n*width], width)
		if err != nil {
			return err
		}
		start := time.Now()
		nn.Replace(b.pool, x, n, width, 0, n, mixes)
		merge += time.Since(start)
		return nil
	}
	for l := range b.s.Text.Blocks {
		if in.ReadsStates(l) {
			v := sight()
			start := time.Now()
			rows := make([]float32, (len(in.Rows())+lab.PaperPrompt)*width)
			copy(rows[benchBefore*width:], x[:len(in.Rows())*width])
			v.States = &methods.States{
				Width: width, KeyWidth: width, Hidden: rows, Keys: rows, Pool: b.pool,
			}
			idle += time.Since(start)
			if err := in.Read(v, nil); err != nil {
				return 0, 0, err
			}
		}
		for _, ahead := range []bool{true, false} {
			if !ahead {
				if err := shrink(l, false); err != nil {
					return 0, 0, err
				}
			}
			if in.Reads(l, ahead) {
				if err := read(); err != nil {
					return 0, 0, err
				}
			}
		}
		if err := shrink(l, true); err != nil {
			return 0, 0, err
		}
	}
	return merge + in.MergeTime, idle, nil
}

// encoder passes the rows of a picture through the blocks of an encoder that computes nothing else.
func (b *methodBench) encoder(o *methods.Plan) (merge, idle time.Duration, err error) {
	e, err := methods.NewEncoding(o, true, nil)
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	width, heads := b.s.Vision.Hidden, b.s.Vision.Heads
	x := slices.Clone(b.in.Hidden)
	idle = time.Since(start)
	for block := range b.s.Vision.Run {
		class := e.ReadsClass(block)
		for _, place := range []methods.EncoderPlace{methods.Between, methods.Behind} {
			n := e.Rows()[0]
			v := methods.EncoderView{
				X: x[:n*width], Width: width, Heads: heads, HeadDim: width / heads,
				Keys: b.in.LastKeys[:n*width], Values: b.in.Hidden[:n*width],
			}
			if class {
				v.Class = b.in.ClsAttn[:heads*n]
			}
			mixes, err := e.Act(b.pool, block, place, []methods.EncoderView{v})
			if err != nil {
				return 0, 0, err
			}
			if len(mixes) == 0 || mixes[0] == nil {
				continue
			}
			start := time.Now()
			nn.Replace(b.pool, x, n, width, 0, n, mixes[0])
			merge += time.Since(start)
			break
		}
	}
	return merge, idle, nil
}

// calibrate is the time that the bias adds to one layer's attention over a prompt with n rows of a
// picture.
func (b *methodBench) calibrate(n int, distance bool, repeat int) time.Duration {
	if d, ok := b.calibration[n]; ok {
		return d
	}
	t := &b.s.Text
	rows := n + lab.PaperPrompt
	heads, kv := t.Heads, t.Key/(t.Query/t.Heads)
	src := rand.NewPCG(9, uint64(n))
	a := kernel.Attention{
		Heads: heads, KVHeads: kv, HeadDim: t.Query / heads, Tq: rows, Tk: rows, Scale: 0.1,
		Causal: true,
		Q:      gaussian(src, rows*t.Query), K: gaussian(src, rows*t.Key),
		V:   gaussian(src, rows*t.Key),
		Out: make([]float32, rows*t.Query),
	}
	bias := &kernel.Bias{LogSize: make([]float32, rows)}
	if distance {
		bias.QueryPos, bias.Table = make([]int32, rows),
			make([]float32, b.s.Tokens+lab.PaperPrompt)
		for i := range bias.QueryPos {
			bias.QueryPos[i] = int32(i * (b.s.Tokens + benchBehind) / rows)
		}
		bias.KeyPos = bias.QueryPos
	}
	plain, biased := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for range 8 * repeat { // a call takes milliseconds, the difference far less
		for _, with := range []*kernel.Bias{nil, bias} {
			a.Bias = with
			start := time.Now()
			kernel.Attend(b.pool, &a)
			if d := time.Since(start); with == nil {
				plain = min(plain, d)
			} else {
				biased = min(biased, d)
			}
		}
	}
	b.calibration[n] = max(0, biased-plain)
	return b.calibration[n]
}

func (j *methodTimes) write(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %d tokens of width %d, n-vis %d, %d threads", j.Model,
		j.Tokens, j.Width, j.NVis, j.Threads); err != nil {
		return err
	}
	if j.Decoder > 0 {
		fmt.Fprintf(w, ", products at %.0f (f16) and %.0f (q8) GOP/s", j.Encoder, j.Decoder)
	}
	fmt.Fprintln(w)
	rows := [][]string{
		{"METHOD", "SELECT ms", "MERGE ms", "CALIBRATE ms", "TOTAL ms", "SHARE OF TTFT"},
	}
	for _, c := range j.Rows {
		ms := func(v float64) string { return fmt.Sprintf("%.2f", v) }
		rows = append(
			rows, []string{
				methodLabel(c.Base, c.Restore), ms(c.Select), ms(c.Merge), ms(c.Calibrate),
				ms(c.Total),
				fmt.Sprintf("%.3f %% of %s", c.Share, cli.Seconds(c.TTFT/1e3))})
	}
	return cli.Table(w, rows)
}
