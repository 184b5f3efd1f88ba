package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	restore "github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/sample"
	"github.com/spf13/cobra"
)

// errInterrupted ends a command that Ctrl-C cut short, after it has shown what it had.
var errInterrupted = errors.New("run: interrupted, the answer is not complete")

// runOptions are the flags of `restore run`.
type runOptions struct {
	model     modelFlags
	picture   pictureFlags
	video     videoFlags
	reduction reductionFlags
	sampling  sample.Options
	prompt    string
	system    string
	images    []string
	maxTokens int
	overlay   string
	stages    string // overlay of each stage
	json      bool
}

func newRun(a *app) *cobra.Command {
	o := new(runOptions)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Answer a question about pictures, or hold a conversation",
		Long: `Answer a question about pictures. The answer streams on stdout; a table of what was done, and all else, goes to stderr.

Without -p it is a conversation: one question a line; /image FILE shows another picture with the next question; /exit or the
end of the input ends it. Reduced tokens and the cache are kept between turns.

By default each picture of more than 64 tokens is reduced to 64 by RESTORE over HoloV; --base none reads them all.
Ctrl-C stops the answer; what was done is still shown, and the exit code is 1.`,
		Example: `  restore run --image cat.jpg -p "What is there?"
  restore run -m DIR --image a.png --image b.png -p "What changed?" --base divprune --n-vis 128 --overlay kept.png --json
  restore run -m DIR --image a.png
  restore run -m DIR --video-frames a.png b.png c.png --fps 2 -p "What moves?"`,
		Args: o.video.args,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	fs.StringArrayVar(&o.images, "image", nil, "picture `file` to ask about; may be repeated")
	o.video.add(fs)
	fs.StringVarP(&o.prompt, "prompt", "p", "", "the `question`; without it, a conversation")
	fs.StringVar(&o.system, "system-prompt", "", "say this `text` before the conversation, instead of what the chat template says")
	fs.IntVarP(&o.maxTokens, "n-predict", "n", 256, "answer with at most `N` tokens")
	o.reduction.add(fs, "holov", 64)
	fs.Float64Var(&o.sampling.Temp, "temp", 0, "`temperature`, 0 takes the likeliest token")
	fs.IntVar(&o.sampling.TopK, "top-k", 40, "sample among the `K` likeliest tokens, 0 is all")
	fs.Float64Var(&o.sampling.TopP, "top-p", 0.95, "sample among the likeliest tokens that hold this `share`, 1 is all")
	fs.Float64Var(&o.sampling.MinP, "min-p", 0.05, "sample among tokens with at least this `share` of the likeliest one's probability, 0 is all")
	fs.Int64Var(&o.sampling.Seed, "seed", 0, "`seed` of sampling and of --base random")
	o.picture.add(fs)
	o.model.addResize(fs)
	fs.StringVar(&o.overlay, "overlay", "", "write a picture of kept and merged patches to this PNG `file` (numbered when there are several pictures)")
	fs.StringVar(&o.stages, "overlay-stages", "", "write what each stage of a method inside the encoder or the decoder leaves to this PNG `file`, drawing beside drawing")
	fs.BoolVar(&o.json, "json", false, "print one JSON object an answer instead of text and table")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("prompt") && strings.TrimSpace(o.prompt) == "" {
			return usagef("--prompt: empty, want a question, or no --prompt for a conversation")
		}
		return o.run(cmd.Context(), a, !cmd.Flags().Changed("prompt"))
	}
	return cmd
}

// check finds what is wrong with the flags before anything is loaded.
func (o *runOptions) check() (restore.Request, error) {
	r := restore.Request{Prompt: o.prompt, System: o.system, Sample: o.sampling, MaxTokens: o.maxTokens}
	if o.maxTokens < 1 {
		return r, usagef("--n-predict: out of range, got %d, want at least 1", o.maxTokens)
	}
	if o.sampling.TopP == 0 {
		return r, usagef("--top-p: out of range, got 0, want a number above 0 and at most 1")
	}
	if _, err := sample.New(o.sampling); err != nil {
		return r, &usageError{err}
	}
	var err error
	r.Reduce, err = o.reduction.options(o.sampling.Seed)
	if err == nil && o.overlay != "" && r.Reduce.Base == "none" {
		err = usagef("--overlay: has nothing to show, got --base none, want a reduction")
	}
	if err == nil && (o.overlay != "" || o.stages != "") && len(o.video.frames) > 0 {
		err = usagef("--overlay: cannot be drawn with --video-frames, got %d frames, want pictures alone", len(o.video.frames))
	}
	if err == nil && o.stages != "" && !r.Reduce.Inside() && !r.Reduce.InsideEncoder() {
		err = usagef("--overlay-stages: has nothing to show, got --base %s, want a method inside the encoder or the decoder", r.Reduce.Base)
	}
	return r, err
}

func (o *runOptions) run(ctx context.Context, a *app, talk bool) error {
	r, err := o.check()
	if err != nil {
		return err
	}
	if !talk && len(o.images)+len(o.video.frames) == 0 {
		for _, name := range []string{"overlay", "overlay-stages"} {
			if f := o.reduction.fs.Lookup(name); onCommandLine(f) {
				return usagef("--%s: has nothing to show, got %s, want a picture (--image) to draw in", name, f.Value)
			}
		}
	}
	if r.Images, err = o.picture.loadAll(o.images); err != nil {
		return err
	}
	if r.Video, err = o.video.load(&o.picture); err != nil {
		return err
	}
	names := o.images
	if r.Video != nil {
		names = append([]string{o.video.name()}, names...)
	}
	m, err := o.model.open(a)
	if err != nil {
		return err
	}
	defer m.Close()
	if talk {
		return o.talk(ctx, a, m, r, names)
	}
	return o.answer(ctx, a, m, r, names, m.Ask)
}

// answer asks once by ask, and shows the answer on a.out and what was done on a.err. names are the files of r.Images.
func (o *runOptions) answer(ctx context.Context, a *app, m *restore.Model, r restore.Request, names []string,
	ask func(context.Context, restore.Request) (*restore.Answer, error)) error {
	last := byte('\n')
	if !o.json {
		r.OnText = func(s string) {
			if s != "" {
				io.WriteString(a.out, s)
				last = s[len(s)-1]
			}
		}
	}
	ans, err := ask(ctx, r)
	if last != '\n' {
		fmt.Fprintln(a.out)
	}
	if ans == nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return err
	}
	overlays, stages, drawErr := o.drawOverlays(r, ans)
	if o.json {
		err = writeJSON(a.out, newAnswerJSON(m, ans, names, overlays, stages))
	} else {
		err = writeTable(a.err, ans)
	}
	switch {
	case err != nil:
		return err
	case drawErr != nil:
		return drawErr
	case ctx.Err() != nil:
		return errInterrupted
	}
	return nil
}

// overlayName numbers the overlay files of several pictures: kept.png becomes kept-1.png, kept-2.png.
func overlayName(path string, i, n int) string {
	if n == 1 {
		return path
	}
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(path, ext), i+1, ext)
}
