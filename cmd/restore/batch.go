package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/version"
)

// batchOptions are the flags of `restore batch`.
type batchOptions struct {
	answering answeringFlags
	nats      natsFlags

	in, out, journal  string
	unordered, strict bool
}

// batchParallel is how many requests of a file are answered at once: more than a server's default,
// because nobody waits for the first word of an answer.
const batchParallel = 16

func newBatch(a *app) *cobra.Command {
	o := new(batchOptions)
	cmd := &cobra.Command{
		Use:   "batch",
		Short: "Answer a file of requests; a killed run can continue",
		Long: `Answer a file of requests in OpenAI's batch format: each line of --in is {"custom_id", "method", "url", "body"}, with the URLs
and bodies of 'restore serve'. For each line, one line {"id", "custom_id", "response", "error"} is written to --out, in the same order.

A refused request gives a response with its status. A line that cannot be read gives an error, and the run continues. Every result is
written to the journal at once: after a kill at any moment, the same command continues where it stopped and asks no request twice.
Requests about the same picture run next to each other, so that it is read once. The summary on stdout is JSON; the
exit code is 0 when every line has a result.`,
		Example: `  restore batch --in requests.jsonl --out results.jsonl
  restore batch --in requests.jsonl --out results.jsonl -m DIR --quant q4 --n-vis 64 --media-path pictures`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&o.in, "in", "", "read requests from this `file`")
	fs.StringVar(&o.out, "out", "", "write results to this `file`")
	fs.StringVar(&o.journal, "journal", "", "keep answers in this `folder`")
	fs.Lookup("journal").Annotations = map[string][]string{applies: {"--out and .journal"}}
	fs.BoolVar(&o.unordered, "unordered", false, "write results in order of completion")
	fs.BoolVar(&o.strict, "strict", false, "stop at a line that cannot be read")
	o.nats.add(fs, "let the workers at this address answer", true)
	o.answering.add(fs)
	o.answering.parallel, o.answering.throughput = batchParallel, true
	fs.Lookup("parallel").DefValue = fmt.Sprint(batchParallel)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// check refuses wrong flags before any file is opened.
func (o *batchOptions) check() error {
	switch {
	case o.in == "":
		return usagef("--in: missing, want a file of requests")
	case o.out == "":
		return usagef("--out: missing, want a file for the results")
	}
	if in, err := os.Stat(o.in); err == nil {
		if out, err := os.Stat(o.out); err == nil && os.SameFile(in, out) {
			return usagef("--out: got %s, which is --in, want another file", o.out)
		}
	}
	if err := o.answering.checkNATS(&o.nats); err != nil {
		return err
	}
	return o.answering.check()
}

// Limits in bytes of a request's body, and of an input line, which contains one.
const (
	batchBody = 64 * mb
	batchLine = batchBody + 1*mb
)

// run answers the file.
func (o *batchOptions) run(ctx context.Context, a *app) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	in, err := os.Open(o.in)
	if err != nil {
		return err
	}
	defer in.Close()
	if info, err := in.Stat(); err != nil || !info.Mode().IsRegular() {
		return usagef("--in: got %s, which is no file, want one that can be read again", o.in)
	}
	if o.journal == "" {
		o.journal = o.out + ".journal"
	}
	var b *answerer
	defer func() {
		if b != nil {
			err = errors.Join(err, b.close())
		}
	}()
	j, err := batch.OpenJournal(o.journal, o.out, func(id string) (_ string, err error) {
		if b, err = o.open(ctx, a, id); err != nil {
			return "", err
		}
		return b.settings, nil
	})
	if errors.Is(err, batch.ErrInUse) {
		return fmt.Errorf("%w (--journal)", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	show := newBatchProgress(a, o.in)
	sum, err := batch.Run(ctx, in, j, b.asks, batch.Options{
		Parallel: b.parallel, MaxLine: batchLine, Unordered: o.unordered, Strict: o.strict,
		Progress: show.update})
	show.end()
	line, failed := json.Marshal(sum)
	if failed == nil {
		_, failed = fmt.Fprintf(a.out, "%s\n", line)
	}
	if errors.Is(err, errInterrupted) {
		return cutShort(
			"batch: interrupted; the answers so far are in %s, and the same command continues",
			o.journal,
		)
	}
	return errors.Join(err, failed)
}

// answerer answers the lines of a batch.
type answerer struct {
	opened
	asks     batch.Backend
	settings string // everything that changes answers
	parallel int    // requests asked at once
}

// remoteParallel is how many requests are asked at once of remote workers.
const remoteParallel = 512

// open makes the answerer: a server without a port, with a model in this process or with remote
// workers. id is the journal's id.
func (o *batchOptions) open(ctx context.Context, a *app, id string) (_ *answerer, err error) {
	log := warnings(a)
	loader, err := o.answering.loader()
	if err != nil {
		return nil, err
	}
	// Ask twice as many requests as run, so that pictures are decoded while other requests are
	// answered.
	o.answering.queue = 2 * o.answering.parallel
	out := &answerer{parallel: o.answering.queue}
	out.then(func() { _ = loader.Close() }) // only read from
	defer func() {
		if err != nil {
			err = errors.Join(err, out.close())
		}
	}()
	err = o.answering.openAt(ctx, a, log, &o.nats, &out.opened, place{name: "restore batch",
		folder: filepath.Join(o.journal, "nats"), client: fleet.ClientOptions{ID: id}})
	if err != nil {
		return nil, err
	}
	h := batch.Handler{Handler: o.answering.inProcess(out.backend, loader, log)}
	out.asks = h
	if o.nats.url != "" {
		out.asks, out.parallel = named{h}, remoteParallel
	}
	out.settings, err = o.answering.settings(out.backend.Info())
	return out, err
}

// named gives each request of a file a name, so that a later run finds its result.
type named struct{ batch.Handler }

// Do implements batch.Backend.
func (n named) Do(ctx context.Context, r *batch.Request) (*batch.Response, error) {
	return n.Handler.Do(fleet.Named(ctx, strconv.Itoa(r.Line)), r)
}

// inProcess returns a server without a port.
func (o *answeringFlags) inProcess(
	b server.Backend,
	loader *media.Loader,
	log *slog.Logger,
) *server.Server {
	s := server.New(server.Options{
		Version: version.Module(), Kernel: kernel.Implementation(), MaxBodyBytes: batchBody,
		MaxImages: o.maxImages, MaxImageBytes: int64(o.maxImage) * mb,
		MaxImagePixels: int64(o.maxPixels),
		NoMetrics:      true, NoPage: true, Log: log, Media: loader,
	})
	s.Ready(b)
	return s
}

// settings describes everything that changes the answers of a model.
func (o *answeringFlags) settings(i *server.Info) (string, error) {
	out, err := json.Marshal(
		map[string]any{"model": i.ID, "digest": i.Digest, "defaults": i.Defaults,
			"n-predict": o.maxTokens, "ctx-size": o.context, "exif": o.exif,
			"seed": o.sampling.Seed, "pad": o.model.pad,
			"min-pixels": o.model.minPixels, "max-pixels": o.model.maxPixels},
	)
	return string(out), err
}

// batchProgress shows how much of a file is answered.
type batchProgress struct {
	meter *meter
	log   io.Writer // gets a line periodically; nil if a terminal shows the meter
	total atomic.Int64
	stop  chan struct{}

	started, told time.Time
	marks         []progressMark // in the last minute
}

// progressMark is the number of answered lines at one time.
type progressMark struct {
	at   time.Time
	done int
}

const (
	rateOver  = time.Minute      // period of the rate
	tellEvery = 30 * time.Second // without a terminal
)

func newBatchProgress(a *app, in string) *batchProgress {
	now := time.Now()
	p := &batchProgress{
		meter:   a.meter("answering"),
		stop:    make(chan struct{}),
		started: now,
		told:    now,
		marks:   []progressMark{{now, 0}},
	}
	if p.meter == nil {
		p.log = a.err
	}
	go p.count(in)
	return p
}

// count counts the lines of the input, to estimate the remaining time.
func (p *batchProgress) count(in string) {
	f, err := os.Open(in)
	if err != nil {
		return // the run itself reports the error
	}
	defer f.Close()
	buf := make([]byte, 1<<20)
	lines, last := int64(0), byte('\n')
	for {
		n, err := f.Read(buf)
		if n > 0 {
			lines += int64(bytes.Count(buf[:n], []byte("\n")))
			last = buf[n-1]
		}
		select {
		case <-p.stop:
			return
		default:
		}
		if err != nil {
			if last != '\n' {
				lines++
			}
			if errors.Is(err, io.EOF) {
				p.total.Store(lines)
			}
			return
		}
	}
}

// update takes the counts after each result.
func (p *batchProgress) update(s batch.Summary) {
	now, done := time.Now(), s.Done()
	if last := p.marks[len(p.marks)-1]; now.Sub(last.at) >= time.Second {
		p.marks = append(p.marks, progressMark{now, done})
		for len(p.marks) > 2 && now.Sub(p.marks[1].at) > rateOver {
			p.marks = p.marks[1:]
		}
	}
	first := p.marks[0]
	rate := float64(done-first.done) / max(now.Sub(first.at).Seconds(), 1e-3)
	left := int64(0)
	if total := p.total.Load(); total > 0 {
		left = max(0, total-int64(s.Before))
	}
	p.meter.label(fmt.Sprintf("answering, %.3g a second", rate))
	p.meter.set(int64(done), left)
	if p.log == nil || now.Sub(p.told) < tellEvery {
		return
	}
	p.told = now
	var text strings.Builder
	fmt.Fprintf(&text, "batch: %d answered", done+s.Before)
	if left > 0 {
		fmt.Fprintf(&text, " of %d", left+int64(s.Before))
	}
	fmt.Fprintf(&text, ", %.3g a second", rate)
	if left > 0 && rate > 0 {
		wait := time.Duration(float64(left-int64(done)) / rate * float64(time.Second))
		fmt.Fprintf(&text, ", %s left", wait.Round(time.Second))
	}
	fmt.Fprintln(p.log, text.String())
}

func (p *batchProgress) end() {
	close(p.stop)
	p.meter.end()
}
