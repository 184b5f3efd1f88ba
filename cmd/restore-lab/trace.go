package main

import (
	"context"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/seam"
)

// traceOptions are the flags of `restore-lab trace`.
type traceOptions struct {
	model     cli.ModelFlags
	question  cli.QuestionFlags
	reduction cli.ReductionFlags
	in, out   string
	tokens    int
	image     int32
}

func newTrace(a *cli.App) *cobra.Command {
	o := new(traceOptions)
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Run one forward pass and write all intermediate tensors",
		Long: `Run one forward pass and write all intermediate tensors as safetensors, to compare with another implementation.

The input is a file with input_ids and pixel_values (image_sizes, canvas_sizes, image_grid_thw if the model has them; of a video pixel_values_videos and video_grid_thw, alone or too; without pixel_values only
text), or --image and -p. In input_ids a picture is the token
that the vocabulary calls <image> or <|image_pad|>. Other tensors in the file are ignored, so a trace can be an input.
With --in the model's folder needs only config.json and weights. Decoding is greedy and does not stop at the end token.
There is no reduction unless --base is given.`,
		Example: `  restore-lab trace -m DIR --in inputs.safetensors --tokens 24 --out activations.safetensors
  restore-lab trace --image cat.jpg -p "What is there?" --base holov --n-vis 64 --out activations.safetensors`,
		Args: o.question.Args,
	}
	fs := cmd.Flags()
	o.model.Add(fs)
	fs.StringVar(&o.in, "in", "", "safetensors `file` with input_ids and pixel_values")
	fs.Int32Var(&o.image, "image-token", 0,
		"the `id` of a picture in input_ids, if the vocabulary has none")
	cli.ShowDefault(fs, "image-token", "the model's")
	o.question.AddImages(fs, ", instead of --in")
	o.question.AddVideo(fs)
	o.question.AddPrompt(fs, ", instead of --in")
	o.question.AddSystem(fs)
	fs.IntVar(&o.tokens, "tokens", 0, "decode `N` tokens after the prompt")
	cli.Within(fs, 0, math.Inf(1), "tokens")
	fs.StringVar(&o.out, "out", "", "safetensors `file` to write")
	o.reduction.Add(fs, "none", 0)
	fs.Int64Var(&o.reduction.Seed, "seed", 0, "`seed` of --base random")
	o.question.AddReading(fs)
	o.model.AddResize(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a, cmd) }
	return cmd
}

// check refuses wrong flags.
func (o *traceOptions) check(a *cli.App, cmd *cobra.Command) error {
	q := &o.question
	switch {
	case o.out == "":
		return cli.Need(cmd, "out", o.out)
	case o.in == "" && q.Prompt == "":
		return cli.Usagef("trace: no input, want --in FILE or -p QUESTION")
	case o.in != "" && (q.Prompt != "" || q.System != "" || len(q.Images)+len(q.Frames) > 0):
		return cli.Flagf("in", "given together with --image, --video-frames, -p or "+
			"--system-prompt, want one kind of input")
	case o.in != "" && (o.model.MinPixels != 0 || o.model.MaxPixels != 0):
		return cli.Usagef("--min-pixels and --max-pixels: have no use with --in, got %d and %d: "+
			"its pixel_values are resized already", o.model.MinPixels, o.model.MaxPixels)
	}
	if err := cli.NoUse(cmd.Flags(), o.in == "", "has no use without --in, got %v",
		"image-token"); err != nil {
		return err
	}
	if err := a.CheckStdin(false, slices.Concat(q.Inputs(), o.reduction.Files())); err != nil {
		return err
	}
	if err := q.Check(); err != nil {
		return err
	}
	if err := o.reduction.CheckSeed(); err != nil {
		return err
	}
	return a.Bytes("out", o.out)
}

// request reads the input.
func (o *traceOptions) request(a *cli.App, r *lab.TraceRequest) error {
	asked, err := o.question.Load(a)
	if err != nil {
		return err
	}
	if asked.VideoAfter > 0 {
		return cli.Flagf("prompt", "a picture stands before the video, want the video first")
	}
	r.Prompt, r.System, r.Places = asked.Prompt, asked.System, asked.Places
	if r.Images, err = pixels(asked); err != nil {
		return err
	}
	r.Video, err = seam.Video(asked.Video)
	return err
}

func (o *traceOptions) run(ctx context.Context, a *cli.App, cmd *cobra.Command) error {
	if err := o.check(a, cmd); err != nil {
		return err
	}
	r := lab.TraceRequest{Tokens: o.tokens}
	var err error
	if r.Reduce, err = options(&o.reduction); err != nil {
		return err
	}
	outs := a.Outputs(slices.Concat(cli.InputPaths(o.question.Inputs()), o.model.Paths(),
		[]string{o.in}, cli.InputPaths(o.reduction.Files()))...)
	defer outs.Discard()
	file, err := outs.Open("out", o.out)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("image-token") {
		r.ImageToken = &o.image
	}
	if o.in != "" {
		f, err := checkpoint.OpenSafetensors(o.in)
		if err != nil {
			return cli.PathError(o.in, err)
		}
		defer f.Close()
		r.Inputs = f.Tensors
	}
	if err := o.request(a, &r); err != nil {
		return err
	}
	m, err := openEngine(ctx, a, &o.model)
	if err != nil {
		return err
	}
	defer m.Close()
	if o.tokens > m.Context() {
		return cli.Flagf("tokens", "out of range, got %d, want at most the model's context of %d",
			o.tokens, m.Context())
	}
	shown := a.Meter("tracing")
	defer shown.End()
	tensors, err := lab.Trace(ctx, m, r)
	shown.End()
	if err != nil {
		if ctx.Err() != nil {
			return cli.CutShort("trace: interrupted, nothing is written")
		}
		return err
	}
	// the base's kept tokens have one name in a trace, with and without RESTORE
	for name, t := range tensors {
		if reduction, ok := strings.CutSuffix(name, ".retained"); ok {
			delete(tensors, name)
			tensors[reduction+".kept"] = t
		}
	}
	return file.Write(func(w io.Writer) error {
		return checkpoint.WriteSafetensors(w, tensors, nil)
	})
}
