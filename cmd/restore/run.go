package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/machine"
	"github.com/restore-vlm/restore/reduce"
)

// runOptions are the flags of `restore run`.
type runOptions struct {
	model     cli.ModelFlags
	server    remoteFlags
	question  cli.QuestionFlags
	reduction cli.ReductionFlags
	sampling  restore.Sampling
	maxTokens int
	drawings  cli.DrawingFlags
	json      bool
	verbose   bool
	quiet     bool
	history   bool
}

func newRun(a *cli.App) *cobra.Command {
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
		Args: o.question.Args,
	}
	fs := cmd.Flags()
	o.model.Add(fs)
	o.server.add(fs)
	o.question.AddImages(fs, "")
	o.question.AddVideo(fs)
	o.question.AddPrompt(fs, "; without it a conversation starts")
	o.question.AddSystem(fs)
	fs.IntVarP(&o.maxTokens, "n-predict", "n", 256, "answer with at most `N` tokens")
	o.reduction.Add(fs, "holov", 64)
	addSampling(fs, &o.sampling)
	fs.Int64Var(&o.sampling.Seed, "seed", 0, "`seed` of sampling and of --base random")
	cli.Within(fs, 1, math.Inf(1), "n-predict")
	o.question.AddReading(fs)
	o.model.AddResize(fs)
	o.drawings.Add(fs)
	fs.BoolVarP(&o.verbose, "verbose", "v", false,
		"report model, method, tokens, the time of every stage and memory after an answer")
	fs.BoolVarP(&o.quiet, "quiet", "q", false, "print answers and errors only, no report or notes")
	fs.BoolVar(&o.json, "json", false, "print one JSON object per answer, no text or report")
	fs.BoolVar(&o.history, "history", true,
		"keep the questions that are typed on a terminal, for the arrow keys in later "+
			"conversations")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return o.run(cmd.Context(), a, !fs.Changed("prompt"))
	}
	return cmd
}

// check returns the request without question and pictures. It refuses wrong flags.
func (o *runOptions) check() (r restore.Request, err error) {
	fs, d := o.reduction.Flags, &o.drawings
	r.MaxTokens = o.maxTokens
	if err := cli.CheckValues(fs); err != nil { // /set changes them
		return r, err
	}
	if err := o.sampling.Check(); err != nil {
		return r, &cli.UsageError{Err: err}
	}
	if r.Sampling = o.sampling; r.Sampling.Temperature == 0 {
		r.Sampling = restore.Sampling{} // the defaults of the other flags have no effect
	}
	o.reduction.Seed = o.sampling.Seed
	if r.Reduction, err = o.reduction.Reduction(); err != nil {
		return r, err
	}
	base, _ := r.Reduction.Options["base"].(string)
	site := cli.Method(base).Site
	stages := site == reduce.InsideEncoder || site == reduce.InsideDecoder
	if o.server.url != "" { // which has its own defaults
		if r.Reduction, err = o.reduction.Demanded(); err != nil {
			return r, err
		}
	}
	const greedy = "has no effect at temperature 0, got %v, want --temp above 0"
	cold := o.sampling.Temperature == 0
	if err := cmp.Or(
		cli.NoUse(fs, cold, greedy, "top-k", "top-p", "min-p"),
		cli.NoUse(fs, cold && base != "random", greedy, "seed"),
		cli.NoUse(fs, base == "none",
			"has nothing to show, got --base none, want a reduction", "overlay"),
		cli.NoUse(fs, !stages,
			"has nothing to show, got --base "+base+", want a method inside the encoder "+
				"or the decoder", "overlay-stages"),
	); err != nil {
		return r, err
	}
	if err := d.Check(); err != nil {
		return r, err
	}
	if n := len(o.question.Frames); (d.Overlay != "" || d.Stages != "") && n > 0 {
		return r, cli.Flagf("overlay",
			"cannot be drawn with --video-frames, got %d frames, want pictures alone", n)
	}
	return r, nil
}

func (o *runOptions) run(ctx context.Context, a *cli.App, isTalk bool) error {
	q := &o.question
	if err := o.checkShown(isTalk); err != nil {
		return err
	}
	a.Quiet = o.quiet
	if err := a.CheckStdin(isTalk, slices.Concat(q.Inputs(), o.reduction.Files())); err != nil {
		return err
	}
	if err := o.server.check(o.reduction.Flags); err != nil {
		return err
	}
	r, err := o.check()
	if err != nil {
		return err
	}
	if err := q.Check(); err != nil {
		return err
	}
	if err := o.checkDrawn(isTalk); err != nil {
		return err
	}
	outs := a.Outputs(slices.Concat(cli.InputPaths(q.Inputs()), o.model.Paths(),
		cli.InputPaths(o.reduction.Files()))...)
	defer outs.Discard()
	d := &cli.Drawings{Flags: &o.drawings, Outs: outs}
	// a conversation's first picture may be added later
	if err := d.Open(max(len(q.Images), 1)); err != nil {
		return err
	}
	q.Encoded = o.server.url != ""
	asked, err := q.Load(a)
	if err != nil {
		return err
	}
	var typing *editor
	if isTalk {
		if typing, err = newEditor(a, o.history); err != nil {
			return err
		}
		defer a.Interrupts.Restore()
	}
	with := &dialogue{o: o, a: a, d: d}
	if o.server.url != "" {
		with.s, err = o.server.open(ctx)
	} else {
		var m *restore.Model
		if m, err = o.model.Open(ctx, a); err == nil {
			defer m.Close()
			with.s = m
		}
	}
	if err != nil {
		return err
	}
	if err := with.set(r); err != nil {
		return err
	}
	if err := with.restart(); err != nil {
		return err
	}
	if isTalk {
		return (&talk{o: o, a: a, outs: outs, d: with, next: *asked, editor: typing}).run(ctx)
	}
	if len(asked.Names()) == 0 {
		o.noteTextAlone(a, "--image FILE")
	}
	_, err = with.ask(ctx, asked)
	return err
}

// checkShown refuses flags of the report that exclude each other.
func (o *runOptions) checkShown(isTalk bool) error {
	fs := o.reduction.Flags
	return cmp.Or(
		cli.NoUse(fs, o.json, "has no effect with --json, which has no report, got %v", "verbose"),
		cli.NoUse(fs, o.quiet, "has no effect with --quiet, got %v", "verbose"),
		cli.NoUse(fs, !isTalk, "has no effect with --prompt, got %v", "history"),
	)
}

// noteTextAlone says that no picture is shown, and how to show one.
func (o *runOptions) noteTextAlone(a *cli.App, how string) {
	embedded := ""
	if o.server.url == "" && o.model.Path == "" {
		embedded = "; the embedded model knows only drawn scenes (-m names another)"
	}
	a.Note("no picture is shown (%s): the answer depends only on the text%s", how, embedded)
}

// checkDrawn refuses drawings without a picture; a conversation may be shown one later.
func (o *runOptions) checkDrawn(isTalk bool) error {
	if isTalk || len(o.question.Images)+len(o.question.Frames) > 0 {
		return nil
	}
	return cli.NoUse(o.reduction.Flags, true,
		"has nothing to show, got %v, want a picture (--image) to draw in",
		"overlay", "overlay-stages")
}

// printer shows an answer on stdout as it arrives.
type printer struct {
	out  io.Writer
	wait *cli.Meter // until the first piece
	json bool       // the text is not shown
	open bool       // the last line has no end
}

func (o *runOptions) printer(a *cli.App, outs *cli.Outputs) *printer {
	return &printer{out: outs.Results(), wait: a.Meter("reading the prompt"), json: o.json}
}

// piece shows a piece of the answer.
func (p *printer) piece(s string) {
	if p.json || s == "" {
		return
	}
	p.wait.End()
	io.WriteString(p.out, s)
	p.open = !strings.HasSuffix(s, "\n")
}

// end ends the answer.
func (p *printer) end() {
	p.wait.End()
	if p.open {
		fmt.Fprintln(p.out)
	}
}

// dialogue asks questions of a model: in this process, or of a server.
type dialogue struct {
	o    *runOptions
	a    *cli.App
	d    *cli.Drawings
	s    restore.Service
	conv *restore.Conversation
	r    restore.Request // options of every question

	ahead chan struct{} // closed when the pictures of the next question are read; nil: none are
	stop  func()        // of that reading
}

// remote reports whether a server answers.
func (d *dialogue) remote() bool { return d.o.server.url != "" }

// set changes the options of later questions. A changed reduction needs a restart.
func (d *dialogue) set(r restore.Request) error {
	most := d.s.Info().Context // 0: a server does not tell it
	if most > 0 && d.o.reduction.Flags.Changed("n-predict") && d.o.maxTokens > most {
		return cli.Flagf("n-predict",
			"out of range, got %d, want at most the model's context of %d",
			d.o.maxTokens, most)
	}
	d.r = r
	return d.o.server.check(d.o.reduction.Flags)
}

// restart forgets all turns.
func (d *dialogue) restart() (err error) {
	d.conv, err = restore.NewConversation(d.s, d.r.Reduction)
	return err
}

// describe returns the picture's size and tokens. The model encodes the picture, and keeps it for
// the question.
func (d *dialogue) describe(ctx context.Context, p cli.ShownPicture) (string, error) {
	shown := d.a.Meter("reading " + p.Name)
	defer shown.End()
	c, err := d.s.Count(ctx, &restore.Request{
		Pictures: []*restore.Picture{p.Pic}, Reduction: d.r.Reduction,
	})
	if err != nil {
		return "", err
	}
	i := &c.Pictures[0]
	size := sizeLine(i.Width, i.Height, i.Tokens)
	if n := i.Kept + i.Merged; n < i.Tokens {
		size += fmt.Sprintf(", reduced to %d", n)
	}
	return size, nil
}

// request returns the request of a question.
func (d *dialogue) request(q *cli.Question) restore.Request {
	r := d.r
	r.Prompt, r.System, r.Places, r.Pictures = q.Prompt, q.System, q.Places, q.Images()
	r.Video, r.VideoAfter = q.Video, q.VideoAfter
	return r
}

// readAhead begins to read the pictures of the next question; cut or settle ends it.
func (d *dialogue) readAhead(ctx context.Context, q *cli.Question) {
	ctx, d.stop = context.WithCancel(ctx)
	done, r := make(chan struct{}), d.request(q)
	d.ahead = done
	go func() {
		defer close(done)
		_ = d.conv.ReadAhead(ctx, r) // the question has the same error
	}()
}

// cut ends the reading ahead.
func (d *dialogue) cut() {
	if d.ahead != nil {
		d.stop()
		<-d.ahead
		d.ahead = nil
	}
}

// settle waits until all is read ahead, or ctx ends.
func (d *dialogue) settle(ctx context.Context) {
	if d.ahead != nil {
		select {
		case <-d.ahead:
		case <-ctx.Done():
		}
		d.cut()
	}
}

// ask asks the next question. It shows the answer on stdout and the report on stderr. It returns
// the turn that the dialogue has now; nil: the question is not part of it, because of an error or a
// cancellation before the answer's first token.
func (d *dialogue) ask(ctx context.Context, q *cli.Question) (turn *exchange, err error) {
	r := d.request(q)
	r.Arrived = time.Now()
	if n := len(q.Places); d.remote() && n > 0 && q.Places[n-1] > 0 {
		d.a.Note("--server: the chat template places pictures, perhaps not where <image> stands")
	}
	if err := d.d.Open(len(r.Pictures)); err != nil {
		return nil, err
	}
	p := d.o.printer(d.a, d.d.Outs)
	d.settle(ctx)
	var ans *restore.Answer
	for piece, failed := range d.conv.Stream(ctx, r) {
		p.piece(piece.Text)
		ans, err = piece.Answer, failed
	}
	p.end()
	if ans == nil {
		d.d.Discard()
		return nil, err
	}
	if ans.Finish != restore.FinishCancelled || ans.Text != "" || len(ans.Tokens) > 0 {
		turn = &exchange{Question: q, answer: ans.Text}
	}
	if d.remote() && ans.Finish == restore.FinishCancelled { // which tells no counts then
		return turn, errCut
	}
	return turn, d.report(ctx, ans, q)
}

// report writes the drawings, and the report to stderr or, with --json, to stdout.
func (d *dialogue) report(ctx context.Context, ans *restore.Answer, q *cli.Question) (err error) {
	d.noteUnseen(ans, q)
	overlays, stages, drawErr := d.d.Write(ans)
	peak := int64(0)
	if !d.remote() {
		peak = machine.PeakRSS()
	}
	if d.o.json {
		j := newAnswerJSON(d.s.Info(), ans, q.Names(), overlays, stages)
		if j.PeakRSS = peak; d.remote() {
			j.Tokens = nil // which a server does not tell
		}
		err = cli.WriteJSON(d.d.Outs.Results(), j)
	} else if d.o.verbose {
		err = writeTable(d.a.Err, d.s.Info(), ans, peak)
	} else if line := summary(ans); line != "" && !d.o.quiet {
		_, err = fmt.Fprintln(d.a.Err, line)
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
var errCut = cli.CutShort("run: interrupted, the answer is not complete")

// unseenFrom is the unseen share of a picture from which a note is printed.
const unseenFrom = 0.01

// noteUnseen notes how much of each picture the model does not see.
func (d *dialogue) noteUnseen(ans *restore.Answer, q *cli.Question) {
	names := q.Names()
	for i := range min(len(ans.Pictures), len(names)) {
		p := &ans.Pictures[i]
		w, h := p.Seen()
		if all := float64(p.Width) * float64(p.Height); w > 0 && 1-w*h/all >= unseenFrom {
			d.a.Note("%s: the model does not see %.0f %% of it: of %dx%d pixels it takes the "+
				"middle %.0fx%.0f; --pad shows all", names[i], 100*(1-w*h/all), p.Width, p.Height,
				w, h)
		}
	}
}
