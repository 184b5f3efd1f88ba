package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/jobs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/version"
)

// serveOptions are the flags of `restore serve`.
type serveOptions struct {
	answering answeringFlags
	nats      cli.NatsFlags
	jobs      jobFlags

	host           string
	port           int
	api            cli.KeyFlags
	keys           []string // that api names
	isolation      string
	cors, hosts    []string
	cert           []string // its file, and its key's
	maxBody        int
	read           time.Duration
	request, drain time.Duration
	ping           time.Duration
	disabled       []string
	format         string
}

// answeringFlags say how requests are answered.
type answeringFlags struct {
	cli.EngineFlags
	reduction cli.ReductionFlags
	harness   harnessFlags
	sampling  restore.Sampling
	maxTokens int
	exif      bool
	folder    string
	folderMB  int
	shared    *sharedFeatures // nil: the model is no worker's, or shares nothing

	media                          string
	domains                        []string
	maxImages, maxImage, maxPixels int
	fetch                          time.Duration
}

func newServe(a *cli.App) *cobra.Command {
	o := new(serveOptions)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer over HTTP: OpenAI's, Ollama's, Anthropic's API, and a page for the browser",
		Long: `Answer over HTTP: OpenAI's API below /v1, Anthropic's at /v1/messages, Ollama's below /api, and a page for the browser at /.

When the server can answer, stdout gets its only line, "listening on URL"; logs go to stderr. SIGTERM and Ctrl-C end the
server after it has finished the accepted requests; a second one ends it at once. The flags of reductions, sampling and -n set
the defaults for requests. To serve other machines, use --host and --api-key.`,
		Example: `  restore serve
  restore serve -m DIR --quant q4 --host 0.0.0.0 --api-key @keys --cache-dir cache
  curl http://127.0.0.1:8642/v1/chat/completions -d '{"messages":[{"role":"user","content":"Hello"}]}'`,
		Args: cli.NoArgs,
	}
	fs := cmd.Flags()
	o.answering.add(fs)
	o.answering.AddQueue(fs)
	o.nats.Add(fs, "let the workers at this address answer", true)
	fs.StringVar(&o.host, "host", "127.0.0.1", "listen at this `address`")
	fs.IntVar(&o.port, "port", 8642, "listen at this `port`; 0 takes a free one")
	o.api.Add(fs, "accepted keys, one of which each request must have; to serve other machines")
	fs.StringVar(&o.isolation, "cache-isolation", "off",
		"share caches only among requests with the same key")
	cli.OneOf(fs, "cache-isolation", "off", "key")
	fs.IntVar(&o.maxBody, "max-body-mb", 64, "a request's body has at most `N` MB")
	o.jobs.add(fs)
	fs.DurationVar(&o.read, "read-timeout", time.Minute,
		"`time` limit for the body of a request to arrive, each sixth of it with 2 kB a second; "+
			"for its head at most 10s; 0: no limit for the body")
	fs.DurationVar(&o.request, "request-timeout", 10*time.Minute,
		"`time` limit for answering a request; 0: no limit")
	fs.DurationVar(&o.drain, "drain-timeout", 30*time.Second,
		"`time` limit for running requests when the server shuts down; 0: ends them at once")
	fs.DurationVar(&o.ping, "sse-ping", 15*time.Second,
		"send a comment in a silent stream after this `time`; 0: never")
	cli.Within(fs, 0, 65535, "port")
	cli.Within(fs, 1, 1<<20, "max-body-mb")
	cli.Within(fs, 0, math.Inf(1), "read-timeout", "request-timeout", "drain-timeout", "sse-ping")
	fs.StringSliceVar(&o.cors, "cors-origins", nil,
		"`origins` of web pages that may send requests, separated by commas; * is all")
	fs.StringSliceVar(&o.hosts, "allowed-hosts", nil,
		"`names` of this server, separated by commas, in addition to its addresses and localhost")
	for _, name := range []string{"cors-origins", "allowed-hosts"} {
		cli.ShowDefault(fs, name, "loopback")
	}
	fs.StringSliceVar(&o.cert, "tls", nil,
		"serve HTTPS with `CERT,KEY`: the files of the certificate and of its key, read again "+
			"when they change")
	fs.StringSliceVar(&o.disabled, "disable", nil,
		"do not serve these, separated by commas: the page at /, /metrics for Prometheus")
	cli.OneOf(fs, "disable", routes...)
	fs.StringVar(&o.format, "log-format", "text",
		"format of the log; with prompts it has questions and answers too")
	cli.OneOf(fs, "log-format", logFormats...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// routes are what --disable takes, logFormats what --log-format takes.
var (
	routes     = []string{"page", "metrics"}
	logFormats = []string{"text", "json", "text+prompts", "json+prompts"}
)

// add declares the flags.
func (o *answeringFlags) add(fs *pflag.FlagSet) {
	o.EngineFlags.Add(fs)
	o.Model.AddResize(fs)
	fs.BoolVar(&o.exif, "exif", true, "rotate pictures by their EXIF orientation")
	o.reduction.Add(fs, "holov", 64)
	addSampling(fs, &o.sampling)
	fs.IntVarP(&o.maxTokens, "n-predict", "n", 0,
		"answer with at most `N` tokens; 0: up to the context's end")
	o.harness.add(fs)
	o.addFolder(fs)
	fs.StringVar(&o.media, "media-path", "",
		"`folder` with pictures that requests may name with file: URLs")
	fs.StringSliceVar(&o.domains, "allowed-media-domains", nil,
		"`hosts` from which pictures may be fetched, separated by commas; * is any public one")
	fs.IntVar(&o.maxImages, "max-images", 16, "a request has at most `N` pictures")
	fs.IntVar(&o.maxImage, "max-image-mb", 20, "a picture's file has at most `N` MB")
	fs.IntVar(&o.maxPixels, "max-image-pixels", imageproc.DefaultMaxPixels,
		"a picture has at most `N` pixels")
	fs.DurationVar(&o.fetch, "fetch-timeout", 10*time.Second,
		"`time` limit for fetching a picture; 0: no limit")
	cli.Within(fs, 0, cli.MaxCount, "n-predict")
	cli.Within(fs, 1, 1024, "max-images", "max-image-mb")
	cli.Within(fs, 1, min(math.MaxInt32, imageproc.MostPixels), "max-image-pixels")
	cli.Within(fs, 0, math.Inf(1), "fetch-timeout")
}

// addSampling declares the flags of sampling, without the seed.
func addSampling(fs *pflag.FlagSet, s *restore.Sampling) {
	fs.Float64Var(&s.Temperature, "temp", 0, "`temperature`, 0 takes the likeliest token")
	fs.IntVar(&s.TopK, "top-k", 40, "sample among the `K` likeliest tokens, 0 is all")
	fs.Float64Var(&s.TopP, "top-p", 0.95,
		"sample among the likeliest tokens with this total `share` of the probability, 1 is all")
	fs.Float64Var(&s.MinP, "min-p", 0.05,
		"sample among tokens with at least this `share` of the likeliest one's probability, "+
			"0 is all")
	cli.Above(fs, 0, 1, "top-p")
}

func (o *answeringFlags) addFolder(fs *pflag.FlagSet) {
	fs.StringVar(&o.folder, "cache-dir", "",
		"also keep reduced pictures in this `folder`, across restarts")
	fs.IntVar(&o.folderMB, "cache-dir-mb", 10_000,
		"keep at most `N` MB there; the least recently used are removed first")
	cli.Within(fs, 1, cli.MaxCount, "cache-dir-mb")
}

// check refuses wrong flags.
func (o *answeringFlags) check() error {
	if err := o.sampling.Check(); err != nil {
		return &cli.UsageError{Err: err}
	}
	if err := errors.Join(o.checkFolder(), o.harness.check()); err != nil {
		return err
	}
	_, err := o.reduction.Reduction()
	return err
}

// settings are the defaults and limits of calls.
func (o *answeringFlags) settings(loader *media.Loader) (api.Settings, error) {
	reduction, err := o.reduction.Merged()
	return api.Settings{
		Sampling: o.sampling, MaxTokens: o.maxTokens,
		Reduction: reduction,
		Exact:     cli.OnCommandLine(o.Flags.Lookup("n-vis")),
		Aliases:   o.harness.aliases, Presets: o.harness.presets,
		DetailBudget: o.harness.detail == "budget",
		Pictures: restore.PictureOptions{MaxPixels: int64(o.maxPixels),
			MaxBytes: int64(o.maxImage) * cli.MB, IgnoreEXIF: !o.exif},
		MaxImages: o.maxImages, Media: loader,
	}, err
}

// fits refuses settings that the model cannot honour.
func (o *answeringFlags) fits(settings *api.Settings, s restore.Service) error {
	if err := settings.CheckPresets(s); err != nil {
		return cli.Flagf("preset", "%w", err)
	}
	if err := settings.Check(s); err != nil {
		return &cli.UsageError{Err: err}
	}
	return nil
}

// loader opens the sources of pictures.
func (o *answeringFlags) loader() (*media.Loader, error) {
	if o.media != "" && !files.IsFolder(o.media) {
		return nil, cli.Flagf("media-path", "got %q, want a folder", o.media)
	}
	l, err := media.New(media.Options{
		MaxBytes: int64(o.maxImage) * cli.MB, Timeout: o.fetch, Folder: o.media, Domains: o.domains,
	})
	if err != nil {
		return nil, cli.Flagf("allowed-media-domains", "%w", err)
	}
	return l, nil
}

// open loads the model.
func (o *answeringFlags) open(
	ctx context.Context, a *cli.App, log *slog.Logger,
) (*restore.Model, error) {
	mo, end, err := o.Options(a, log)
	if err != nil {
		return nil, err
	}
	defer end()
	if o.folder != "" {
		mo.CacheFolder, mo.CacheBytes = o.folder, int64(o.folderMB)*cli.MB
	}
	if o.shared != nil {
		mo.Shared = o.shared
	}
	m, err := o.Model.Opened(ctx, mo)
	if err == nil && m.Info().Vocab == 0 {
		err = errors.Join(fmt.Errorf("%s: has no tokenizer, which requests need", m.Info().Name),
			m.Close())
	}
	return m, err
}

// checkFolder refuses wrong flags of the folder of reduced pictures.
func (o *answeringFlags) checkFolder() error {
	if o.folder == "" {
		return cli.NoUse(o.Flags, true, "has no use without --cache-dir", "cache-dir-mb")
	}
	return nil
}

// check refuses wrong flags before any file is opened.
func (o *serveOptions) check() error {
	if err := o.answering.checkNATS(&o.nats); err != nil {
		return err
	}
	if err := o.answering.check(); err != nil {
		return err
	}
	if len(o.cert) != 0 && len(o.cert) != 2 {
		return cli.Flagf("tls", "got %q, want the files CERT,KEY", strings.Join(o.cert, ","))
	}
	for _, origin := range o.cors {
		if err := server.CheckOrigin(origin); err != nil {
			return cli.Flagf("cors-origins", "%w", err)
		}
	}
	for _, host := range o.hosts {
		if err := server.CheckHost(host); err != nil {
			return cli.Flagf("allowed-hosts", "%w", err)
		}
	}
	if strings.HasPrefix(o.host, "[") != strings.HasSuffix(o.host, "]") {
		return cli.Flagf("host", "got %q, want an address, in both brackets or in none", o.host)
	}
	o.host = strings.TrimSuffix(strings.TrimPrefix(o.host, "["), "]")
	return o.checkKeys()
}

// checkKeys reads the files among the keys, and refuses a port that others can reach without a key.
func (o *serveOptions) checkKeys() (err error) {
	if o.keys, err = o.api.Keys(); err != nil {
		return err
	}
	if len(o.keys) == 0 && !o.api.None() && !cli.IsLoopback(o.host) {
		return cli.Flagf("host", "got %s, which others can reach, without a key, want "+
			"--api-key KEY, --api-key @FILE or --api-key none", o.host)
	}
	if len(o.keys) == 0 && o.isolation == "key" {
		return cli.Flagf("cache-isolation", "got key, which separates nothing without --api-key")
	}
	return nil
}

// logger writes one line per request, as text or JSON.
func logger(format string, w io.Writer) *slog.Logger {
	if strings.HasPrefix(format, "json") {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// running is a server that listens while its model is opened.
type running struct {
	*serveOptions
	a        *cli.App
	log      *slog.Logger
	loader   *media.Loader
	settings api.Settings
	jobs     *jobs.Store
	server   *server.Server
	listener net.Listener
	scheme   string
	out      opened
}

// run serves until ctx ends.
func (o *serveOptions) run(ctx context.Context, a *cli.App) error {
	if err := o.check(); err != nil {
		return err
	}
	loader, err := o.answering.loader()
	if err != nil {
		return err
	}
	defer loader.Close()
	s := &running{serveOptions: o, a: a, log: logger(o.format, a.Err), loader: loader}
	if err := s.listen(); err != nil {
		return err
	}
	a.Interrupts.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	done := make(chan error, 1)
	go func() { done <- s.serve(ctx) }()
	loaded := make(chan error, 1)
	opening, give := context.WithCancel(ctx)
	defer give()
	go func() { loaded <- s.open(opening) }()
	select {
	case err := <-loaded:
		if err != nil {
			s.server.Close()
			return errors.Join(err, s.out.close())
		}
	case err := <-done: // before the model was loaded
		if o.nats.URL != "" {
			give()
			<-loaded
			err = errors.Join(err, s.out.close())
		}
		return err
	}
	return errors.Join(s.wait(ctx, end, done), s.out.close())
}

// listen makes the server and its port.
func (s *running) listen() (err error) {
	so := s.options(s.log)
	s.scheme = "http"
	if len(s.cert) > 0 {
		s.scheme = "https"
		if so.Certificate, err = server.OpenCertificate(s.cert[0], s.cert[1], s.log); err != nil {
			return cli.Flagf("tls", "%w", err)
		}
	}
	if s.settings, err = s.answering.settings(s.loader); err != nil {
		return err
	}
	at := net.JoinHostPort(s.host, strconv.Itoa(s.port))
	if s.listener, err = net.Listen("tcp", at); err != nil {
		return fmt.Errorf("cannot listen at %s: %w", at, err)
	}
	if so.Jobs, err = s.serveOptions.jobs.store(s.log); err != nil {
		return errors.Join(err, s.listener.Close())
	}
	s.jobs, s.server = so.Jobs, server.New(so)
	return nil
}

// serve answers until ctx ends.
func (s *running) serve(ctx context.Context) error {
	clean, err := s.server.Serve(ctx, s.listener)
	if err == nil && !clean {
		err = cli.CutShort("requests were cut off after %v (--drain-timeout)", s.drain)
	}
	return err
}

// open opens the model, and tells the server and the user.
func (s *running) open(ctx context.Context) error {
	queue := s.answering.Queue
	if queue == 0 {
		queue = -1
	}
	err := s.answering.openAt(ctx, s.a, s.log, &s.nats, &s.out, place{name: "restore serve",
		client: fleet.ClientOptions{Queue: queue}, early: true})
	if err == nil && s.out.model != nil {
		err = expect(s.log, s.server, s.out.model)
	}
	if err == nil {
		err = s.answering.fits(&s.settings, s.out.service)
	}
	if err != nil {
		return err
	}
	s.server.Ready(s.out.service, s.settings)
	lines := &batchLines{s.serveOptions, &s.out, &s.settings, s.loader, s.log}
	s.out.ends = append(s.out.ends, lines.run(s.jobs))
	_, err = fmt.Fprintf(s.a.Out, "listening on %s://%s\n", s.scheme, s.listener.Addr())
	return err
}

// wait waits for the end of the server, and ends it if the model's files turn out to be damaged.
func (s *running) wait(ctx context.Context, end func(), done <-chan error) error {
	if s.out.model == nil {
		return <-done
	}
	checked := make(chan error, 1)
	go func() { checked <- s.out.model.Checked(ctx) }()
	select {
	case err := <-done:
		return err
	case err := <-checked:
		stopped := ctx.Err() != nil // by the user
		if err != nil {
			end()
		}
		if stopped {
			err = nil
		}
		return errors.Join(err, <-done)
	}
}

// headTime is the most time in which the head of a request arrives, also without --read-timeout.
const headTime = 10 * time.Second

// options are the options of the server.
func (o *serveOptions) options(log *slog.Logger) server.Options {
	return server.Options{
		Version: version.Module(), Kernel: kernel.Implementation(),
		Keys: o.keys, IsolateKeys: o.isolation == "key", Loopback: cli.IsLoopback(o.host),
		Origins: o.cors, AllowedHosts: o.hosts,
		MaxBodyBytes:      int64(o.maxBody) * cli.MB,
		MemoryBytes:       o.answering.MemoryBytes(),
		ReadHeaderTimeout: cmp.Or(min(o.read, headTime), headTime),
		ReadTimeout:       o.read, RequestTimeout: o.request,
		DrainTimeout: o.drain, Ping: o.ping,
		NoMetrics:  slices.Contains(o.disabled, "metrics"),
		NoPage:     slices.Contains(o.disabled, "page"),
		LogPrompts: strings.HasSuffix(o.format, "+prompts"), Log: log,
	}
}

// expect tells s how long questions take on this machine, for the page. A model without pictures
// has no prediction.
func expect(log *slog.Logger, s *server.Server, m *restore.Model) error {
	if m.Details().Processor == "" {
		return nil
	}
	const side, rows = 672, 128 // of the picture, if any size is possible; of the prompt
	t, err := m.PredictTimes(
		restore.Question{Width: side, Height: side, NVis: 1, Text: rows - 1}, restore.Default,
		func() { log.Info("measuring the speed of this machine, once") })
	if err != nil {
		return err
	}
	s.Expect(1e3*(t.First-t.Prefill), 1e3*t.Prefill/rows)
	return nil
}
