package main

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/shape"
	"github.com/restore-vlm/restore/internal/stats"
)

// benchOptions are the flags of `restore-lab bench`.
type benchOptions struct {
	fs         *pflag.FlagSet
	dir, shape string
	quants     []string
	encoder    string
	cache      string
	budgets    []string
	patches    []int
	base       string
	restore    bool
	text, gen  int
	threads    int
	repeat     int
	parallel   int // sequences that run at once; 0: the engine's limit
	profile    string
	peer       string
	limits     bool
	json       bool
}

// asStored is the plan that keeps the types of the checkpoint.
const asStored = "stored"

func newBench(a *cli.App) *cobra.Command {
	o := new(benchOptions)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the speed of a model, or of a model's shape, on this machine",
		Long: `Read a drawn picture and random words with several budgets of visual tokens, decode, and print how long each stage takes: medians
and, after ±, half the range of the repeats. Budgets run in turns, and the machine's limits are sampled between them, because machines are
noisy. --shape makes random weights in memory, in the shapes of a published model or of a config.json. Without --shape and -m it measures the
embedded model. PRODUCTS is a share of the prompt's time (prefill); SPEED-UP compares the times to the first token.`,
		Example: `  restore-lab bench --shape llava-1.5-7b --quant q4 --n-vis 576,64
  restore-lab bench --shape qwen2.5-vl-3b --patches 1024,4096 --json
  restore-lab bench -m DIR --quant q8,q4
  restore-lab bench --shape llava-1.5-7b --quant q4 --n-vis 576,64 --gen 16 --repeat 6 \
    --peer "llama-bench -m llava7b-q4_0.gguf -p {prompt} -n {gen} \
      -t {threads} -r 1 -o jsonl"`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.addModel(fs, "`types` of the language model's weights, measured one after another")
	o.addEncoder(fs)
	o.addCache(fs)
	fs.StringSliceVar(&o.budgets, "n-vis", nil,
		"`budgets`: numbers of visual tokens, shares of the picture's tokens (0.25), or all")
	fs.IntSliceVar(&o.patches, "patches", nil,
		"`sizes` of the picture in patches, for models that take any size")
	fs.StringVar(&o.base, "base", "holov",
		"method that selects the kept tokens, see 'restore methods'")
	fs.BoolVar(&o.restore, "restore", true, "merge and calibrate (RESTORE) over the base")
	fs.IntVar(&o.text, "text", 60, "`N` tokens of text in addition to the picture")
	fs.IntVar(&o.gen, "gen", 32, "decode `N` tokens after the first")
	cli.Within(fs, 1, 1<<20, "text")
	cli.Within(fs, 0, 1<<20, "gen")
	o.addRepeats(fs)
	fs.StringVar(&o.profile, "cpu-profile", "",
		"write a processor profile of the measured runs to this `file`, for 'go tool pprof'")
	fs.StringVar(&o.peer, "peer", "", peerHelp)
	fs.BoolVar(&o.limits, "limits", false, "also print what the time to the first token "+
		"consists of, and what each stage would take at the machine's limit")
	fs.BoolVar(&o.json, "json", false, "print one JSON object")
	cli.OneOf(fs, "base", cli.MethodNames()[1:]...)
	cli.ShowDefault(fs, "n-vis", "576,192,128,64; all,640,320,160 of tiles; "+
		"all,0.3333,0.2222,0.1111 of pictures of any size")
	cli.ShowDefault(fs, "patches", "1024,4096,16384 where the model takes any")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		outs := a.Outputs(o.dir)
		defer outs.Discard()
		profile, err := outs.Open("cpu-profile", o.profile)
		if err != nil {
			return err
		}
		b, err := o.prepare()
		if err != nil {
			return err
		}
		result, err := b.run(cmd.Context(), a)
		if err != nil {
			return err
		}
		if o.json {
			err = cli.WriteJSON(outs.Results(), result)
		} else {
			err = result.write(outs.Results())
		}
		if err != nil {
			return err
		}
		return profile.Write(func(w io.Writer) error {
			_, err := b.profile.WriteTo(w)
			return err
		})
	}
	cmd.AddCommand(newBenchKernels(a), newBenchSequences(a))
	return cmd
}

// addModel adds the flags of the measured model; quant is the help of --quant.
func (o *benchOptions) addModel(fs *pflag.FlagSet, quant string) {
	o.fs = fs
	cli.AddShape(fs, &o.shape, cli.RandomShape)
	cli.AddModel(fs, &o.dir)
	fs.StringSliceVar(&o.quants, "quant", nil, quant)
	cli.OneOf(fs, "quant", append(slices.Clone(engine.QuantTypes), asStored)...)
	cli.ShowDefault(fs, "quant", "q4 with --shape, else stored")
}

// oneQuant refuses several types of weights.
func (o *benchOptions) oneQuant() error {
	if len(o.quants) > 1 {
		return cli.Flagf("quant", "got %s, want one type", strings.Join(o.quants, ","))
	}
	return nil
}

// addEncoder adds --encoder-quant.
func (o *benchOptions) addEncoder(fs *pflag.FlagSet) {
	fs.StringVar(&o.encoder, "encoder-quant", "",
		"type of the vision tower's and projector's weights")
	cli.OneOf(fs, "encoder-quant", engine.EncoderQuantTypes...)
	cli.ShowDefault(fs, "encoder-quant", cli.EncoderDefault+"; with --shape, bf16 where the CPU "+
		"has it, else f16, instead of stored")
}

// printResult prints the result of a subcommand of bench, whose run returned err.
func printResult(
	cmd *cobra.Command, a *cli.App, asJSON bool, result interface{ write(io.Writer) error },
	err error,
) error {
	switch {
	case cmd.Context().Err() != nil:
		return cli.CutShort("bench %s: interrupted, there is no result", cmd.Name())
	case err != nil:
		return err
	case asJSON:
		return cli.WriteJSON(a.Out, result)
	default:
		return result.write(a.Out)
	}
}

// addCache adds --cache-type.
func (o *benchOptions) addCache(fs *pflag.FlagSet) {
	fs.StringVar(&o.cache, "cache-type", "", "type of keys and values")
	cli.OneOf(fs, "cache-type", engine.CacheTypes...)
	cli.ShowDefault(fs, "cache-type", cli.CacheDefault)
}

// addRepeats adds the flags that say how a benchmark runs.
func (o *benchOptions) addRepeats(fs *pflag.FlagSet) {
	fs.IntVarP(&o.threads, "threads", "t", runtime.GOMAXPROCS(0), "compute on `N` threads")
	fs.IntVar(&o.repeat, "repeat", 3, "measure `N` times")
	cli.Within(fs, 1, cli.MaxThreads, "threads")
	cli.Within(fs, 1, 1000, "repeat")
}

// bench is one run of `restore-lab bench`.
type bench struct {
	o       *benchOptions
	shape   *shape.Shape
	budgets []benchBudget
	patches []int        // [0] if the model's pictures have one size
	encoder string       // type of its weights; "": the model's own default
	peer    *peer        // nil without --peer
	profile bytes.Buffer // profile of the first plan's runs
}

// benchBudget is one budget of --n-vis.
type benchBudget struct {
	count int     // number of tokens; 0: not given as a number
	share float64 // share of all tokens; 0: not given as a share; 1: all
}

// of is roughly how many of tokens the budget keeps.
func (n benchBudget) of(tokens int) int {
	if n.count > 0 {
		return n.count
	}
	return max(1, int(math.Round(n.share*float64(tokens))))
}

func parseBudget(s string) (benchBudget, error) {
	if s == "all" {
		return benchBudget{0, 1}, nil
	}
	if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= shape.MaxPatches {
		return benchBudget{n, 0}, nil
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && f > 0 && f <= 1 {
		return benchBudget{0, f}, nil
	}
	return benchBudget{}, cli.Flagf("n-vis", "got %q, want a number of tokens up to %d, a "+
		"share up to 1, or all", s, shape.MaxPatches)
}

// check refuses wrong flags, and sets the default of --quant.
func (o *benchOptions) check() error {
	if err := cli.CheckShape(o.fs); err != nil {
		return err
	}
	if len(o.quants) == 0 {
		o.quants = []string{asStored}
		if o.shape != "" {
			o.quants[0] = "q4"
		}
	}
	return nil
}

// prepare checks the flags and sets the defaults.
func (o *benchOptions) prepare() (*bench, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	b := &bench{o: o}
	var err error
	if o.peer != "" {
		if b.peer, err = newPeer(o.peer); err != nil {
			return nil, err
		}
	}
	if b.shape, err = o.described(); err != nil {
		return nil, err
	}
	if len(o.budgets) == 0 {
		o.budgets = b.shape.Family.Budgets
	}
	for _, s := range o.budgets {
		n, err := parseBudget(s)
		if err != nil {
			return nil, err
		}
		b.budgets = append(b.budgets, n)
	}
	b.patches = slices.Sorted(slices.Values(o.patches)) // buffers only grow, see measure
	if b.shape.Family.Across > 0 {
		const why = "has no use with this model, got %v: its pictures have one size"
		if err := cli.NoUse(o.fs, true, why, "patches"); err != nil {
			return nil, err
		}
		b.patches = []int{0}
	} else if len(b.patches) == 0 {
		b.patches = []int{1024, 4096, 16384}
	}
	for _, p := range b.patches {
		if _, err := b.shape.Picture(p); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// described describes the model before it is loaded.
func (o *benchOptions) described() (*shape.Shape, error) {
	if o.shape != "" {
		return loadShape(o.shape)
	}
	ck, err := formats.Open(o.dir)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	return shape.New(ck.About().Name, ck.Parts().Config.Data)
}

// open loads the model, or makes random weights.
func (b *bench) open(a *cli.App, quant string, work *nn.Work) (*engine.Engine, error) {
	o := engine.Options{
		Threads: b.o.threads, EncoderQuant: b.encoder, CacheType: b.o.cache,
		Warn: func(s string) { a.Note("%s", s) },
	}
	o.Parallel = b.o.parallel
	if quant != asStored {
		o.Quant = quant
	}
	processor, err := b.shape.Processor()
	if err != nil {
		return nil, err
	}
	h := engine.Hooks{Work: work, Processor: processor}
	if b.o.shape == "" {
		return engine.OpenWith(formats.Files{Model: b.o.dir}, o, h)
	}
	ck, err := checkpoint.FromConfig(b.shape.Name, b.shape.Config)
	if err != nil {
		return nil, err
	}
	pool := kernel.NewPool(b.o.threads)
	defer pool.Close()
	maker := newWeightMaker(pool)
	h.Weights = maker.make
	m, err := engine.New(ck, o, h)
	if maker.err != nil {
		return nil, maker.err
	}
	return m, err
}

// benchCell is one row of the result and its samples.
type benchCell struct {
	quant   string
	patches int
	budget  benchBudget
	tokens  int // before reduction
	runs    []*lab.Measurement
	times   *engine.Times
	// per run, the memory read rate just before and after it, because it changes from minute to
	// minute
	read []float64
	rss  int64
	// of the encoder: operations of attention, peak memory of the process with the first picture
	// of this size; bytes of all weights
	attention          float64
	encodeRSS, weights int64

	peers []peerTurn // per run, with --peer
}

// chooseEncoder sets the type of the encoder's weights, and returns why if the flags do not say it.
func (b *bench) chooseEncoder() (why string) {
	b.encoder = b.o.encoder
	if b.encoder == "" && b.o.shape != "" {
		b.encoder, why = model.EncoderDefault(kernel.InUse(), b.shape.Vision.Width, false)
	}
	return why
}

// run measures every plan in turn.
func (b *bench) run(ctx context.Context, a *cli.App) (*benchJSON, error) {
	limits := newMachineLimits(b.o.threads)
	defer limits.close()
	limits.sample()
	why := b.chooseEncoder()
	out := &benchJSON{
		EncoderWhy: why,
		Model:      b.shape.Name, CPU: calibrate.CPU(), Kernel: kernel.Implementation(),
		Threads: b.o.threads, Text: b.o.text, Gen: b.o.gen, Repeat: b.o.repeat,
		Base: b.o.base, Restore: b.o.restore, Cache: map[string]string{}, limits: b.o.limits,
		Plans: map[string]map[string]int64{}, Rows: []benchRow{},
	}
	var cells []*benchCell
	for _, q := range b.o.quants {
		made, err := b.measure(ctx, a, q, limits, out)
		if err != nil {
			return nil, err
		}
		cells = append(cells, made...)
	}
	out.Peaks = peaksOf(limits.samples)
	out.fill(cells)
	return out, nil
}

// measure runs one plan.
func (b *bench) measure(
	ctx context.Context, a *cli.App, quant string, limits *machineLimits, out *benchJSON,
) ([]*benchCell, error) {
	start := time.Now()
	m, err := b.open(a, quant, limits.work)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	info := m.Info()
	cli.LimitGarbage(info.Resident)
	out.Plans[quant], out.Cache[quant] = info.Kept, m.About().CacheType
	if e := info.Encoder; e != nil {
		out.Encoder, out.EncoderWhy = e.Type, cmp.Or(e.Why, out.EncoderWhy)
	}
	if cli.IsTerminal(a.Err) {
		a.Say("%s, %s: ready after %.1f s", b.shape.Name, quant,
			time.Since(start).Seconds())
	}
	shown := a.Meter("runs, " + quant)
	defer shown.End()
	done, total := int64(0), int64(len(b.patches)*(1+b.o.repeat*len(b.budgets)))
	shown.Set(done, total)
	speed := m.Speed(a.Calibrating)
	var cells []*benchCell
	for _, patches := range b.patches {
		made, err := b.cellsOf(ctx, m, quant, patches, speed)
		if err != nil {
			return nil, err
		}
		cells = append(cells, made...)
		done++
		shown.Set(done, total)
	}
	// do not count memory left over from loading and the first runs
	debug.FreeOSMemory()
	if b.o.profile != "" && len(out.Plans) == 1 { // the first plan's
		if err := pprof.StartCPUProfile(&b.profile); err != nil {
			return nil, err
		}
		defer pprof.StopCPUProfile()
	}
	limits.sample()
	for i := range b.o.repeat {
		for _, c := range cells {
			if err := b.turn(ctx, m, c, i, limits); err != nil {
				return nil, err
			}
			done++
			shown.Set(done, total)
		}
	}
	return cells, nil
}

// cellsOf returns the cells of one picture's size, after a first run that is not measured.
func (b *bench) cellsOf(
	ctx context.Context, m *engine.Engine, quant string, patches int, speed *kernel.Speed,
) (cells []*benchCell, err error) {
	pic, err := b.shape.Picture(patches)
	if err != nil {
		return nil, err
	}
	// Run the first budget once without timing: it touches the weights and the workspace, and
	// shows how many tokens the picture has. Only this run, before larger pictures, shows the
	// memory that the encoder takes for a picture of this size.
	debug.FreeOSMemory()
	resetPeakRSS()
	warm, err := lab.Measure(ctx, m, lab.MeasureRequest{
		Image: pic, Reduce: b.reduction(b.budgets[0], 0), Text: b.o.text, Steps: b.o.gen,
	})
	if err != nil {
		return nil, err
	}
	px, err := m.Pixels([]*imageproc.Picture{pic}, nil)
	if err != nil {
		return nil, err
	}
	_, attention := m.Model().EncodeWork(px, 1)
	for _, n := range b.budgets {
		if n.count > warm.Before {
			return nil,
				cli.Flagf("n-vis", "got %d, want at most the picture's %d tokens", n.count,
					warm.Before)
		}
		c := &benchCell{
			quant: quant, patches: patches, budget: n, tokens: warm.Before,
			attention: attention, encodeRSS: warm.EncodePeakRSS, weights: m.Info().Resident,
		}
		kept := n.of(warm.Before)
		if kept == warm.Before {
			kept = 0 // all, also those that no reduction keeps
		}
		c.times, err = m.PredictTimes(speed, m.Source(), engine.Question{
			Width: pic.Width, Height: pic.Height, NVis: kept, Text: b.o.text, Generated: b.o.gen,
		})
		if err != nil {
			return nil, err
		}
		cells = append(cells, c)
	}
	return cells, nil
}

// turn measures one cell once, and --peer before or after it, in alternation.
func (b *bench) turn(
	ctx context.Context, m *engine.Engine, c *benchCell, i int, limits *machineLimits,
) error {
	if b.peer == nil {
		return b.once(ctx, m, c, i, limits)
	}
	outside := func() error {
		t, err := b.peer.run(ctx, c.runs[0].PromptTokens, b.o.gen, b.o.threads)
		c.peers = append(c.peers, t)
		return err
	}
	if i%2 == 1 {
		if err := outside(); err != nil {
			return err
		}
	}
	if err := b.once(ctx, m, c, i, limits); err != nil || i%2 == 1 {
		return err
	}
	return outside()
}

// once measures one cell once.
func (b *bench) once(
	ctx context.Context, m *engine.Engine, c *benchCell, i int, limits *machineLimits,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	pic, err := b.shape.Picture(c.patches)
	if err != nil {
		return err
	}
	// samples taken after the previous run
	before := len(limits.samples["dram"]) - limitSamples
	resetPeakRSS()
	run, err := lab.Measure(ctx, m, lab.MeasureRequest{
		Image: pic, Reduce: b.reduction(c.budget, c.tokens), Text: b.o.text, Steps: b.o.gen,
		Seed: uint64(i),
	})
	if err != nil {
		return err
	}
	c.rss = max(c.rss, run.PeakRSS)
	c.runs = append(c.runs, run)
	limits.sample()
	c.read = append(c.read, slices.Max(limits.samples["dram"][before:]))
	return nil
}

// reduction returns the options of a budget; none for all tokens.
func (b *bench) reduction(n benchBudget, tokens int) methods.Options {
	if n.share == 1 || tokens > 0 && n.count == tokens {
		return methods.Options{Base: "none"}
	}
	return methods.Options{Base: b.o.base, Restore: b.o.restore, NVis: n.count, KeepRatio: n.share}
}

// limitFormats are the formats whose products have different limits, by the limit's name.
var limitFormats = map[string]kernel.Format{
	"fma": kernel.F32, "dot": kernel.Q8, "nibble": kernel.Q4, "word": kernel.Q12,
	"bf16": kernel.BF16Dot,
}

// machineLimits samples the machine's limits between measurements.
type machineLimits struct {
	pool    *kernel.Pool
	work    *nn.Work
	samples map[string][]float64 // by the limit's name; "dram": reading memory
}

func newMachineLimits(threads int) *machineLimits {
	return &machineLimits{kernel.NewPool(threads), new(nn.Work), map[string][]float64{}}
}

func (l *machineLimits) close() { l.pool.Close() }

// limitTime is the time of a sample of a peak.
const limitTime = 1500 * time.Microsecond

// Samples of every limit after a measurement, and the memory read in one: more than any last-level
// cache keeps. Tests lower both.
var limitSamples, limitBytes = 6, 256 << 20

// sample samples all limits.
func (l *machineLimits) sample() {
	var memory kernel.Memory
	defer memory.Free()
	buf := memory.Bytes(limitBytes)
	// touch every page, so that each address has its own memory
	l.pool.Run(limitBytes>>20, func(i int) { clear(buf[i<<20 : (i+1)<<20]) })
	for range limitSamples {
		for name := range limitFormats {
			l.samplePeak(name)
		}
		l.samples["dram"] = append(l.samples["dram"], kernel.SampleRead(l.pool, buf))
	}
}

// samplePeak samples one limit of multiply-adds once.
func (l *machineLimits) samplePeak(name string) {
	rate := kernel.SamplePeak(l.pool, limitFormats[name], limitTime)
	l.samples[name] = append(l.samples[name], rate)
}

// sampleDot samples only the 8-bit peak.
func (l *machineLimits) sampleDot() {
	for range limitSamples {
		l.samplePeak("dot")
	}
}

// limitOf estimates a limit of the machine from samples: nearly the best one, because other
// processes can only slow a sample down.
func limitOf(samples []float64) float64 { return round(stats.Interpolated(samples, 0.98)) }

// peaksOf returns the limits from their samples by name.
func peaksOf(samples map[string][]float64) benchPeaks {
	return benchPeaks{
		FMA: limitOf(samples["fma"]), Dot: limitOf(samples["dot"]),
		Nibble: limitOf(samples["nibble"]), Word: limitOf(samples["word"]),
		BF16: limitOf(samples["bf16"]), DRAM: limitOf(samples["dram"]),
	}
}

// resetPeakRSS resets the process's peak of resident memory, if the system can.
func resetPeakRSS() {
	if runtime.GOOS == "linux" {
		// if this fails, the peak covers the whole run
		_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	}
}
