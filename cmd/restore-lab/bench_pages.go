package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/stats"
)

// benchPagesOptions are the flags of `restore-lab bench pages`.
type benchPagesOptions struct {
	benchOptions
	pages []string
	taus  []float64
}

func newBenchPages(a *cli.App) *cobra.Command {
	o := new(benchPagesOptions)
	cmd := &cobra.Command{
		Use:   "pages",
		Short: "Time the encoder on drawn pages, whole and after PixelPrune",
		Long: `Encode drawn pages of text, screens and scans, with all tokens and with those that PixelPrune leaves, and print how many are encoded and how
long the picture takes: pixel values, the choice and the encoder, medians of runs in turns. PROCESSOR S is the same in processor time, which other
programs change less. PREDICTED is the encoder's time that 'restore show' predicts. APART says what leaving out costs: the median over tokens of the distance between a token's row and its row when all tokens are encoded,
relative to the latter's length; WITH SIZES with --proportional-attention. It is no accuracy, least of all with the random weights of --shape.`,
		Example: `  restore-lab bench pages --shape qwen2.5-vl-3b --patches 1024,4096
  restore-lab bench pages -m DIR --pages screen --tau 0,0.02,0.05 --json`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.addModel(fs, "`type` of the language model's weights")
	o.addEncoder(fs)
	fs.IntSliceVar(&o.patches, "patches", []int{1024, 4096, 16384},
		"`sizes` of the pages in patches")
	fs.StringSliceVar(&o.pages, "pages", lab.PageKinds, "`kinds` of pages")
	cli.OneOf(fs, "pages", lab.PageKinds...)
	fs.Float64SliceVar(&o.taus, "tau", []float64{0, 0.02},
		"`shares` of white by which a pixel may differ")
	cli.ShowDefault(fs, "tau", "0,0.02")
	cli.Within(fs, 0, 1, "tau")
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

// prepare checks the flags.
func (o *benchPagesOptions) prepare() (*bench, error) {
	if err := o.oneQuant(); err != nil {
		return nil, err
	}
	o.base, o.text = "grid", 1 // nothing is read
	b, err := o.benchOptions.prepare()
	if err == nil && b.shape.Family.Across > 0 {
		return nil, cli.Usagef("bench pages: %s: its encoder needs all patches of a picture, "+
			"want a model that takes pictures of any size", b.shape.Name)
	}
	return b, err
}

// pagesJSON is the output of --json.
type pagesJSON struct {
	Model   string     `json:"model"`
	CPU     string     `json:"cpu"`
	Kernel  string     `json:"kernel"`
	Encoder string     `json:"encoder_quant"`
	Threads int        `json:"threads"`
	Repeat  int        `json:"repeat"`
	Rows    []*pageRow `json:"rows"`
}

// pageRow is one page of one size, after PixelPrune with one tau. Times are seconds.
type pageRow struct {
	Page      string  `json:"page"`
	Patches   int     `json:"patches"`
	Tau       float64 `json:"tau"`
	Tokens    int     `json:"tokens"`
	Encoded   int     `json:"encoded"`
	Prepare   float64 `json:"prepare_s"` // pixel values and the choice
	Encode    float64 `json:"encode_s"`
	Predicted float64 `json:"predicted_encode_s"`
	// of the same page with all its tokens
	WholePrepare   float64 `json:"whole_prepare_s"`
	WholeEncode    float64 `json:"whole_encode_s"`
	WholePredicted float64 `json:"whole_predicted_encode_s"`
	SpeedUp        float64 `json:"speed_up"` // of preparing and encoding
	// processor time of preparing and encoding; 0 if the system does not say
	CPU        float64 `json:"cpu_s"`
	WholeCPU   float64 `json:"whole_cpu_s"`
	Apart      float64 `json:"apart"`            // median over tokens
	ApartSized float64 `json:"apart_with_sizes"` // with proportional attention
}

func (o *benchPagesOptions) run(
	ctx context.Context, a *cli.App, b *bench,
) (*pagesJSON, error) {
	b.chooseEncoder()
	work := new(nn.Work)
	m, err := b.open(a, o.quants[0], work)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	cli.LimitGarbage(m.Info().Resident)
	j := &pagesJSON{
		Model: b.shape.Name, CPU: calibrate.CPU(), Kernel: kernel.Implementation(),
		Threads: o.threads, Repeat: o.repeat, Encoder: b.encoder,
	}
	if e := m.Info().Encoder; e != nil {
		j.Encoder = e.Type
	}
	shown := a.Meter("pages")
	defer shown.End()
	speed := m.Speed(a.Calibrating)
	done, total := int64(0), int64(len(b.patches)*len(o.pages))
	for _, patches := range b.patches {
		for _, kind := range o.pages {
			shown.Set(done, total)
			rows, err := o.page(ctx, m, b, kind, patches)
			if err != nil {
				return nil, err
			}
			for _, r := range rows {
				if err := r.predict(m, speed, b); err != nil {
					return nil, err
				}
			}
			j.Rows = append(j.Rows, rows...)
			done++
		}
	}
	return j, nil
}

// pixelPruned are the options of PixelPrune alone.
func pixelPruned(tau float64, sized bool) methods.Options {
	return methods.Options{Base: "pixelprune", Own: map[string]any{
		"pixelprune-tau": tau, "proportional-attention": sized,
	}}
}

// page measures a page with every tau.
func (o *benchPagesOptions) page(
	ctx context.Context, m *engine.Engine, b *bench, kind string, patches int,
) ([]*pageRow, error) {
	pic, err := b.page(kind, patches)
	if err != nil {
		return nil, err
	}
	rows := make([]*pageRow, len(o.taus))
	times := make([]pageTimes, 1+len(rows))
	for range o.repeat {
		whole, err := lab.EncodeOnce(ctx, m, pic, methods.Options{Base: "none"})
		if err != nil {
			return nil, err
		}
		times[0].add(whole)
		for i, tau := range o.taus {
			got, err := lab.EncodeOnce(ctx, m, pic, pixelPruned(tau, false))
			if err != nil {
				return nil, err
			}
			times[i+1].add(got)
			if rows[i] != nil {
				continue
			}
			sized, err := lab.EncodeOnce(ctx, m, pic, pixelPruned(tau, true))
			if err != nil {
				return nil, err
			}
			rows[i] = &pageRow{
				Page: kind, Patches: patches, Tau: tau, Tokens: got.Tokens,
				Encoded: len(got.X) / got.Width, Apart: stats.Median(got.Apart(whole)),
				ApartSized: stats.Median(sized.Apart(whole)),
			}
		}
	}
	for i, r := range rows {
		r.WholePrepare, r.WholeEncode, r.WholeCPU = times[0].medians()
		r.Prepare, r.Encode, r.CPU = times[i+1].medians()
		r.SpeedUp = (r.WholePrepare + r.WholeEncode) / (r.Prepare + r.Encode)
	}
	return rows, nil
}

// pageTimes are the times of encoding one page, in seconds.
type pageTimes struct{ prepare, encode, cpu []float64 }

func (t *pageTimes) add(e *lab.Encoding) {
	t.prepare = append(t.prepare, e.Prepare.Seconds())
	t.encode = append(t.encode, e.Encode.Seconds())
	t.cpu = append(t.cpu, e.CPU.Seconds())
}

func (t *pageTimes) medians() (prepare, encode, cpu float64) {
	return stats.Median(t.prepare), stats.Median(t.encode), stats.Median(t.cpu)
}

// page draws a page of that many patches.
func (b *bench) page(kind string, patches int) (*imageproc.Picture, error) {
	p, err := b.shape.Picture(patches)
	if err != nil {
		return nil, err
	}
	return lab.Page(kind, p.Width, p.Height, uint64(patches))
}

// predict adds the encoder's predicted times.
func (r *pageRow) predict(m *engine.Engine, speed *kernel.Speed, b *bench) error {
	pic, err := b.shape.Picture(r.Patches)
	if err != nil {
		return err
	}
	for encoded, to := range map[int]*float64{0: &r.WholePredicted, r.Encoded: &r.Predicted} {
		t, err := m.PredictTimes(speed, m.Source(), engine.Question{
			Width: pic.Width, Height: pic.Height, Encoded: encoded,
		})
		if err != nil {
			return err
		}
		*to = t.Encode
	}
	return nil
}

// quotient formats a / b, a dash if b is 0.
func quotient(a, b float64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

// write prints the table.
func (j *pagesJSON) write(w io.Writer) error {
	fmt.Fprintf(w, "%s, encoder %s, %s, %s, threads %d, median of %d\n", j.Model, j.Encoder,
		j.CPU, j.Kernel, j.Threads, j.Repeat)
	rows := [][]string{{
		"page", "patches", "tau", "tokens", "encoded", "share", "whole s", "pruned s", "speed-up",
		"processor s", "speed-up", "predicted s", "apart", "with sizes",
	}}
	for _, r := range j.Rows {
		rows = append(rows, []string{
			r.Page, strconv.Itoa(r.Patches), fmt.Sprint(r.Tau), strconv.Itoa(r.Tokens),
			strconv.Itoa(r.Encoded),
			fmt.Sprintf("%.0f %%", 100*float64(r.Encoded)/float64(r.Tokens)),
			fmt.Sprintf("%.2f", r.WholePrepare+r.WholeEncode),
			fmt.Sprintf("%.2f", r.Prepare+r.Encode), fmt.Sprintf("%.2f", r.SpeedUp),
			fmt.Sprintf("%.2f → %.2f", r.WholeCPU, r.CPU), quotient(r.WholeCPU, r.CPU),
			fmt.Sprintf("%.2f → %.2f", r.WholePredicted, r.Predicted),
			fmt.Sprintf("%.3f", r.Apart), fmt.Sprintf("%.3f", r.ApartSized),
		})
	}
	return cli.Table(w, rows)
}
