package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/restore-vlm/restore/kernel"
	"github.com/spf13/cobra"
)

// benchKernelsOptions are the flags of `restore bench kernels`.
type benchKernelsOptions struct {
	names   []string
	rows    []int
	sizes   []string
	threads []int
	limit   time.Duration
	json    bool

	shapes [][2]int // of sizes
}

// benchFormats are the kernels by name, in the order of the table.
var benchFormats = []struct {
	name   string
	format kernel.Format
}{{"f32", kernel.F32}, {"q8", kernel.Q8}, {"q4", kernel.Q4}, {"bf16", kernel.BF16Dot}, {"f16", kernel.F16}}

func benchFormatNames() (names []string) {
	for _, f := range benchFormats {
		names = append(names, f.name)
	}
	return names
}

func newBenchKernels(a *app) *cobra.Command {
	o := new(benchKernelsOptions)
	cmd := &cobra.Command{
		Use:   "kernels",
		Short: "Rates of the products, of their inner kernels and of the machine",
		Long: `Time products with weights of every type and compare each with its inner kernel on operands in the caches (micro) and with the
machine's limit: multiply-adds on registers alone or, for one row, reading memory. The three are measured within milliseconds of one another, round
after round, because machines are noisy: rate is the median over the rounds, micro that of the best of four samples around a rate, a limit that
which 2 of 100 of its samples pass. Rates are GFLOP/s (f32, f16, bf16) or GOP/s (q8, q4), for one row GB/s of the weight as it is stored. Weights are
in no cache.`,
		Example: `  restore bench kernels
  restore bench kernels --kernel q4 --m 124,636 --threads 2 --json`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringSliceVar(&o.names, "kernel", benchFormatNames(), "`types` of the weights")
	fs.Lookup("kernel").Annotations = map[string][]string{choices: {strings.Join(benchFormatNames(), "|")}}
	fs.IntSliceVar(&o.rows, "m", []int{1, 32, 124, 252, 636}, "`rows` of the activations")
	fs.StringSliceVar(&o.sizes, "size", []string{"4096x4096", "11008x4096", "4096x11008"}, "weights as `OUTxIN`; the default is those of a 7B model's layers")
	fs.IntSliceVar(&o.threads, "threads", []int{1, 2}, "numbers of `threads`")
	fs.DurationVar(&o.limit, "limit", 45*time.Second, "stop after about this `time`")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		result, err := o.run(cmd.Context(), a)
		if err != nil {
			return err
		}
		if o.json {
			return writeJSON(a.out, result)
		}
		return result.write(a)
	}
	return cmd
}

// Bounds of what is measured: a weight's rows and columns, and the rows of activations.
const (
	benchMaxSide = 1 << 17
	benchMaxRows = 1 << 14
)

func (o *benchKernelsOptions) check() error {
	for _, n := range o.names {
		if !slices.Contains(benchFormatNames(), n) {
			return usagef("--kernel: unknown, got %q, want %s", n, strings.Join(benchFormatNames(), "|"))
		}
	}
	for _, m := range o.rows {
		if m < 1 || m > benchMaxRows {
			return usagef("--m: out of range, got %d, want 1 to %d", m, benchMaxRows)
		}
	}
	for _, t := range o.threads {
		if t < 1 || t > maxThreads {
			return usagef("--threads: out of range, got %d, want 1 to %d", t, maxThreads)
		}
	}
	for _, s := range o.sizes {
		left, right, _ := strings.Cut(s, "x")
		n, errN := strconv.Atoi(left)
		k, errK := strconv.Atoi(right)
		if errN != nil || errK != nil || n < 32 || k < 32 || n > benchMaxSide || k > benchMaxSide || n%32 != 0 || k%32 != 0 {
			return usagef("--size: got %q, want OUTxIN, both multiples of 32 from 32 to %d", s, benchMaxSide)
		}
		o.shapes = append(o.shapes, [2]int{n, k})
	}
	if len(o.names) == 0 || len(o.rows) == 0 || len(o.threads) == 0 || len(o.shapes) == 0 {
		return usagef("bench kernels: nothing to measure, want at least one of each of --kernel, --m, --size and --threads")
	}
	if o.limit <= 0 {
		return usagef("--limit: out of range, got %v, want more than 0", o.limit)
	}
	return nil
}

// kernelsJSON is the object that `bench kernels --json` prints.
type kernelsJSON struct {
	CPU     string       `json:"cpu"`
	Peaks   peaksJSON    `json:"peaks"`
	Kernels []kernelJSON `json:"kernels"`
}

// peaksJSON are the limits of the machine.
type peaksJSON struct {
	FMA  float64 `json:"fma_gflops"`
	Dot  float64 `json:"dot_gops"`
	DRAM float64 `json:"dram_gbs"`
}

// kernelJSON is one product: rate, micro and peak in one unit.
type kernelJSON struct {
	Name    string  `json:"name"`
	M       int     `json:"m"`
	N       int     `json:"n"`
	K       int     `json:"k"`
	Threads int     `json:"threads"`
	Rate    float64 `json:"rate"`
	Micro   float64 `json:"micro"`
	Peak    float64 `json:"peak"`
}

// kernelCell is one product that is measured, with its samples.
type kernelCell struct {
	kernelJSON
	format       kernel.Format
	rates, micro []float64
	reads        []float64 // with one row: of memory, beside each of rates
}

// peakKey names a limit: that of a format's multiply-adds, or of reading.
type peakKey struct {
	what    string // "fma", "dot", "bf16" or "dram"
	threads int
}

func peakOf(f kernel.Format) string {
	switch f {
	case kernel.Q8, kernel.Q4:
		return "dot"
	case kernel.BF16Dot:
		return "bf16"
	}
	return "fma"
}

// kernelBench is a run of `bench kernels`.
type kernelBench struct {
	o       *benchKernelsOptions
	pools   map[int]*kernel.Pool
	memory  kernel.Memory // of the weights
	weights map[kernel.Format]*benchWeights
	x, dst  []float32
	peaks   map[peakKey][]float64
	cells   []*kernelCell
}

// How long the samples of one visit of a cell take. A product that takes longer runs once.
const (
	sampleRegister = 700 * time.Microsecond
	sampleProduct  = 4 * time.Millisecond
	sampleReadSize = 64 << 20
)

func (o *benchKernelsOptions) run(ctx context.Context, a *app) (*kernelsJSON, error) {
	start := time.Now()
	b := &kernelBench{o: o, pools: map[int]*kernel.Pool{}, weights: map[kernel.Format]*benchWeights{}, peaks: map[peakKey][]float64{}}
	for _, t := range o.threads {
		if b.pools[t] == nil {
			b.pools[t] = kernel.NewPool(t)
			defer b.pools[t].Close()
		}
	}
	defer b.memory.Free()
	if err := b.prepare(); err != nil {
		return nil, err
	}
	for round := 0; ; round++ {
		began := time.Now()
		for _, c := range b.cells {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("bench: interrupted, there is no result")
			}
			if round > 0 || time.Since(start) < o.limit+o.limit/5 { // the first round may take a little longer
				b.visit(c)
			}
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
		if !slices.Contains(o.names, f.name) {
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
		if b.weights[f.format] == nil {
			continue
		}
		for _, t := range o.threads {
			for _, s := range o.shapes {
				for _, m := range o.rows {
					b.cells = append(b.cells, &kernelCell{kernelJSON: kernelJSON{Name: f.name, M: m, N: s[0], K: s[1], Threads: t}, format: f.format})
				}
			}
		}
	}
	return nil
}

// visit takes one sample of everything that belongs to a cell. What runs in the caches is sampled on both sides of the product and the best
// counts: another process takes a core for longer than such a sample lasts.
func (b *kernelBench) visit(c *kernelCell) {
	p, w := b.pools[c.Threads], b.weights[c.format]
	ops := 2 * float64(c.M) * float64(c.N) * float64(c.K)
	unit := 1.0 // of a rate in 10⁹ operations a second
	if c.M == 1 {
		unit = float64(w.next(c.N, c.K).Bytes()) / ops
	}
	// memory is faster in one minute than in the next, so that a row is compared with what reading took on both sides of it
	read := 0.0
	reads := func() {
		if c.M == 1 {
			read = max(read, kernel.SampleRead(p, w.nextBytes(sampleReadSize)))
		}
	}
	reads()
	key := peakKey{peakOf(c.format), c.Threads}
	b.peaks[key] = append(b.peaks[key], kernel.SamplePeak(p, c.format, sampleRegister))
	micro := 0.0
	best := func() {
		for range 2 {
			micro = max(micro, kernel.SampleMicro(p, c.format, c.M, sampleRegister))
		}
	}
	best()
	var calls []float64
	for start := time.Now(); len(calls) == 0 || time.Since(start) < sampleProduct; {
		w, began := w.next(c.N, c.K), time.Now()
		kernel.MatMul(p, b.dst[:c.M*c.N], b.x[:c.M*c.K], c.M, w, nil)
		calls = append(calls, time.Since(began).Seconds())
	}
	reads()
	best()
	if c.M == 1 {
		key := peakKey{"dram", c.Threads}
		b.peaks[key] = append(b.peaks[key], read)
		c.reads = append(c.reads, read)
	}
	c.micro = append(c.micro, unit*micro)
	c.rates = append(c.rates, unit*ops/quantile(calls, 0.5)/1e9)
}

// result is what was measured; cells that were not reached are named on a.err.
func (b *kernelBench) result(a *app) *kernelsJSON {
	peak := func(what string, threads int) float64 {
		return round2(quantile(b.peaks[peakKey{what, threads}], limitQuantile))
	}
	threads := slices.Max(b.o.threads)
	p := b.pools[threads]
	// what no kernel asked for is measured now
	for what, measure := range map[string]func(*kernel.Pool) float64{"fma": kernel.PeakFMA, "dot": kernel.PeakDot, "dram": kernel.PeakRead} {
		if key := (peakKey{what, threads}); b.peaks[key] == nil {
			b.peaks[key] = []float64{measure(p)}
		}
	}
	out := &kernelsJSON{CPU: cpuName(), Peaks: peaksJSON{FMA: peak("fma", threads), Dot: peak("dot", threads), DRAM: peak("dram", threads)}, Kernels: []kernelJSON{}}
	left := 0
	for _, c := range b.cells {
		if len(c.rates) == 0 {
			left++
			continue
		}
		c.Rate, c.Micro, c.Peak = round2(quantile(c.rates, 0.5)), round2(quantile(c.micro, 0.5)), peak(peakOf(c.format), c.Threads)
		if c.M == 1 {
			c.Peak = round2(quantile(c.reads, 0.5))
		}
		out.Kernels = append(out.Kernels, c.kernelJSON)
	}
	if left > 0 {
		fmt.Fprintf(a.err, "restore: note: --limit %v: %d of %d products are not measured\n", b.o.limit, left, len(b.cells))
	}
	return out
}

// write prints the table.
func (r *kernelsJSON) write(a *app) error {
	fmt.Fprintf(a.out, "%s, kernel %s\npeaks on %d threads: %.0f GFLOP/s (multiply-add), %.0f GOP/s (8-bit dot product), %.1f GB/s (reading memory)\n\n",
		r.CPU, kernel.Implementation(), r.mostThreads(), r.Peaks.FMA, r.Peaks.Dot, r.Peaks.DRAM)
	rows := [][]string{{"KERNEL", "THREADS", "OUT", "IN", "ROWS", "RATE", "MICRO", "PEAK", "UNIT", "RATE/MICRO", "MICRO/PEAK", "RATE/PEAK"}}
	for _, k := range r.Kernels {
		unit := "GFLOP/s"
		switch {
		case k.M == 1:
			unit = "GB/s"
		case k.Name == "q8" || k.Name == "q4":
			unit = "GOP/s"
		}
		percent := func(v, of float64) string { return fmt.Sprintf("%.0f %%", 100*v/of) }
		rows = append(rows, []string{k.Name, strconv.Itoa(k.Threads), strconv.Itoa(k.N), strconv.Itoa(k.K), strconv.Itoa(k.M),
			fmt.Sprintf("%.1f", k.Rate), fmt.Sprintf("%.1f", k.Micro), fmt.Sprintf("%.1f", k.Peak), unit,
			percent(k.Rate, k.Micro), percent(k.Micro, k.Peak), percent(k.Rate, k.Peak)})
	}
	return columns(a.out, rows)
}

func (r *kernelsJSON) mostThreads() (n int) {
	for _, k := range r.Kernels {
		n = max(n, k.Threads)
	}
	return n
}

// benchWeights are random weights of one format, more of them than the caches hold, which a run walks through.
type benchWeights struct {
	format kernel.Format
	data   []byte
	at     int
}

// benchWeightBytes is the least that benchWeights hold: several times the last cache of most machines. Tests lower it.
var benchWeightBytes = 192 << 20

// newBenchWeights makes weights of at least n numbers in memory of m.
func newBenchWeights(p *kernel.Pool, m *kernel.Memory, f kernel.Format, n int) (*benchWeights, error) {
	const k = 4096
	rows := (n + k - 1) / k
	stored := f
	if f == kernel.Q8 || f == kernel.Q4 || f == kernel.BF16Dot {
		stored = kernel.F32
	}
	rows = (rows + 63) &^ 63
	w := &kernel.Matrix{Format: stored, N: rows, K: k}
	w.Data = make([]byte, w.Bytes())
	p.Run(rows, func(r int) { randomRow(w.Data[r*k*stored.Size():(r+1)*k*stored.Size()], stored, uint64(r)) })
	if f != stored {
		var err error
		if w, err = kernel.Quantize(p, w, f); err != nil {
			return nil, err
		}
	}
	// repeated whole, so that every multiple of a weight's size is the start of one
	copies := (benchWeightBytes + len(w.Data) - 1) / len(w.Data)
	data := m.Bytes(copies * len(w.Data))
	p.Run(copies, func(i int) { copy(data[i*len(w.Data):], w.Data) })
	return &benchWeights{format: f, data: data}, nil
}

// next is a weight [n, k] behind the one before.
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

// nextBytes is n bytes behind the weight before.
func (b *benchWeights) nextBytes(n int) []byte {
	if b.at+n > len(b.data) {
		b.at = 0
	}
	n = min(n, len(b.data))
	d := b.data[b.at : b.at+n]
	b.at += n
	return d
}

// randomRow fills dst with numbers of magnitude 1/4 to 1/2 and either sign, as f stores them.
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

// quantile is the q-th quantile of v, interpolated; NaN when v is empty.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

// round2 keeps two digits after the point.
func round2(v float64) float64 { return math.Round(100*v) / 100 }
