package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/address"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/media"
)

// batchOptions are the flags of `restore batch`.
type batchOptions struct {
	answering answeringFlags
	nats      cli.NatsFlags

	in, out, journal  string
	put               string         // address of the results; "" if they stay where they are
	parts             *address.Parts // addresses of parts of the results, in place of put
	unordered, strict bool
}

// batchParallel is how many requests of a file are answered at once: more than a server's default,
// because nobody waits for the first word of an answer.
const batchParallel = 16

func newBatch(a *cli.App) *cobra.Command {
	o := new(batchOptions)
	cmd := &cobra.Command{
		Use:   "batch",
		Short: "Answer a file of requests; a killed run can continue",
		Long: `Answer a file of requests in OpenAI's batch format: each line of --in is {"custom_id", "method", "url", "body"}, with the URLs
and bodies of 'restore serve'. For each line, one line {"id", "custom_id", "response", "error"} is written to --out, in the same order.

A refused request gives a response with its status. A line that cannot be read gives an error, and the run continues. Every result is
written to the journal at once: after a kill at any moment, the same command continues where it stopped and asks no request twice.
It needs the same settings, pictures and output, and the same lines as far as they are answered. Two lines with one custom_id are refused.
Requests about the same picture run next to each other, so that it is read once. The summary on stdout is JSON; the
exit code is 0 when every line has a result.

--in and --out may be addresses: https://HOST/PATH, also presigned for GET and PUT, or s3://BUCKET/KEY with the credentials, profile,
region and endpoint of AWS's tools. Requests are fetched into the journal before the first is answered, results are sent when all are there.
--out @FILE sends them in parts: FILE is {"parts": [...], "complete": "..."}, presigned addresses of UploadPart and CompleteMultipartUpload.`,
		Example: `  restore batch --in requests.jsonl --out results.jsonl
  restore batch --in requests.jsonl --out results.jsonl -m DIR --quant q4 --n-vis 64 --media-path pictures`,
		Args: cli.NoArgs,
	}
	o.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// add declares the flags.
func (o *batchOptions) add(fs *pflag.FlagSet) {
	fs.StringVar(&o.in, "in", "", "read requests from this `file` or address")
	fs.StringVar(&o.out, "out", "",
		"write results to this `file` or address; @FILE has addresses of parts")
	fs.StringVar(&o.journal, "journal", "", "keep answers in this `folder`")
	cli.ShowDefault(fs, "journal", "--out and .journal")
	fs.BoolVar(&o.unordered, "unordered", false, "write results in order of completion")
	fs.BoolVar(&o.strict, "strict", false, "stop at a line that cannot be read")
	o.nats.Add(fs, "let the workers at this address answer", true)
	o.answering.add(fs)
	o.answering.Parallel, o.answering.Throughput = batchParallel, true
	fs.Lookup("parallel").DefValue = fmt.Sprint(batchParallel)
}

// check refuses wrong flags before any file is opened.
func (o *batchOptions) check(a *cli.App) error {
	switch {
	case o.in == "":
		return cli.Flagf("in", "missing, want a file of requests")
	case o.out == "":
		return cli.Flagf("out", "missing, want a file for the results")
	}
	if err := o.checkIn(); err != nil {
		return err
	}
	if err := o.checkOut(a); err != nil {
		return err
	}
	if err := o.answering.checkNATS(&o.nats); err != nil {
		return err
	}
	return o.answering.check()
}

// checkIn refuses an input that cannot be read again.
func (o *batchOptions) checkIn() error {
	if address.Is(o.in) {
		if err := address.Check(o.in); err != nil {
			return cli.Flagf("in", "%w", err)
		}
		return nil
	}
	info, err := os.Stat(o.in)
	if o.in == "-" || err == nil && !info.Mode().IsRegular() {
		return cli.Flagf("in", "got %s, which is no file, want one that can be read again", o.in)
	}
	return nil
}

// checkOut refuses an output that is no file of its own: a continued run reads the results again.
func (o *batchOptions) checkOut(a *cli.App) error {
	list, inParts := strings.CutPrefix(o.out, "@")
	if inParts || address.Is(o.out) {
		if inParts {
			o.parts = new(address.Parts)
			if err := cli.ReadJSON(list, o.parts); err != nil {
				return fmt.Errorf("--out: %w", err)
			}
		}
		if err := o.checkAddress(); err != nil {
			return cli.Flagf("out", "%w", err)
		}
		if o.journal == "" {
			return cli.Flagf("journal", "missing, want a folder, because --out is an address")
		}
		return nil
	}
	_, stream := cli.Standard(o.out)
	info, err := os.Stat(o.out)
	if stream || err == nil && !info.Mode().IsRegular() {
		return cli.Flagf("out", "got %s, which is no file, want one that can be read again", o.out)
	}
	if in, at := os.Stat(o.in); at == nil && err == nil && os.SameFile(in, info) {
		return cli.Flagf("out", "got %s, which is --in, want another file", o.out)
	}
	if err == nil {
		if name := a.StreamTo(info); name != "" {
			return cli.Flagf("out", "got %s, which %s goes to, want another file", o.out, name)
		}
	}
	return nil
}

// checkAddress refuses an address of the results that is none.
func (o *batchOptions) checkAddress() error {
	if o.parts != nil {
		return o.parts.Check()
	}
	return address.Check(o.out)
}

// Limits in bytes of a request's body, and of an input line, which contains one.
const (
	batchBody = 64 * cli.MB
	batchLine = batchBody + 1*cli.MB
)

// run answers the file.
func (o *batchOptions) run(ctx context.Context, a *cli.App) (err error) {
	if err := o.check(a); err != nil {
		return err
	}
	if o.journal == "" {
		o.journal = o.out + ".journal"
	}
	at := newAddresses(a)
	if err := o.fetch(ctx, at); err != nil {
		return err
	}
	in, err := os.Open(o.in)
	if err != nil {
		return err
	}
	defer in.Close()
	lines, err := o.scan(ctx, a, in)
	if err != nil {
		return err
	}
	j, err := batch.OpenJournal(o.journal, o.out)
	if errors.Is(err, batch.ErrInUse) {
		return fmt.Errorf("%w (--journal)", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	_, missing := os.Stat(o.streams())
	begun := false
	defer func() {
		if missing != nil && !begun {
			_ = os.RemoveAll(o.streams()) // no request is in them
		}
	}()
	b, err := o.open(ctx, a, j.ID())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if o.nats.Embedded() {
		a.Interrupts.Wait() // a NATS server needs a second or two to end
	}
	if err := j.Begin(b.settings); err != nil {
		return err
	}
	begun = true
	if err := o.answer(ctx, a, in, lines, j, b); err != nil || !o.away() {
		return err
	}
	return at.put(ctx, o)
}

// streams is the folder of a NATS server inside this process.
func (o *batchOptions) streams() string { return filepath.Join(o.journal, "nats") }

// scan reads the input once: it counts the lines and finds custom_ids that occur twice.
func (o *batchOptions) scan(ctx context.Context, a *cli.App, in *os.File) (lines int, err error) {
	show := a.Meter("reading requests")
	defer show.End()
	if lines, err = batch.Scan(ctx, in, batchLine); err == nil {
		_, err = in.Seek(0, io.SeekStart)
	}
	return lines, err
}

// answer answers the lines of the file and writes the summary.
func (o *batchOptions) answer(
	ctx context.Context, a *cli.App, in io.Reader, lines int, j *batch.Journal, b *answerer,
) error {
	show := newBatchProgress(a, lines)
	sum, err := batch.Run(ctx, in, j, b.asks, batch.Options{
		Parallel: b.parallel, MaxLine: batchLine, Unordered: o.unordered, Strict: o.strict,
		Progress: show.update, File: b.file})
	show.end()
	line, failed := json.Marshal(sum)
	if failed == nil {
		_, failed = fmt.Fprintf(a.Out, "%s\n", line)
	}
	var write *batch.WriteError
	if errors.Is(err, cli.ErrInterrupted) && !errors.As(err, &write) {
		return cli.CutShort(
			"batch: interrupted; the answers so far are in %s, and the same command continues",
			o.journal)
	}
	if err == nil && sum.Lines > 0 && j.Answers() == 0 {
		a.Note("none of the %d lines has an answer: %s", sum.Lines, errorCodes(&sum))
	}
	return errors.Join(err, failed)
}

// errorCodes lists the errors of a run, the most frequent first.
func errorCodes(s *batch.Summary) string {
	counts := maps.Clone(s.Refused)
	for code, n := range s.Unread {
		counts[code] += n
	}
	codes := slices.SortedFunc(maps.Keys(counts), func(x, y string) int {
		return cmp.Or(counts[y]-counts[x], strings.Compare(x, y))
	})
	for i, code := range codes {
		codes[i] = fmt.Sprintf("%d %s", counts[code], code)
	}
	if len(codes) == 0 { // of earlier runs
		return "the results are errors"
	}
	return strings.Join(codes, ", ")
}

// answerer answers the lines of a batch.
type answerer struct {
	opened
	asks     batch.Backend
	file     func(url string) (content [sha256.Size]byte, file bool)
	settings batch.Settings
	parallel int // requests asked at once
}

// remoteParallel is how many requests are asked at once of remote workers.
const remoteParallel = 512

// open makes the answerer: a service with a model in this process or with remote
// workers. id is the journal's id.
func (o *batchOptions) open(ctx context.Context, a *cli.App, id string) (_ *answerer, err error) {
	log := cli.Warnings(a)
	loader, err := o.answering.loader()
	if err != nil {
		return nil, err
	}
	// Ask twice as many requests as run, so that pictures are decoded while other requests are
	// answered.
	o.answering.Queue = 2 * o.answering.Parallel
	out := &answerer{parallel: o.answering.Queue, file: fileOf(loader)}
	out.then(func() { _ = loader.Close() }) // only read from
	defer func() {
		if err != nil {
			err = errors.Join(err, out.close())
		}
	}()
	err = o.answering.openAt(ctx, a, log, &o.nats, &out.opened, place{name: "restore batch",
		folder: o.streams(), client: fleet.ClientOptions{ID: id}})
	if err != nil {
		return nil, err
	}
	settings, err := o.answering.settings(loader)
	if err != nil {
		return nil, err
	}
	if err := o.answering.fits(&settings, out.service); err != nil {
		return nil, err
	}
	h := batch.Service{Front: api.NewFront(out.service, settings), Log: log, Unable: fleet.Denied}
	out.asks = h
	kernel := kernel.Implementation()
	if o.nats.URL != "" {
		out.asks, out.parallel, kernel = named{h}, remoteParallel, "the workers'"
	}
	out.settings = o.answering.batchSettings(out.service.Info(), &settings, kernel)
	return out, nil
}

// fileOf returns the hash of the files that pictures' URLs name.
func fileOf(l *media.Loader) func(url string) ([sha256.Size]byte, bool) {
	return func(url string) (content [sha256.Size]byte, file bool) {
		if !media.IsFile([]byte(url)) {
			return content, false
		}
		data, _, err := l.Load(context.Background(), []byte(url))
		if err != nil {
			return content, true // the request is refused, and says why
		}
		return sha256.Sum256(data), true
	}
}

// named gives each request of a file a name, so that a later run finds its result.
type named struct{ batch.Service }

// Do implements batch.Backend.
func (n named) Do(ctx context.Context, r *batch.Request) (*batch.Response, error) {
	return n.Service.Do(fleet.Named(ctx, fmt.Sprintf("%d-%x", r.Line, r.Key)), r)
}

// batchSettings are everything that changes answers, by flag: what the model depends on, and the
// defaults and limits of requests. The machine's limits, as --kv-mb, are not among them: they may
// refuse a request, but not change an answer.
func (o *answeringFlags) batchSettings(
	i *restore.Info, given *api.Settings, kernel string,
) batch.Settings {
	s := batch.Settings{"model": i.ID, "kernel": kernel,
		"temp": o.sampling.Temperature, "top-k": o.sampling.TopK, "top-p": o.sampling.TopP,
		"min-p": o.sampling.MinP, "n-predict": o.maxTokens, "exif": o.exif,
		"max-images": o.maxImages, "max-image-mb": o.maxImage, "max-image-pixels": o.maxPixels,
		"allowed-media-domains": slices.Compact(slices.Sorted(slices.Values(o.domains))),
	}
	presets := map[string]json.RawMessage{}
	for _, p := range given.Presets {
		presets[p.Name] = p.Fields
	}
	s["detail"], s["preset"] = o.harness.detail, presets
	maps.Copy(s, i.Settings)
	for name, v := range given.Reduction.Options {
		if data, file := v.([]byte); file {
			v = fmt.Sprintf("sha256:%x", sha256.Sum256(data))
		}
		s[name] = v
	}
	return s
}

// batchProgress shows how much of a file is answered.
type batchProgress struct {
	meter *cli.Meter
	log   io.Writer // gets a line periodically; nil if a terminal shows the meter
	total int64

	told  time.Time
	marks []progressMark // in the last minute
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

func newBatchProgress(a *cli.App, lines int) *batchProgress {
	now := time.Now()
	p := &batchProgress{
		meter: a.Meter("answering"),
		total: int64(lines),
		told:  now,
		marks: []progressMark{{now, 0}},
	}
	if p.meter == nil {
		p.log = a.Err
	}
	return p
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
	left := max(0, p.total-int64(s.Before))
	p.meter.Label(fmt.Sprintf("answering, %.3g a second", rate))
	p.meter.Set(int64(done), left)
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

func (p *batchProgress) end() { p.meter.End() }
