package main

import (
	"context"
	"errors"
	"io"
	"strings"

	restore "github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/checkpoint"
	"github.com/spf13/cobra"
)

// traceOptions are the flags of `restore trace`.
type traceOptions struct {
	model     modelFlags
	picture   pictureFlags
	video     videoFlags
	reduction reductionFlags
	in, out   string
	prompt    string
	system    string
	images    []string
	tokens    int
	seed      int64
}

func newTrace(a *app) *cobra.Command {
	o := new(traceOptions)
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Run one forward and write every intermediate",
		Long: `Run one forward and write every intermediate as safetensors, to compare with another implementation.

The input is a file with input_ids and pixel_values (image_sizes, image_grid_thw where the model has them; no pixel_values: text
only), or --image and -p. Other tensors in the file are ignored, so that a trace can be fed back. The model's folder needs hold
nothing but config.json and weights when --in is used. Decoding is greedy and does not stop at the end token.
Reduction is off unless --base is given.`,
		Example: `  restore trace -m DIR --in inputs.safetensors --tokens 24 --out activations.safetensors
  restore trace --image cat.jpg -p "What is there?" --base holov --n-vis 64 --out activations.safetensors`,
		Args: o.video.args,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	fs.StringVar(&o.in, "in", "", "safetensors `file` with input_ids and pixel_values")
	fs.StringArrayVar(&o.images, "image", nil, "picture `file`, instead of --in; may be repeated")
	o.video.add(fs)
	fs.StringVarP(&o.prompt, "prompt", "p", "", "the `question`, instead of --in")
	fs.StringVar(&o.system, "system-prompt", "", "say this `text` before the question, instead of what the chat template says")
	fs.IntVar(&o.tokens, "tokens", 0, "decode `N` tokens after the prompt")
	fs.StringVar(&o.out, "out", "", "safetensors `file` to write")
	o.reduction.add(fs, "none", 0)
	fs.Int64Var(&o.seed, "seed", 0, "`seed` of --base random")
	o.picture.add(fs)
	o.model.addResize(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a, cmd) }
	return cmd
}

func (o *traceOptions) run(ctx context.Context, a *app, cmd *cobra.Command) error {
	r := restore.TraceRequest{Prompt: o.prompt, System: o.system, Tokens: o.tokens}
	var err error
	switch {
	case o.out == "":
		return need(cmd, "out", o.out)
	case o.in == "" && o.prompt == "":
		return usagef("trace: no input, want --in FILE or -p QUESTION")
	case o.in != "" && (o.prompt != "" || o.system != "" || len(o.images)+len(o.video.frames) > 0):
		return usagef("--in: given together with --image, --video-frames, -p or --system-prompt, want one kind of input")
	case o.in != "" && (o.model.minPixels != 0 || o.model.maxPixels != 0):
		return usagef("--min-pixels and --max-pixels: have no use with --in, got %d and %d: its pixel_values are resized already", o.model.minPixels, o.model.maxPixels)
	case o.tokens < 0:
		return usagef("--tokens: out of range, got %d, want 0 or more", o.tokens)
	}
	if err := o.reduction.checkSeed(); err != nil {
		return err
	}
	if r.Reduce, err = o.reduction.options(o.seed); err != nil {
		return err
	}
	if o.in != "" {
		f, err := checkpoint.OpenSafetensors(o.in)
		if err != nil {
			return pathError(o.in, err)
		}
		defer f.Close()
		r.Inputs = f.Tensors
	}
	if r.Images, err = o.picture.loadAll(o.images); err != nil {
		return err
	}
	if r.Video, err = o.video.load(&o.picture); err != nil {
		return err
	}
	m, err := o.model.open(a)
	if err != nil {
		return err
	}
	defer m.Close()
	tensors, err := m.Trace(ctx, r)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("trace: interrupted, nothing is written")
		}
		return err
	}
	for name, t := range tensors { // what the base kept has one name in a trace, with RESTORE and without
		if reduction, ok := strings.CutSuffix(name, ".retained"); ok {
			delete(tensors, name)
			tensors[reduction+".kept"] = t
		}
	}
	return writeFile(o.out, a.out, func(w io.Writer) error { return checkpoint.WriteSafetensors(w, tensors, nil) })
}
