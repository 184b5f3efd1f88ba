package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/stats"
)

// benchKernelsOptions are the flags of `restore-lab bench kernels`.
type benchKernelsOptions struct {
	names   []string
	rows    []int
	sizes   []string
	threads []int
	limit   time.Duration
	against string
	prompt  bool
	json    bool

	shapes  [][2]int // parsed from sizes
	overOne bool     // compare with one row
}

// namedFormat is the format of a type's name.
func namedFormat(name string) kernel.Format {
	for _, f := range benchFormats {
		if f.name == name {
			return f.format
		}
	}
	return kernel.F32
}

// benchFormats are the kernels by name, in the order of the table.
var benchFormats = []struct {
	name   string
	format kernel.Format
}{{"f32", kernel.F32}, {"q8", kernel.Q8}, {"q4", kernel.Q4}, {"q4m", kernel.Q4M},
	{"bf16", kernel.BF16Dot}, {"f16", kernel.F16}, {"q12", kernel.Q12}}

func benchFormatNames() (names []string) {
	for _, f := range benchFormats {
		names = append(names, f.name)
	}
	return names
}

func newBenchKernels(a *cli.App) *cobra.Command {
	o := new(benchKernelsOptions)
	cmd := &cobra.Command{
		Use:   "kernels",
		Short: "Compare matrix products with their inner kernels and the machine's limits",
		Long: `Time products with weights of every type. Compare each with its inner kernel on operands in the caches (micro) and with the machine's limit:
multiply-adds on registers or, for one row, memory reads. Each round measures the three within milliseconds of one another, because machines are noisy.
rate is the median over the rounds, best the 90 % quantile, micro the median of the best of four samples around each rate, and a limit the 98 % quantile
of its samples. A round counts as quiet when the limit reached 95 % just before and just after it; trust the percentages of the peak only if most rounds
are quiet. cpu is the share of its threads' time that the product had a processor. --against TYPE measures weights of that type in turns, and prints the median of the ratios
of the rates, in bytes of weights per second for one row, else in rows per second; with one thread, rates are by processor time. With 1 and more in --m, over 1 is the time of a product divided by the time of one row, measured
in turns; least is what the limits allow: the longer of reading the weights and multiplying at the peak, for that many rows and for one. reached is the
time that the limits allow divided by the measured time. Up to 32 rows are multiplied as a decoding step, more as a prompt; with --prompt all as a prompt. Rates are GFLOP/s (f32, f16, bf16) or GOP/s (q12, q8, q4); for one row GB/s of the stored weight. The
weights are in no cache.`,
		Example: `  restore-lab bench kernels
  restore-lab bench kernels --kernel q4 --m 124,636 --threads 2 --json
  restore-lab bench kernels --kernel q4,q8 --m 1,2,4,8,16,32 --size 4096x4096 --threads 2
  restore-lab bench kernels --kernel q4m --against q4 --m 1,124,636
  restore-lab bench kernels --kernel q8,q4 --m 1,4,8,16 --prompt --threads 2`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&o.names, "kernel", benchFormatNames(), "`types` of the weights")
	cli.OneOf(fs, "kernel", benchFormatNames()...)
	fs.IntSliceVar(&o.rows, "m", []int{1, 32, 124, 252, 636}, "`rows` of the activations")
	fs.StringSliceVar(&o.sizes, "size", []string{"4096x4096", "11008x4096", "4096x11008"},
		"weight sizes as `OUTxIN`; the default is a 7B model's layers")
	fs.IntSliceVar(&o.threads, "threads", []int{1, 2}, "numbers of `threads`")
	fs.DurationVar(&o.limit, "limit", 45*time.Second, "stop after about this `time`")
	cli.Within(fs, 1, benchMaxRows, "m")
	cli.Within(fs, 1, cli.MaxThreads, "threads")
	cli.Above(fs, 0, math.Inf(1), "limit")
	fs.StringVar(&o.against, "against", "", "compare with weights of this `type`")
	cli.OneOf(fs, "against", benchFormatNames()...)
	fs.BoolVar(&o.prompt, "prompt", false, "multiply few rows as a prompt too")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		if err := kernel.ImplementationError(); err != nil {
			return err
		}
		result, err := o.run(cmd.Context(), a)
		return printResult(cmd, a, o.json, result, err)
	}
	return cmd
}

// Limits of a measurement: a weight's rows and columns, and the rows of activations.
const (
	benchMaxSide = 1 << 17
	benchMaxRows = 1 << 14
)

func (o *benchKernelsOptions) check() error {
	for _, s := range o.sizes {
		left, right, _ := strings.Cut(s, "x")
		n, errN := strconv.Atoi(left)
		k, errK := strconv.Atoi(right)
		if errN != nil || errK != nil || n < 32 || k < 32 || n > benchMaxSide || k > benchMaxSide ||
			n%32 != 0 || k%32 != 0 {
			return cli.Flagf("size", "got %q, want OUTxIN, both multiples of 32 from 32 to %d", s,
				benchMaxSide)
		}
		o.shapes = append(o.shapes, [2]int{n, k})
	}
	if len(o.names) == 0 || len(o.rows) == 0 || len(o.threads) == 0 || len(o.shapes) == 0 {
		return cli.Usagef("bench kernels: nothing to measure, want at least one of each of " +
			"--kernel, --m, --size and --threads")
	}
	o.overOne = slices.Min(o.rows) == 1 && slices.Max(o.rows) > 1
	return nil
}

// kernelsJSON is the object that `bench kernels --json` prints.
type kernelsJSON struct {
	CPU     string       `json:"cpu"`
	Kernel  string       `json:"kernel"`
	Against string       `json:"against,omitempty"` // the type of --against
	Prompt  bool         `json:"prompt,omitempty"`  // all rows are a prompt's
	Peaks   benchPeaks   `json:"peaks"`
	Kernels []kernelJSON `json:"kernels"`
}

// kernelJSON is one product: rate, micro and peak in the same unit.
type kernelJSON struct {
	Name    string  `json:"name"`
	M       int     `json:"m"`
	N       int     `json:"n"`
	K       int     `json:"k"`
	Threads int     `json:"threads"`
	Rate    float64 `json:"rate"`
	Best    float64 `json:"best"`
	Micro   float64 `json:"micro"`
	Peak    float64 `json:"peak"`
	Rounds  int     `json:"rounds"`
	Quiet   float64 `json:"quiet"`             // share of quiet rounds
	CPU     float64 `json:"cpu"`               // processor time ÷ (time × threads)
	Against float64 `json:"against,omitempty"` // rate ÷ rate of the other type
	// with 1 and more in --m
	Over    float64 `json:"over_one,omitempty"` // time ÷ time of one row
	Least   float64 `json:"least,omitempty"`    // the least of these that the limits allow
	Reached float64 `json:"reached,omitempty"`  // time that the limits allow ÷ time
}

// kernelCell is one measured product and its samples.
type kernelCell struct {
	kernelJSON
	format       kernel.Format
	rates, micro []float64 // 10⁹ operations per second
	reads        []float64 // memory read rates, one for each of rates, if they are needed
	over         []float64 // time ÷ time of one row, by turn
	limits       []float64 // the lower of the limits before and after
	took, used   float64   // seconds of all calls, and of the processors
	against      []float64
}

// leastSeconds returns the time of a product with the cell's weight by m rows if only reading the
// weight, at read GB/s, and multiplying, at peak 10⁹ operations per second, took time, and both
// went on at once.
func (c *kernelCell) leastSeconds(m int, read, peak float64) float64 {
	w := kernel.Matrix{Format: c.format, N: c.N, K: c.K}
	return max(float64(w.Bytes())/read, c.ops(m)/peak) / 1e9
}

// ops returns the operations of the product with m rows.
func (c *kernelCell) ops(m int) float64 { return 2 * float64(m) * float64(c.N) * float64(c.K) }

// compareLimits fills in what comes from one row and the limits.
func (c *kernelCell) compareLimits(peak float64) {
	var least, reached []float64
	for i, read := range c.reads {
		seconds := c.leastSeconds(c.M, read, peak)
		least = append(least, seconds/c.leastSeconds(1, read, peak))
		reached = append(reached, seconds*1e9*c.rates[i]/c.ops(c.M))
	}
	c.Least, c.Reached = round(stats.Median(least)), round(stats.Median(reached))
	if c.Over = 1; c.M > 1 {
		c.Over = round(stats.Median(c.over))
	}
}

// peakOf names the limit of products with weights of format f.
func peakOf(f kernel.Format) string {
	if f == kernel.Q4M {
		f = kernel.Q4
	}
	for name, of := range limitFormats {
		if of == f {
			return name
		}
	}
	return "fma"
}

// kernelBench is one run of `bench kernels`.
type kernelBench struct {
	o       *benchKernelsOptions
	pools   map[int]*kernel.Pool
	memory  kernel.Memory // memory of the weights
	weights map[kernel.Format]*benchWeights
	x, dst  []float32
	peaks   map[int]map[string][]float64 // samples of limits by threads and name
	cells   []*kernelCell
}

// Durations of the samples in one visit of a cell. A product that takes longer runs once.
const (
	sampleRegister = 700 * time.Microsecond
	sampleProduct  = 4 * time.Millisecond
	sampleReadSize = 64 << 20
)

// quietShare is the share of the limit that a quiet machine reaches.
const quietShare = 0.95

func (o *benchKernelsOptions) run(ctx context.Context, a *cli.App) (*kernelsJSON, error) {
	start := time.Now()
	b := &kernelBench{
		o: o, pools: map[int]*kernel.Pool{}, weights: map[kernel.Format]*benchWeights{},
		peaks: map[int]map[string][]float64{},
	}
	for _, t := range o.threads {
		if b.pools[t] == nil {
			b.pools[t], b.peaks[t] = kernel.NewPool(t), map[string][]float64{}
			defer b.pools[t].Close()
		}
	}
	defer b.memory.Free()
	if err := b.prepare(); err != nil {
		return nil, err
	}
	shown := a.Meter("measuring")
	defer shown.End()
	for round := 0; ; round++ {
		began := time.Now()
		for _, c := range b.cells {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			// the first round may take a little longer
			if round > 0 || time.Since(start) < o.limit+o.limit/5 {
				b.visit(c)
			}
			shown.Set(int64(time.Since(start).Seconds()), int64(max(o.limit.Seconds(), 1)))
		}
		if time.Since(start)+time.Since(began) > o.limit {
			break
		}
	}
	return b.result(a), nil
}

// prepare makes weights, activations and the list of cells.
func (b *kernelBench) prepare() error {
	o := b.o
	most, width, height := 0, 0, 0
	for _, s := range o.shapes {
		most, height, width = max(most, s[0]*s[1]), max(height, s[0]), max(width, s[1])
	}
	widest := b.pools[slices.Max(o.threads)]
	for _, f := range benchFormats {
		if !slices.Contains(o.names, f.name) && f.name != o.against {
			continue
		}
		w, err := newBenchWeights(widest, &b.memory, f.format, most)
		if err != nil {
			return err
		}
		b.weights[f.format] = w
	}
	rows := slices.Max(o.rows)
	b.x, b.dst = make([]float32, rows*width), make([]float32, rows*height)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b.x {
		b.x[i] = float32(r.NormFloat64())
	}
	for _, f := range benchFormats {
		if !slices.Contains(o.names, f.name) {
			continue
		}
		for _, t := range o.threads {
			for _, s := range o.shapes {
				for _, m := range o.rows {
					b.cells = append(b.cells, &kernelCell{
						kernelJSON: kernelJSON{Name: f.name, M: m, N: s[0], K: s[1], Threads: t},
						format:     f.format,
					})
				}
			}
		}
	}
	return nil
}

// visit takes one sample of every quantity of a cell. It samples the inner kernel and the limit
// before and after the product and takes the best, because another process takes a core for longer
// than such a sample lasts.
func (b *kernelBench) visit(c *kernelCell) {
	p, w := b.pool(c, c.M), b.weights[c.format]
	ops := c.ops(c.M)
	// memory speed changes from minute to minute, so compare a row with the read rate before and
	// after it
	read := 0.0
	reads := func() {
		if c.M == 1 || b.o.overOne {
			read = max(read, kernel.SampleRead(p, w.nextBytes(sampleReadSize)))
		}
	}
	reads()
	peaks, name := b.peaks[c.Threads], peakOf(c.format)
	peak := func() float64 {
		v := kernel.SamplePeak(p, c.format, sampleRegister)
		peaks[name] = append(peaks[name], v)
		return v
	}
	limit := peak()
	micro := 0.0
	best := func() {
		for range 2 {
			micro = max(micro, kernel.SampleMicro(p, c.format, c.M, sampleRegister))
		}
	}
	best()
	var calls []float64
	for start := time.Now(); len(calls) == 0 || time.Since(start) < sampleProduct; {
		seconds, used := b.product(c, w, c.M)
		calls = append(calls, seconds)
		c.took, c.used = c.took+seconds, c.used+used
	}
	c.limits = append(c.limits, min(limit, peak()))
	if b.o.against != "" {
		b.compareTypes(c, func(from *benchWeights) float64 { return b.turn(c, from) })
	}
	if b.o.overOne && c.M > 1 {
		b.compareRows(c, w)
	}
	reads()
	best()
	if read > 0 {
		peaks["dram"] = append(peaks["dram"], read)
		c.reads = append(c.reads, read)
	}
	c.micro = append(c.micro, micro)
	c.rates = append(c.rates, ops/stats.Median(calls)/1e9)
}

// pool returns the pool for a product of m rows on the cell's threads.
func (b *kernelBench) pool(c *kernelCell, m int) *kernel.Pool {
	if b.o.prompt {
		return b.pools[c.Threads]
	}
	return b.pools[c.Threads].Measured(m)
}

// product multiplies m rows, and returns the time and the processor time.
func (b *kernelBench) product(c *kernelCell, from *benchWeights, m int) (seconds, cpu float64) {
	w := from.next(c.N, c.K)
	p := b.pool(c, m)
	used, _ := kernel.CPUTime()
	began := time.Now()
	kernel.MatMul(p, b.dst[:m*c.N], b.x[:m*c.K], m, w, nil)
	seconds = time.Since(began).Seconds()
	now, _ := kernel.CPUTime()
	return seconds, (now - used).Seconds()
}

// turn is product for a comparison in turns. With one thread it returns the processor time, if the
// system reports that, so that other processes hardly matter; the time of other threads may be
// counted only at ticks.
func (b *kernelBench) turn(c *kernelCell, from *benchWeights) float64 {
	seconds, cpu := b.product(c, from, c.M)
	if c.Threads == 1 && cpu > 0 {
		return cpu
	}
	return seconds
}

// compareRows measures all rows and one row in turns.
func (b *kernelBench) compareRows(c *kernelCell, w *benchWeights) {
	for turn := range 2 {
		var times [2]float64 // of one row, of all
		for i := range 2 {
			which := (turn + i) % 2
			times[which], _ = b.product(c, w, []int{1, c.M}[which])
		}
		c.over = append(c.over, times[1]/times[0])
	}
}

// compareTypes times the cell's type and another in turns, a and b, then b and a. of is turn.
func (b *kernelBench) compareTypes(c *kernelCell, of func(*benchWeights) (seconds float64)) {
	weights := [2]*benchWeights{b.weights[c.format], b.weights[namedFormat(b.o.against)]}
	var times [2]float64
	for turn := range 2 {
		for i := range 2 {
			which := (turn + i) % 2
			times[which] = of(weights[which])
		}
		ratio := times[1] / times[0]
		if c.M == 1 {
			size := func(f kernel.Format) float64 {
				return float64((&kernel.Matrix{Format: f, N: c.N, K: c.K}).Bytes())
			}
			ratio *= size(c.format) / size(weights[1].format)
		}
		c.against = append(c.against, ratio)
	}
}

// result returns the measurements, and names unmeasured cells on a.err.
func (b *kernelBench) result(a *cli.App) *kernelsJSON {
	threads := slices.Max(b.o.threads)
	// sample the limits that no kernel needed
	rest := machineLimits{pool: b.pools[threads], samples: map[string][]float64{}}
	rest.sample()
	for name, samples := range rest.samples {
		if b.peaks[threads][name] == nil {
			b.peaks[threads][name] = samples
		}
	}
	out := &kernelsJSON{
		CPU: calibrate.CPU(), Kernel: kernel.Implementation(), Against: b.o.against,
		Prompt: b.o.prompt, Peaks: peaksOf(b.peaks[threads]), Kernels: []kernelJSON{},
	}
	left := 0
	for _, c := range b.cells {
		if len(c.rates) == 0 {
			left++
			continue
		}
		limit, unit := limitOf(b.peaks[c.Threads][peakOf(c.format)]), 1.0
		c.Peak = limit
		if c.M == 1 { // GB/s of the weight
			w := kernel.Matrix{Format: c.format, N: c.N, K: c.K}
			unit, c.Peak = float64(w.Bytes())/c.ops(1), round(stats.Median(c.reads))
		}
		if b.o.overOne {
			c.compareLimits(limit)
		}
		c.Rate = round(unit * stats.Median(c.rates))
		c.Micro = round(unit * stats.Median(c.micro))
		c.Best, c.Rounds = round(unit*stats.Interpolated(c.rates, 0.9)), len(c.rates)
		quiet := 0
		for _, v := range c.limits {
			if v >= quietShare*limit {
				quiet++
			}
		}
		c.Quiet = round(float64(quiet) / float64(len(c.limits)))
		c.CPU = round(c.used / c.took / float64(c.Threads))
		if len(c.against) > 0 {
			c.Against = round(stats.Median(c.against))
		}
		out.Kernels = append(out.Kernels, c.kernelJSON)
	}
	if left > 0 {
		a.Note("--limit %v: %d of %d products are not measured", b.o.limit, left, len(b.cells))
	}
	return out
}

// write prints the table.
func (r *kernelsJSON) write(w io.Writer) error {
	fmt.Fprintf(w, "%s, kernel %s\npeaks on %d threads: %s\n\n", r.CPU, kernel.Implementation(),
		r.mostThreads(), &r.Peaks)
	rows := [][]string{
		{"KERNEL", "THREADS", "OUT", "IN", "ROWS", "RATE", "BEST", "MICRO", "PEAK", "UNIT",
			"RATE/MICRO", "MICRO/PEAK", "RATE/PEAK", "QUIET", "CPU"}}
	overOne := slices.ContainsFunc(r.Kernels, func(k kernelJSON) bool { return k.Over > 0 })
	if overOne {
		rows[0] = append(rows[0], "OVER 1", "LEAST", "REACHED")
	}
	if r.Against != "" {
		rows[0] = append(rows[0], "RATE/"+strings.ToUpper(r.Against))
	}
	for _, k := range r.Kernels {
		unit := "GFLOP/s"
		switch {
		case k.M == 1:
			unit = "GB/s"
		case k.Name == "q8" || k.Name == "q4" || k.Name == "q4m" || k.Name == "q12":
			unit = "GOP/s"
		}
		percent := func(v, of float64) string { return fmt.Sprintf("%.0f %%", 100*v/of) }
		row := []string{k.Name, strconv.Itoa(k.Threads), strconv.Itoa(k.N), strconv.Itoa(k.K),
			strconv.Itoa(k.M),
			fmt.Sprintf("%.1f", k.Rate), fmt.Sprintf("%.1f", k.Best), fmt.Sprintf("%.1f", k.Micro),
			fmt.Sprintf("%.1f", k.Peak), unit,
			percent(k.Rate, k.Micro), percent(k.Micro, k.Peak), percent(k.Rate, k.Peak),
			fmt.Sprintf("%.0f %% of %d", 100*k.Quiet, k.Rounds), percent(k.CPU, 1)}
		if overOne {
			row = append(row, fmt.Sprintf("%.2f×", k.Over), fmt.Sprintf("%.2f×", k.Least),
				percent(k.Reached, 1))
		}
		if k.Against > 0 {
			row = append(row, fmt.Sprintf("%.2f×", k.Against))
		}
		rows = append(rows, row)
	}
	return cli.Table(w, rows)
}

func (r *kernelsJSON) mostThreads() (n int) {
	for _, k := range r.Kernels {
		n = max(n, k.Threads)
	}
	return n
}

// benchWeights are random weights of one format, more than the caches hold; a run steps through
// them.
type benchWeights struct {
	format kernel.Format
	data   []byte
	at     int
}

// benchWeightBytes is the minimum size of benchWeights: several times the last-level cache of most
// machines. Tests lower it.
var benchWeightBytes = 192 << 20

// newBenchWeights makes at least n weights in memory of m.
func newBenchWeights(
	p *kernel.Pool, m *kernel.Memory, f kernel.Format, n int,
) (*benchWeights, error) {
	const k = 4096
	rows := (n + k - 1) / k
	stored := f
	if f != kernel.F32 && f != kernel.F16 && f != kernel.BF16 {
		stored = kernel.F32
	}
	rows = (rows + 63) &^ 63
	w := &kernel.Matrix{Format: stored, N: rows, K: k}
	w.Data = make([]byte, w.Bytes())
	p.Run(rows, func(r int) {
		randomRow(w.Data[r*k*stored.Size():(r+1)*k*stored.Size()], stored, uint64(r))
	})
	if f != stored {
		var err error
		if w, err = kernel.Quantize(p, w, f); err != nil {
			return nil, err
		}
	}
	// whole copies, so that every multiple of a weight's size is the start of a weight
	copies := (benchWeightBytes + len(w.Data) - 1) / len(w.Data)
	data := m.Bytes(copies * len(w.Data))
	p.Run(copies, func(i int) { copy(data[i*len(w.Data):], w.Data) })
	return &benchWeights{format: f, data: data}, nil
}

// next returns the next weight [n, k].
func (b *benchWeights) next(n, k int) *kernel.Matrix {
	w := &kernel.Matrix{Format: b.format, N: n, K: k}
	size := w.Bytes()
	b.at = (b.at + size - 1) / size * size
	if b.at+size > len(b.data) {
		b.at = 0
	}
	w.Data = b.data[b.at : b.at+size]
	b.at += size
	return w
}

// nextBytes returns the next n bytes.
func (b *benchWeights) nextBytes(n int) []byte {
	if b.at+n > len(b.data) {
		b.at = 0
	}
	n = min(n, len(b.data))
	d := b.data[b.at : b.at+n]
	b.at += n
	return d
}

// randomRow fills dst with numbers of magnitude 1/4 to 1/2 and random sign, stored as f.
func randomRow(dst []byte, f kernel.Format, seed uint64) {
	r := rand.NewPCG(seed, 3)
	keep, set := uint64(0x807fffff_807fffff), uint64(0x3e800000_3e800000)
	if f == kernel.F16 {
		keep, set = 0x83ff83ff_83ff83ff, 0x34003400_34003400
	}
	for i := 0; i+8 <= len(dst); i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], r.Uint64()&keep|set)
	}
}
