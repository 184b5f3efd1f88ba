package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/sample"
)

// runOptions are the flags of `restore run`.
type runOptions struct {
	model     modelFlags
	server    remoteFlags
	question  questionFlags
	reduction reductionFlags
	sampling  sample.Options
	maxTokens int
	drawings  drawingFlags
	json      bool
}

func newRun(a *app) *cobra.Command {
	o := new(runOptions)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Answer a question about pictures, or hold a conversation",
		Long: `Answer a question about pictures. The answer streams to stdout; a report, and all other text, goes to stderr.

Without -p it is a conversation: one question per line, and commands such as /image FILE and /help. Reduced tokens and the cache
are kept between turns. On a terminal you can edit lines and recall earlier ones, and a pasted text is one question. The lines come
from stdin, so no file of a conversation can be stdin; nor can two files of any command.

By default each picture of more than 64 tokens is reduced to 64 by RESTORE over HoloV; --base none reads all tokens.
Ctrl-C stops the answer; the report is still shown, and the exit code is 1. In a conversation on a terminal Ctrl-C stops only
that answer.

With --server a server answers. Each turn of a conversation sends the whole of it; the server keeps what it has read in its
caches. A method inside the decoder chooses tokens for each question again, the model's chat template places the pictures, and
an answer that Ctrl-C stops has no report.`,
		Example: `  restore run --image cat.jpg -p "What is there?"
  restore run --image a.png --image b.png -p "What changed from <image> to <image>?"
  restore run -m DIR --image a.png --image b.png -p @question.txt --base divprune --n-vis 128 --overlay kept.png --json
  restore run -m DIR --image a.png
  restore run --server http://127.0.0.1:8642 --image a.png
  restore run -m DIR --video-frames a.png b.png c.png --fps 2 -p "What moves?"`,
		Args: o.question.args,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.model.add(fs)
	o.server.add(fs)
	o.question.addImages(fs, "")
	o.question.addVideo(fs)
	o.question.addPrompt(fs, "; without it a conversation starts")
	o.question.addSystem(fs)
	fs.IntVarP(&o.maxTokens, "n-predict", "n", 256, "answer with at most `N` tokens")
	o.reduction.add(fs, "holov", 64)
	fs.Float64Var(&o.sampling.Temp, "temp", 0, "`temperature`, 0 takes the likeliest token")
	fs.IntVar(&o.sampling.TopK, "top-k", 40, "sample among the `K` likeliest tokens, 0 is all")
	fs.Float64Var(&o.sampling.TopP, "top-p", 0.95,
		"sample among the likeliest tokens with this total `share` of the probability, 1 is all")
	fs.Float64Var(&o.sampling.MinP, "min-p", 0.05,
		"sample among tokens with at least this `share` of the likeliest one's probability, "+
			"0 is all")
	fs.Int64Var(&o.sampling.Seed, "seed", 0, "`seed` of sampling and of --base random")
	o.question.addReading(fs)
	o.model.addResize(fs)
	o.drawings.add(fs)
	fs.BoolVar(&o.json, "json", false, "print one JSON object per answer, no text or report")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.run(cmd.Context(), a, !fs.Changed("prompt"))
	}
	return cmd
}

// check returns the request without question and pictures. It refuses wrong flags.
func (o *runOptions) check() (engine.Request, error) {
	r := engine.Request{Sample: o.sampling, MaxTokens: o.maxTokens}
	fs, d := o.reduction.fs, &o.drawings
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
	o.reduction.seed = o.sampling.Seed
	if r.Reduce, err = o.reduction.options(); err != nil {
		return r, err
	}
	for _, name := range []string{"top-k", "top-p", "min-p", "seed"} {
		f := fs.Lookup(name)
		if f.Changed && o.sampling.Temp == 0 && (name != "seed" || r.Reduce.Base != "random") {
			return r, usagef("--%s: has no effect at temperature 0, got %s, want --temp above 0",
				name, f.Value)
		}
	}
	if err := d.check(); err != nil {
		return r, err
	}
	switch {
	case d.overlay != "" && r.Reduce.Base == "none":
		return r, usagef("--overlay: has nothing to show, got --base none, want a reduction")
	case (d.overlay != "" || d.stages != "") && len(o.question.frames) > 0:
		return r, usagef(
			"--overlay: cannot be drawn with --video-frames, got %d frames, want pictures alone",
			len(o.question.frames))
	case d.stages != "" && !r.Reduce.Inside() && !r.Reduce.InsideEncoder():
		return r, usagef(
			"--overlay-stages: has nothing to show, got --base %s, want a method inside the "+
				"encoder or the decoder, or --two-stages", r.Reduce.Base)
	}
	return r, nil
}

func (o *runOptions) run(ctx context.Context, a *app, isTalk bool) error {
	q := &o.question
	if err := a.checkStdin(isTalk, slices.Concat(q.inputs(), o.reduction.files())); err != nil {
		return err
	}
	r, err := o.check()
	if err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return err
	}
	if err := o.server.check(o.reduction.fs); err != nil {
		return err
	}
	if err := o.checkDrawn(isTalk); err != nil {
		return err
	}
	outs := a.outputs(slices.Concat(inputPaths(q.inputs()), o.model.files.Paths(),
		inputPaths(o.reduction.files()))...)
	defer outs.discard()
	d := &drawings{flags: &o.drawings, outs: outs}
	// a conversation's first picture may be added later
	if err := d.open(max(len(q.images), 1)); err != nil {
		return err
	}
	q.encoded = o.server.url != ""
	asked, err := q.load(a)
	if err != nil {
		return err
	}
	var with dialogue = &remoteDialogue{o: o, a: a, outs: outs}
	if o.server.url == "" {
		m, err := o.model.open(a)
		if err != nil {
			return err
		}
		defer m.Close()
		local := &localDialogue{o: o, a: a, m: m, d: d}
		if err := local.set(r); err != nil {
			return err
		}
		local.restart()
		with = local
	}
	if isTalk {
		return (&talk{o: o, a: a, outs: outs, d: with, next: *asked}).run(ctx)
	}
	if len(asked.names()) == 0 {
		a.note("no picture is shown (--image FILE): the answer depends only on the text")
	}
	_, err = with.ask(ctx, nil, asked)
	return err
}

// checkDrawn refuses drawings without a picture; a conversation may be shown one later.
func (o *runOptions) checkDrawn(isTalk bool) error {
	if isTalk || len(o.question.images)+len(o.question.frames) > 0 {
		return nil
	}
	for _, name := range []string{"overlay", "overlay-stages"} {
		if f := o.reduction.fs.Lookup(name); onCommandLine(f) {
			return usagef("--%s: has nothing to show, got %s, want a picture (--image) to draw in",
				name, f.Value)
		}
	}
	return nil
}

// checkLength refuses an answer limit above the model's context.
func (o *runOptions) checkLength(m *engine.Engine) error {
	if o.reduction.fs.Changed("n-predict") && o.maxTokens > m.Context() {
		return usagef("--n-predict: out of range, got %d, want at most the model's context of %d",
			o.maxTokens, m.Context())
	}
	return nil
}

// room refuses pictures that cannot fit in the context together with the dialogue's pictures,
// before any of them is encoded. It counts the fewest positions that they may take, because the
// exact number is known only after reading them.
func (o *runOptions) room(m *engine.Engine, r *engine.Request, before []*imageproc.Picture) error {
	all := slices.Concat(before, r.Images)
	if len(all) < 2 || r.Reduce.Positions == "sequential" && r.Reduce.Base != "none" {
		return nil
	}
	s, positions := m.Info().Sizes, 0.0
	for _, pic := range all {
		if s != nil && s.Views == 1 {
			positions += float64(s.Tokens)
			continue
		}
		n, err := m.PictureTokens(pic)
		switch {
		case err != nil:
			return err
		case s == nil: // positions by row and column: the longer side counts
			positions += math.Sqrt(float64(n))
		default: // tokens of tiles, without newlines
			positions += 0.9 * float64(n)
		}
	}
	if int(positions) <= m.Context() {
		return nil
	}
	return &errs.ContextError{
		PromptTokens: int(positions),
		Positions:    int(positions),
		Context:      m.Context(),
	}
}

// printer shows an answer on stdout as it arrives.
type printer struct {
	out  io.Writer
	wait *meter // until the first piece
	json bool   // the text is not shown
	text strings.Builder
	open bool // the last line has no end
}

func (o *runOptions) printer(a *app, outs *outputs) *printer {
	return &printer{out: outs.results(), wait: a.meter("reading the prompt"), json: o.json}
}

// piece shows a piece of the answer.
func (p *printer) piece(s string) {
	p.text.WriteString(s)
	if p.json || s == "" {
		return
	}
	p.wait.end()
	io.WriteString(p.out, s)
	p.open = !strings.HasSuffix(s, "\n")
}

// end ends the answer.
func (p *printer) end() {
	p.wait.end()
	if p.open {
		fmt.Fprintln(p.out)
	}
}

// localDialogue is a dialogue with a model in this process.
type localDialogue struct {
	o    *runOptions
	a    *app
	m    *engine.Engine
	d    *drawings
	conv *engine.Conversation
	r    engine.Request // options of every question
}

// set implements dialogue.
func (l *localDialogue) set(r engine.Request) error {
	if err := l.o.checkLength(l.m); err != nil {
		return err
	}
	l.r = r
	return nil
}

// restart implements dialogue.
func (l *localDialogue) restart() { l.conv = l.m.NewConversation(l.r.Reduce) }

// undo implements dialogue.
func (l *localDialogue) undo() { l.conv.Undo() }

// describe implements dialogue.
func (l *localDialogue) describe(_ context.Context, p shownPicture) (string, error) {
	tokens, err := l.m.PictureTokens(p.pic)
	if err != nil {
		return "", err
	}
	reduced := ""
	if o := l.r.Reduce; o.NVis > 0 && o.NVis < tokens {
		reduced = fmt.Sprintf(", reduced to %d", o.NVis)
	} else if o.KeepRatio > 0 {
		reduced = fmt.Sprintf(", reduced to %v of them", o.KeepRatio)
	}
	return sizeLine(p.pic.Width, p.pic.Height, tokens) + reduced, nil
}

// ask implements dialogue.
func (l *localDialogue) ask(
	ctx context.Context, before []exchange, q *question,
) (*exchange, error) {
	r, names := l.r, q.names()
	r.Prompt, r.System, r.Places, r.Images, r.Video = q.prompt, q.system, q.places, q.images(),
		q.video
	var held []*imageproc.Picture
	for _, e := range before {
		held = append(held, e.images()...)
	}
	if err := l.o.room(l.m, &r, held); err != nil {
		return nil, err
	}
	if err := l.d.open(len(r.Images)); err != nil {
		return nil, err
	}
	p := l.o.printer(l.a, l.d.outs)
	r.OnText = p.piece
	ans, err := l.conv.Ask(ctx, r)
	p.end()
	if ans == nil {
		l.d.discard()
		return nil, err
	}
	var turn *exchange
	if ans.Finish != engine.FinishCancelled || len(ans.Tokens) > 0 {
		turn = &exchange{question: q, answer: ans.Text}
	}
	return turn, l.report(ctx, r, ans, names)
}

// report writes the drawings, and the report to stderr or, with --json, to stdout.
func (l *localDialogue) report(
	ctx context.Context, r engine.Request, ans *engine.Answer, names []string,
) (err error) {
	l.o.noteUnseen(l.a, r, ans, names)
	overlays, stages, drawErr := l.d.write(&r, ans)
	ans.Report.PeakRSS = max(ans.Report.PeakRSS, engine.PeakRSS()) // drawing takes memory too
	if l.o.json {
		err = writeJSON(l.d.outs.results(), newAnswerJSON(l.m, ans, names, overlays, stages))
	} else {
		err = writeTable(l.a.err, l.m, ans)
	}
	switch {
	case err != nil:
		return err
	case drawErr != nil:
		return drawErr
	case ctx.Err() != nil:
		return errCut
	}
	return nil
}

// errCut ends the turn of a cancelled question.
var errCut = cutShort("run: interrupted, the answer is not complete")

// unseenFrom is the unseen share of a picture from which a note is printed.
const unseenFrom = 0.01

// noteUnseen notes how much of each picture the model does not see.
func (o *runOptions) noteUnseen(a *app, r engine.Request, ans *engine.Answer, names []string) {
	first := len(names) - len(r.Images) // a video comes first
	for i, pic := range r.Images {
		if first+i >= len(ans.Report.Images) {
			return
		}
		seen, w, h := 0.0, 0.0, 0.0
		for _, g := range ans.Report.Images[first+i].Grids {
			if gw, gh := g.Frame.Inside(pic); gw*gh > seen {
				seen, w, h = gw*gh, gw, gh
			}
		}
		if all := float64(pic.Width) * float64(pic.Height); seen > 0 && 1-seen/all >= unseenFrom {
			a.note("%s: the model does not see %.0f %% of it: of %dx%d pixels it takes the middle "+
				"%.0fx%.0f; --pad shows all", names[first+i], 100*(1-seen/all), pic.Width,
				pic.Height, w, h)
		}
	}
}
