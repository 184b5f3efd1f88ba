package main

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/lab"
)

// traceOptions are the flags of `restore trace`.
type traceOptions struct {
	model     modelFlags
	question  questionFlags
	reduction reductionFlags
	in, out   string
	tokens    int
	image     int32
}

func newTrace(a *app) *cobra.Command {
	o := new(traceOptions)
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Run one forward pass and write all intermediate tensors",
		Long: `Run one forward pass and write all intermediate tensors as safetensors, to compare with another implementation.

The input is a file with input_ids and pixel_values (image_sizes, image_grid_thw if the model has them; without pixel_values only
text), or --image and -p. In input_ids a picture is the token
that the vocabulary calls <image> or <|image_pad|>. Other tensors in the file are ignored, so a trace can be an input.
With --in the model's folder needs only config.json and weights. Decoding is greedy and does not stop at the end token.
There is no reduction unless --base is given.`,
		Example: `  restore trace -m DIR --in inputs.safetensors --tokens 24 --out activations.safetensors
  restore trace --image cat.jpg -p "What is there?" --base holov --n-vis 64 --out activations.safetensors`,
		Args: o.question.args,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	fs.StringVar(&o.in, "in", "", "safetensors `file` with input_ids and pixel_values")
	fs.Int32Var(&o.image, "image-token", 0,
		"the `id` of a picture in input_ids, if the vocabulary has none")
	fs.Lookup("image-token").Annotations = map[string][]string{applies: {"the model's"}}
	o.question.addImages(fs, ", instead of --in")
	o.question.addVideo(fs)
	o.question.addPrompt(fs, ", instead of --in")
	o.question.addSystem(fs)
	fs.IntVar(&o.tokens, "tokens", 0, "decode `N` tokens after the prompt")
	fs.StringVar(&o.out, "out", "", "safetensors `file` to write")
	o.reduction.add(fs, "none", 0)
	fs.Int64Var(&o.reduction.seed, "seed", 0, "`seed` of --base random")
	o.question.addReading(fs)
	o.model.addResize(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a, cmd) }
	return cmd
}

func (o *traceOptions) run(ctx context.Context, a *app, cmd *cobra.Command) error {
	r := lab.TraceRequest{Tokens: o.tokens}
	q := &o.question
	var err error
	switch {
	case o.out == "":
		return need(cmd, "out", o.out)
	case o.in == "" && q.prompt == "":
		return usagef("trace: no input, want --in FILE or -p QUESTION")
	case o.in != "" && (q.prompt != "" || q.system != "" || len(q.images)+len(q.frames) > 0):
		return usagef(
			"--in: given together with --image, --video-frames, -p or --system-prompt, want " +
				"one kind of input")
	case o.in != "" && (o.model.minPixels != 0 || o.model.maxPixels != 0):
		return usagef("--min-pixels and --max-pixels: have no use with --in, got %d and %d: its "+
			"pixel_values are resized already", o.model.minPixels, o.model.maxPixels)
	case o.in == "" && cmd.Flags().Changed("image-token"):
		return usagef("--image-token: has no use without --in, got %d", o.image)
	case o.tokens < 0:
		return usagef("--tokens: out of range, got %d, want 0 or more", o.tokens)
	}
	if err := a.checkStdin(false, slices.Concat(q.inputs(), o.reduction.files())); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	if err := o.reduction.checkSeed(); err != nil {
		return err
	}
	if r.Reduce, err = o.reduction.options(); err != nil {
		return err
	}
	outs := a.outputs(slices.Concat(inputPaths(q.inputs()), o.model.files.Paths(), []string{o.in},
		inputPaths(o.reduction.files()))...)
	defer outs.discard()
	file, err := outs.open("out", o.out)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("image-token") {
		r.ImageToken = &o.image
	}
	if o.in != "" {
		f, err := checkpoint.OpenSafetensors(o.in)
		if err != nil {
			return pathError(o.in, err)
		}
		defer f.Close()
		r.Inputs = f.Tensors
	}
	asked, err := q.load(a)
	if err != nil {
		return err
	}
	r.Prompt, r.System, r.Places, r.Images, r.Video = asked.prompt, asked.system, asked.places,
		asked.images(), asked.video
	m, err := o.model.open(a)
	if err != nil {
		return err
	}
	defer m.Close()
	if o.tokens > m.Context() {
		return usagef("--tokens: out of range, got %d, want at most the model's context of %d",
			o.tokens, m.Context())
	}
	shown := a.meter("tracing")
	defer shown.end()
	tensors, err := lab.Trace(ctx, m, r)
	shown.end()
	if err != nil {
		if ctx.Err() != nil {
			return cutShort("trace: interrupted, nothing is written")
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
	return file.write(
		func(w io.Writer) error { return checkpoint.WriteSafetensors(w, tensors, nil) },
	)
}
