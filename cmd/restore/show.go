package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/builtin"
	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/cli"
)

// showOptions are the flags of `restore show`.
type showOptions struct {
	flags        *pflag.FlagSet
	model        cli.ModelFlags
	footprint    footprintFlags
	shape        string
	asJSON, card bool
}

func newShow(a *cli.App) *cobra.Command {
	o := &showOptions{model: cli.ModelFlags{Describe: true}}
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Describe a model: architecture, sizes, weights, memory, time",
		Example: `  restore show -m DIR --quant q4 --n-vis 64
  restore show --shape qwen2.5-vl-7b --n-vis 0`,
		Args: cli.NoArgs,
	}
	fs, f := cmd.Flags(), &o.footprint
	o.flags = fs
	o.model.Add(fs)
	cli.AddShape(fs, &o.shape,
		"describe the `shape` of a published model or a config.json, without weights")
	fs.IntVar(&f.nVis, "n-vis", shownTokens,
		"predict memory and time for `N` visual tokens; 0 for all of them")
	fs.IntVar(&f.encoded, "encoded", 0,
		"if a method before the encoder leaves `N` of the visual tokens; 0 for all of them")
	fs.StringVar(&f.picture, "picture", "672x672", "for a picture of this `size` in pixels")
	fs.IntVar(&f.text, "text", 60, "for `N` tokens of text in the prompt")
	fs.IntVar(&f.generated, "gen", 32, "for `N` tokens in the answer")
	cli.Within(fs, 0, mostPredicted, "n-vis", "encoded", "text", "gen")
	fs.BoolVar(&o.asJSON, "json", false, "print one JSON object")
	fs.BoolVar(&o.card, "card", false, "print the embedded model's card instead, in Markdown")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.card {
			return o.showCard(a)
		}
		return o.run(cmd.Context(), a)
	}
	return cmd
}

// showCard prints the embedded model's card.
func (o *showOptions) showCard(a *cli.App) error {
	var others []string
	o.flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "card" {
			others = append(others, f.Name)
		}
	})
	if err := cli.NoUse(o.flags, true, "has no use with --card, got %v", others...); err != nil {
		return err
	}
	_, err := io.WriteString(a.Out, builtin.Card)
	return err
}

// open describes the model, or a shape.
func (o *showOptions) open(ctx context.Context, a *cli.App) (*restore.Model, error) {
	if o.shape == "" {
		return o.model.Open(ctx, a)
	}
	if err := cli.CheckShape(o.flags); err != nil {
		return nil, err
	}
	return o.model.OpenShape(a, o.shape)
}

// run prints the description of a model.
func (o *showOptions) run(ctx context.Context, a *cli.App) error {
	model, err := o.open(ctx, a)
	if err != nil {
		return err
	}
	defer model.Close()
	info := shown{Details: model.Details()}
	if o.shape != "" {
		info.Template = "" // a folder's without one
	}
	info.Free, _ = restore.FreeMemory()
	if info.Processor != "" || o.shape != "" {
		info.Memory, err = o.footprint.predict(model, o.flags.Changed("n-vis"))
		if err != nil {
			return err
		}
	}
	if info.Quants, err = o.footprint.quants(a, model, info.Packed, info.Memory); err != nil {
		return err
	}
	// Read the weights last. If they do not fit into memory, refuse before reading them.
	if o.shape == "" && (info.Free == 0 || info.Resident <= info.Free) {
		if err := model.Verify(); err != nil {
			return err
		}
	}
	if o.asJSON {
		return cli.WriteJSON(a.Out, info)
	}
	if err := cli.Table(a.Out, slices.Concat(infoRows(info.Details), memoryRows(info.Memory),
		quantRows(info.Quants, info.Free))); err != nil || o.model.Path+o.shape != "" {
		return err
	}
	_, err = fmt.Fprintln(a.Out, "\n'restore show --card' prints what this model can answer.")
	return err
}

// Limits of the question whose memory is predicted.
const (
	mostPredicted = 1 << 20 // tokens
	widestPicture = 1 << 14 // pixels of a side
)

// shownTokens is the default budget of run.
const shownTokens = 64

// shown is the output of --json.
type shown struct {
	*restore.Details
	Memory *restore.Memory `json:",omitempty"` // nil if the folder has no picture processor
	Quants []quantSize
	Free   int64 // free memory in bytes; 0 if the system does not report it
}

// quantSize is the memory and time of a model at one --quant.
type quantSize struct {
	Quant   string // "" means as stored
	Weights int64
	Peak    int64          `json:",omitempty"` // for the question of Memory
	Seconds *restore.Times `json:",omitempty"` // for the same question
}

// quants returns the sizes and times at each --quant; for a packed file only its own.
func (f *footprintFlags) quants(
	a *cli.App, m *restore.Model, packed bool, memory *restore.Memory,
) ([]quantSize, error) {
	types := []restore.WeightType{restore.AsStored}
	if !packed {
		decoder, _, _ := restore.WeightTypes()
		types = append(types, decoder...)
	}
	var list []quantSize
	for _, t := range types {
		size := quantSize{Quant: string(t)}
		if t == restore.AsStored {
			size.Quant = ""
		}
		var err error
		if memory == nil {
			size.Weights, err = m.WeightBytes(t)
		} else {
			err = size.predict(m, f.question(), t, a.Calibrating)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, size)
	}
	return list, nil
}

// predict sets the memory and the times of q with the decoder's weights in type t.
func (s *quantSize) predict(
	m *restore.Model, q restore.Question, t restore.WeightType, calibrating func(),
) error {
	memory, err := m.PredictMemory(q, t)
	if err != nil {
		return err
	}
	s.Weights, s.Peak = memory.Weights, memory.Peak
	s.Seconds, err = m.PredictTimes(q, t, calibrating)
	return err
}

// quantRows formats the sizes.
func quantRows(list []quantSize, free int64) [][]string {
	var rows [][]string
	for _, q := range list {
		name := "at --quant " + q.Quant
		if q.Quant == "" {
			name = "as stored"
		}
		text := bytesize.Of(q.Weights) + " of weights"
		if q.Peak > 0 {
			text += ", " + bytesize.Of(q.Peak) + " at peak"
		}
		if most := max(q.Weights, q.Peak); free > 0 && most > free {
			text += fmt.Sprintf(", more than the %s that are free", bytesize.Of(free))
		}
		if t := q.Seconds; t != nil {
			text += fmt.Sprintf(", first token in %s, then %.1f a second", cli.Seconds(t.First),
				1/t.Token)
		}
		rows = append(rows, []string{name, text})
	}
	return rows
}

// footprintFlags describe the question whose memory and time are predicted.
type footprintFlags struct {
	nVis, encoded, text, generated int
	picture                        string
	width, height                  int // parsed from picture
}

func (f *footprintFlags) question() restore.Question {
	return restore.Question{
		Width: f.width, Height: f.height, Encoded: f.encoded, NVis: f.nVis, Text: f.text,
		Generated: f.generated,
	}
}

// predict returns the footprint. Where the picture has fewer visual tokens than the default number,
// all are kept, here and in what question returns from then on.
func (f *footprintFlags) predict(m *restore.Model, asked bool) (*restore.Memory, error) {
	n, err := fmt.Sscanf(f.picture, "%dx%d", &f.width, &f.height)
	if n != 2 || err != nil || fmt.Sprintf("%dx%d", f.width, f.height) != f.picture {
		return nil, cli.Flagf("picture", "got %q, want WIDTHxHEIGHT", f.picture)
	}
	if min(f.width, f.height) < 1 || max(f.width, f.height) > widestPicture {
		return nil, cli.Flagf("picture", "out of range, got %s, want sides of 1 to %d pixels",
			f.picture, widestPicture)
	}
	memory, err := m.PredictMemory(f.question(), restore.Default)
	if option := new(*errs.OptionError); !asked && errors.As(err, option) &&
		(*option).Name == "n-vis" {
		f.nVis = 0 // all
		return m.PredictMemory(f.question(), restore.Default)
	}
	return memory, err
}

// memoryRows formats a footprint.
func memoryRows(f *restore.Memory) [][]string {
	if f == nil {
		return nil
	}
	mb := func(n int64) string { return fmt.Sprintf("%.1f", float64(n)/1e6) }
	encoded := ""
	if f.Encoded < f.Tokens {
		encoded = fmt.Sprintf("%d encoded ones of ", f.Encoded)
	}
	return [][]string{
		{
			"memory at peak",
			fmt.Sprintf("%s MB: weights %s, keys and values %s, encoder %s, decoder %s, program %s",
				mb(f.Peak), mb(f.Weights), mb(f.Cache), mb(f.Encoder), mb(f.Decoder),
				mb(f.Program))},
		{
			"",
			fmt.Sprintf(
				"with a picture of %d x %d, %d of %sits %d tokens, %d of text and %d in the answer",
				f.Width, f.Height, f.Kept, encoded, f.Tokens, f.Prompt-f.Kept, f.Generated)}}
}

// infoRows formats a model's description, one name and value per row.
func infoRows(i *restore.Details) [][]string {
	rows := [][]string{
		{"model", i.Name}, {"files", "none, a shape alone"}, {"architecture", i.Architecture},
	}
	if i.Format != "" {
		rows[1][1] = i.Format + ", " + bytesize.MB(i.Disk)
	}
	types := slices.Sorted(maps.Keys(i.Types))
	rows = append(rows, []string{
		"weights", fmt.Sprintf("%.1f million numbers, %s, %s", float64(i.Params)/1e6,
			bytesize.MB(i.Bytes), strings.Join(types, ", ")),
	})
	kept := slices.Sorted(maps.Keys(i.Kept))
	rows = append(rows, []string{
		"kept in memory",
		bytesize.MB(i.Resident) + ", " + strings.Join(kept, ", "),
	})
	if i.Encoder != nil {
		text := i.Encoder.Type
		if i.Encoder.Why != "" {
			text += ", because " + i.Encoder.Why
		}
		rows = append(rows, []string{"encoder weights", text})
	}
	for _, f := range i.Vision {
		rows = append(rows, []string{"vision " + f.Name, fmt.Sprint(f.Value)})
	}
	for _, f := range i.Text {
		rows = append(rows, []string{"text " + f.Name, fmt.Sprint(f.Value)})
	}
	optional := func(name, value string) {
		if value == "" {
			value = "none in the folder"
		}
		rows = append(rows, []string{name, value})
	}
	tokens := ""
	if i.Tokens > 0 {
		tokens = fmt.Sprintf("%d ids", i.Tokens)
	}
	if i.Format != "" { // a shape has no folder
		optional("tokenizer", tokens)
		optional("chat template", i.Template)
	}
	optional("picture processor", i.Processor)
	switch {
	case i.NoVideos != "":
		rows = append(rows, []string{"video processor", "none, videos are refused: " + i.NoVideos})
	case i.Videos != "":
		rows = append(rows, []string{"video processor", i.Videos})
	}
	if i.Format != "" || len(i.End) > 0 {
		rows = append(rows, []string{"end of answer", strings.Trim(fmt.Sprint(i.End), "[]")})
	}
	if len(i.Unused) > 0 {
		rows = append(rows, []string{
			"generation settings", "not used: " + strings.Join(i.Unused, ", "),
		})
	}
	return append(rows, []string{"kernel", i.Kernel + ", " + cli.Count(i.Threads, "thread")})
}
