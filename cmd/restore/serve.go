package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/diskcache"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/local"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/sample"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/version"
)

// serveOptions are the flags of `restore serve`.
type serveOptions struct {
	answering answeringFlags
	nats      natsFlags
	aliases   []string

	host           string
	port           int
	keys           []string
	keyFile        string
	noKey          bool
	isolation      string
	cors, hosts    []string
	maxBody        int
	header, read   time.Duration
	request, drain time.Duration
	ping           time.Duration
	metrics, page  bool
	format         string
	prompts        bool
}

// engineFlags say which model to load, and the limits of its requests.
type engineFlags struct {
	fs    *pflag.FlagSet
	model modelFlags

	context, parallel, queue int
	kv, cache                int // MB
	throughput               bool
}

// answeringFlags say how requests are answered.
type answeringFlags struct {
	engineFlags
	reduction reductionFlags
	sampling  sample.Options
	maxTokens int
	exif      bool
	folder    string
	folderMB  int

	media                          string
	domains                        []string
	maxImages, maxImage, maxPixels int
	fetch                          time.Duration
}

// mb is the number of bytes in the unit of flags in MB.
const mb = 1_000_000

func newServe(a *app) *cobra.Command {
	o := new(serveOptions)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer over HTTP: OpenAI's and Ollama's API, and a page for the browser",
		Long: `Answer over HTTP: OpenAI's API below /v1, Ollama's below /api, and a page for the browser at /.

When the server can answer, stdout gets its only line, "listening on URL"; logs go to stderr. SIGTERM and Ctrl-C end the
server after it has finished the accepted requests; a second one ends it at once. The flags of reductions, sampling and -n set
the defaults for requests. To serve other machines, use --host and --api-key.`,
		Example: `  restore serve
  restore serve -m DIR --quant q4 --host 0.0.0.0 --api-key-file keys --cache-dir cache
  curl http://127.0.0.1:8642/v1/chat/completions -d '{"messages":[{"role":"user","content":"Hello"}]}'`,
		Args: noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	o.answering.add(fs)
	o.answering.addQueue(fs)
	o.nats.add(fs, "let the workers at this address answer", true)
	fs.StringSliceVar(&o.aliases, "alias", nil, "more `names` for the model, separated by commas")
	fs.StringVar(&o.host, "host", "127.0.0.1", "listen at this `address`")
	fs.IntVar(&o.port, "port", 8642, "listen at this `port`; 0 takes a free one")
	fs.StringSliceVar(&o.keys, "api-key", nil,
		"accepted `keys`, separated by commas; each request must have one of them")
	fs.StringVar(&o.keyFile, "api-key-file", "", "`file` with one key per line; # begins a comment")
	fs.BoolVar(&o.noKey, "allow-no-key", false, "serve beyond this machine without a key")
	fs.StringVar(&o.isolation, "cache-isolation", "off",
		"share caches only among requests with the same key")
	fs.Lookup("cache-isolation").Annotations = map[string][]string{choices: {"off|key"}}
	fs.IntVar(&o.maxBody, "max-body-mb", 64, "a request's body has at most `N` MB")
	fs.DurationVar(&o.header, "read-header-timeout", 10*time.Second,
		"`time` limit for the head of a request to arrive")
	fs.DurationVar(&o.read, "read-timeout", time.Minute,
		"`time` limit for the body of a request to arrive, each sixth of it with 2 kB a second")
	fs.DurationVar(&o.request, "request-timeout", 10*time.Minute,
		"`time` limit for answering a request")
	fs.DurationVar(&o.drain, "drain-timeout", 30*time.Second,
		"`time` limit for running requests when the server shuts down")
	fs.DurationVar(&o.ping, "sse-ping", 15*time.Second,
		"send a comment in a silent stream after this `time`; 0: never")
	fs.StringSliceVar(&o.cors, "cors-origins", nil,
		"`origins` of web pages that may send requests, separated by commas; * is all")
	fs.StringSliceVar(&o.hosts, "allowed-hosts", nil,
		"`names` of this server, separated by commas, in addition to its addresses and localhost")
	for _, name := range []string{"cors-origins", "allowed-hosts"} {
		fs.Lookup(name).Annotations = map[string][]string{applies: {"loopback"}}
	}
	fs.BoolVar(&o.metrics, "metrics", true, "serve /metrics for Prometheus")
	fs.BoolVar(&o.page, "page", true, "serve the page at /")
	fs.StringVar(&o.format, "log-format", "text", "format of the log")
	fs.Lookup("log-format").Annotations = map[string][]string{choices: {"text|json"}}
	fs.BoolVar(&o.prompts, "log-prompts", false, "also log questions and answers")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) }
	return cmd
}

// add declares the flags.
func (o *answeringFlags) add(fs *pflag.FlagSet) {
	o.engineFlags.add(fs)
	o.model.addResize(fs)
	fs.BoolVar(&o.exif, "exif", true, "rotate pictures by their EXIF orientation")
	o.reduction.add(fs, "holov", 64)
	fs.Float64Var(&o.sampling.Temp, "temp", 0, "`temperature`, 0 takes the likeliest token")
	fs.IntVar(&o.sampling.TopK, "top-k", 40, "sample among the `K` likeliest tokens, 0 is all")
	fs.Float64Var(&o.sampling.TopP, "top-p", 0.95,
		"sample among the likeliest tokens with this total `share` of the probability, 1 is all")
	fs.Float64Var(&o.sampling.MinP, "min-p", 0.05,
		"sample among tokens with at least this `share` of the likeliest one's probability, "+
			"0 is all")
	fs.IntVarP(&o.maxTokens, "n-predict", "n", 0,
		"answer with at most `N` tokens; 0: up to the context's end")
	o.addFolder(fs)
	fs.StringVar(&o.media, "media-path", "",
		"`folder` with pictures that requests may name with file: URLs")
	fs.StringSliceVar(&o.domains, "allowed-media-domains", nil,
		"`hosts` from which pictures may be fetched, separated by commas; * is any public one")
	fs.IntVar(&o.maxImages, "max-images", 16, "a request has at most `N` pictures")
	fs.IntVar(&o.maxImage, "max-image-mb", 20, "a picture's file has at most `N` MB")
	fs.IntVar(&o.maxPixels, "max-image-pixels", imageproc.DefaultMaxPixels,
		"a picture has at most `N` pixels")
	fs.DurationVar(&o.fetch, "fetch-timeout", 10*time.Second, "`time` limit for fetching a picture")
}

func (o *answeringFlags) addFolder(fs *pflag.FlagSet) {
	fs.StringVar(&o.folder, "cache-dir", "",
		"also keep reduced pictures in this `folder`, across restarts")
	fs.IntVar(&o.folderMB, "cache-dir-mb", 10_000,
		"keep at most `N` MB there; the least recently used are removed first")
}

// add declares the flags.
func (o *engineFlags) add(fs *pflag.FlagSet) {
	o.fs = fs
	o.model.add(fs)
	fs.IntVarP(&o.context, "ctx-size", "c", 0, "at most `N` positions for question and answer")
	fs.Lookup("ctx-size").Annotations = map[string][]string{applies: {"the model's"}}
	fs.IntVar(&o.parallel, "parallel", 4, "answer at most `N` requests at once")
	fs.IntVar(&o.kv, "kv-mb", 0, "keep keys and values in at most `N` MB")
	fs.Lookup("kv-mb").Annotations = map[string][]string{applies: {"a quarter of the free memory"}}
	fs.IntVar(&o.cache, "cache-mb", 256, "keep reduced pictures in at most `N` MB; 0: none")
}

// addQueue declares the length of the queue, for commands with outside clients.
func (o *engineFlags) addQueue(fs *pflag.FlagSet) {
	fs.IntVar(&o.queue, "queue", 64, "let at most `N` requests wait; 0: none")
}

// flagRange is the range of a whole-number flag. If the default 0 has another meaning, an explicit
// value must be at least 1.
type flagRange struct {
	name             string
	got, least, most int
}

// inRange refuses flags out of their range.
func inRange(fs *pflag.FlagSet, list ...flagRange) error {
	for _, c := range list {
		if c.got == 0 && !fs.Changed(c.name) {
			continue
		}
		if c.got < c.least || c.got > c.most {
			return usagef("--%s: out of range, got %d, want %d to %d", c.name, c.got, c.least,
				c.most)
		}
	}
	return nil
}

// maxCount limits flags that count something.
const maxCount = 1 << 30

// check refuses wrong flags.
func (o *engineFlags) check() error {
	return inRange(o.fs, flagRange{"ctx-size", o.context, 1, maxCount},
		flagRange{"parallel", o.parallel, 1, 256},
		flagRange{"queue", o.queue, 0, maxCount}, flagRange{"kv-mb", o.kv, 1, maxCount},
		flagRange{"cache-mb", o.cache, 0, maxCount})
}

// options are the options of the engine; the caller must call end after it is open.
func (o *engineFlags) options(a *app, log *slog.Logger) (_ engine.Options, end func(), err error) {
	eo, end, err := o.model.options(a)
	if err != nil {
		return eo, nil, err
	}
	eo.Parallel, eo.Queue, eo.Context = o.parallel, o.queue, o.context
	eo.Throughput = o.throughput
	eo.KVBytes, eo.FeatureBytes = int64(o.kv)*mb, int64(o.cache)*mb
	if o.queue == 0 {
		eo.Queue = -1 // no queue
	}
	if o.cache == 0 {
		eo.FeatureBytes = -1 // no cache
	}
	eo.Warn = func(s string) { log.Warn(oneLine(s)) }
	eo.Panicked = func(v any, stack []byte) {
		log.Error("panic", "panic", fmt.Sprint(v), "stack", string(stack))
	}
	return eo, end, nil
}

// check refuses wrong flags.
func (o *answeringFlags) check() error {
	if err := o.engineFlags.check(); err != nil {
		return err
	}
	err := inRange(o.fs, flagRange{"max-images", o.maxImages, 1, 1024},
		flagRange{"max-image-mb", o.maxImage, 1, 1024},
		flagRange{"max-image-pixels", o.maxPixels, 1, min(math.MaxInt32, imageproc.MostPixels)},
		flagRange{"n-predict", o.maxTokens, 0, maxCount})
	switch {
	case err != nil:
		return err
	case o.fetch < 0:
		return usagef("--fetch-timeout: out of range, got %v, want 0 or more", o.fetch)
	case o.sampling.TopP == 0:
		return usagef("--top-p: out of range, got 0, want a number above 0 and at most 1")
	}
	if _, err := sample.New(o.sampling); err != nil {
		return &usageError{err}
	}
	if err := o.checkFolder(); err != nil {
		return err
	}
	_, err = o.reduction.options()
	return err
}

// given returns the default reduction of pictures.
func (o *answeringFlags) given() (methods.Given, error) {
	typed, env, err := o.reduction.sources()
	return methods.Merge(typed, env, o.reduction.defaults), err
}

// loader opens the sources of pictures.
func (o *answeringFlags) loader() (*media.Loader, error) {
	if o.media != "" {
		if info, err := os.Stat(o.media); err != nil || !info.IsDir() {
			return nil, usagef("--media-path: got %q, want a folder", o.media)
		}
	}
	l, err := media.New(media.Options{
		MaxBytes: int64(o.maxImage) * mb, Timeout: o.fetch, Folder: o.media, Domains: o.domains,
	})
	if err != nil {
		return nil, usagef("--allowed-media-domains: %w", err)
	}
	return l, nil
}

// open loads the model and makes its backend.
func (o *answeringFlags) open(
	a *app, log *slog.Logger, disk *diskcache.Cache, aliases []string,
) (*local.Backend, *engine.Engine, error) {
	d, err := o.defaults()
	if err != nil {
		return nil, nil, err
	}
	lo := d.local()
	lo.Aliases, lo.Queue, lo.Disk = aliases, o.queue, disk
	return o.load(a, log, lo)
}

// load loads the model and makes its backend with the options lo.
func (o *engineFlags) load(
	a *app, log *slog.Logger, lo local.Options,
) (*local.Backend, *engine.Engine, error) {
	eo, end, err := o.options(a, log)
	if err != nil {
		return nil, nil, err
	}
	defer end()
	if lo.Disk != nil {
		eo.Store = local.Store(lo.Disk)
	}
	e, err := engine.Open(o.model.files, eo)
	if err != nil {
		return nil, nil, err
	}
	limitGarbage(e)
	lo.Settings = o.settings(e)
	b, err := local.New(e, lo)
	if err != nil {
		return nil, nil, errors.Join(err, e.Close())
	}
	return b, e, nil
}

// settings are what answers of the engine depend on, besides the request and its defaults.
func (o *engineFlags) settings(e *engine.Engine) map[string]any {
	about := e.About()
	return map[string]any{
		"digest": hex.EncodeToString(about.Digest[:]), "version": version.Module(),
		"quant": about.Quant, "encoder-quant": about.EncoderQuant, "cache-type": about.CacheType,
		"ctx-size": e.Context(), "min-pixels": o.model.minPixels, "max-pixels": o.model.maxPixels,
		"pad": o.model.pad,
	}
}

// checkFolder refuses wrong flags of the folder of reduced pictures.
func (o *answeringFlags) checkFolder() error {
	if o.folder == "" && onCommandLine(o.fs.Lookup("cache-dir-mb")) {
		return usagef("--cache-dir-mb: has no use without --cache-dir")
	}
	return inRange(o.fs, flagRange{"cache-dir-mb", o.folderMB, 1, maxCount})
}

// disk opens the folder of reduced pictures; nil if there is none.
func (o *answeringFlags) disk(log *slog.Logger) (*diskcache.Cache, error) {
	if o.folder == "" {
		return nil, nil
	}
	c, err := diskcache.Open(o.folder, int64(o.folderMB)*mb, func(err error) {
		log.Warn("cache", "error", err)
	})
	if err != nil {
		return nil, usagef("--cache-dir: %w", err)
	}
	return c, nil
}

// check refuses wrong flags before any file is opened.
func (o *serveOptions) check() error {
	if err := o.answering.checkNATS(&o.nats); err != nil {
		return err
	}
	if err := o.answering.check(); err != nil {
		return err
	}
	switch {
	case o.port < 0 || o.port > 65535:
		return usagef("--port: out of range, got %d, want 0 to 65535", o.port)
	case o.maxBody < 1 || o.maxBody > 1<<20:
		return usagef("--max-body-mb: out of range, got %d, want 1 to %d", o.maxBody, 1<<20)
	case o.isolation != "off" && o.isolation != "key":
		return usagef("--cache-isolation: got %q, want off|key", o.isolation)
	case o.format != "text" && o.format != "json":
		return usagef("--log-format: got %q, want text|json", o.format)
	}
	for name, d := range map[string]time.Duration{
		"read-header-timeout": o.header, "read-timeout": o.read,
		"request-timeout": o.request, "drain-timeout": o.drain, "sse-ping": o.ping} {
		if d < 0 {
			return usagef("--%s: out of range, got %v, want 0 or more", name, d)
		}
	}
	for _, origin := range o.cors {
		if err := server.CheckOrigin(origin); err != nil {
			return usagef("--cors-origins: %w", err)
		}
	}
	for _, host := range o.hosts {
		if err := server.CheckHost(host); err != nil {
			return usagef("--allowed-hosts: %w", err)
		}
	}
	for _, key := range o.keys {
		if strings.TrimSpace(key) == "" {
			return usagef("--api-key: got an empty key, want none or keys separated by commas")
		}
	}
	if len(o.keys) == 0 && onCommandLine(o.answering.fs.Lookup("api-key")) {
		return usagef("--api-key: got no key, want one or more separated by commas")
	}
	if err := o.readKeys(); err != nil {
		return err
	}
	o.host = strings.TrimSuffix(strings.TrimPrefix(o.host, "["), "]")
	if len(o.keys) == 0 && !o.noKey && !server.IsLoopback(o.host) {
		return usagef("--host: got %s, which others can reach, without a key, want "+
			"--api-key, --api-key-file or --allow-no-key", o.host)
	}
	return nil
}

// readKeys adds the keys of --api-key-file.
func (o *serveOptions) readKeys() error {
	if o.keyFile == "" {
		return nil
	}
	data, err := readText(o.keyFile)
	if err != nil {
		return fmt.Errorf("--api-key-file: %w", err)
	}
	before := len(o.keys)
	lines := bufio.NewScanner(strings.NewReader(string(data)))
	for lines.Scan() {
		if key, _, _ := strings.Cut(lines.Text(), "#"); strings.TrimSpace(key) != "" {
			o.keys = append(o.keys, strings.TrimSpace(key))
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("--api-key-file: %s: %w", o.keyFile, err)
	}
	if len(o.keys) == before {
		return usagef("--api-key-file: %s: got no key, want at least one line with a key",
			o.keyFile)
	}
	return nil
}

// logger writes one line per request.
func (o *serveOptions) logger(w io.Writer) *slog.Logger {
	if o.format == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// run serves until ctx ends.
func (o *serveOptions) run(ctx context.Context, a *app) error {
	if err := o.check(); err != nil {
		return err
	}
	log := o.logger(a.err)
	loader, err := o.answering.loader()
	if err != nil {
		return err
	}
	defer loader.Close()
	l, err := net.Listen("tcp", net.JoinHostPort(o.host, strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("cannot listen at %s: %w", net.JoinHostPort(o.host, strconv.Itoa(o.port)),
			err)
	}
	s := server.New(o.server(log, loader))
	a.interrupts.wait()
	done := make(chan error, 1)
	serving, end := context.WithCancel(ctx)
	defer end()
	go func() {
		clean, err := s.Serve(serving, l)
		if err == nil && !clean {
			err = cutShort("requests were cut off after %v (--drain-timeout)", o.drain)
		}
		done <- err
	}()
	loaded := make(chan error, 1)
	var out opened
	opening, give := context.WithCancel(ctx)
	defer give()
	queue := o.answering.queue
	if queue == 0 {
		queue = -1
	}
	go func() {
		err := o.answering.openAt(opening, a, log, &o.nats, &out, place{name: "restore serve",
			aliases: o.aliases, client: fleet.ClientOptions{Queue: queue}, early: true})
		if err == nil && out.engine != nil {
			err = expect(log, s, out.engine)
		}
		if err == nil {
			s.Ready(out.backend)
			_, err = fmt.Fprintf(a.out, "listening on http://%s\n", l.Addr())
		}
		loaded <- err
	}()
	select {
	case err := <-loaded:
		if err != nil {
			s.Close()
			return errors.Join(err, out.close())
		}
	case err := <-done: // before the model was loaded
		if o.nats.url != "" {
			give()
			<-loaded
			err = errors.Join(err, out.close())
		}
		return err
	}
	if out.engine == nil {
		return errors.Join(<-done, out.close())
	}
	checked := make(chan error, 1)
	go func() { checked <- out.engine.Checked(serving) }()
	select {
	case err = <-done:
	case err = <-checked:
		if err != nil { // a damaged file, or the end of ctx
			end()
		}
		if ctx.Err() != nil {
			err = nil
		}
		err = errors.Join(err, <-done)
	}
	return errors.Join(err, out.close())
}

// server are the options of the server.
func (o *serveOptions) server(log *slog.Logger, loader *media.Loader) server.Options {
	f := &o.answering
	return server.Options{
		Version: version.Module(), Kernel: kernel.Implementation(),
		Keys: o.keys, IsolateKeys: o.isolation == "key", Loopback: server.IsLoopback(o.host),
		Origins: o.cors, AllowedHosts: o.hosts,
		MaxBodyBytes: int64(o.maxBody) * mb, MaxImages: f.maxImages,
		MaxImageBytes: int64(f.maxImage) * mb, MaxImagePixels: int64(f.maxPixels),
		ReadHeaderTimeout: o.header, ReadTimeout: o.read, RequestTimeout: o.request,
		DrainTimeout: o.drain, Ping: o.ping,
		NoMetrics: !o.metrics, NoPage: !o.page, LogPrompts: o.prompts, Log: log, Media: loader,
	}
}

// expect tells s how long questions take on this machine, for the page. A model without pictures
// has no prediction.
func expect(log *slog.Logger, s *server.Server, e *engine.Engine) error {
	if e.Info().Sizes == nil {
		return nil
	}
	const side, rows = 672, 128 // of the picture, if any size is possible; of the prompt
	speed := lab.Speed(e, func() { log.Info("measuring the speed of this machine, once") })
	t, err := lab.PredictTimes(e, speed, e.Source(),
		lab.Question{Width: side, Height: side, NVis: 1, Text: rows - 1})
	if err != nil {
		return err
	}
	s.Expect(1e3*(t.First-t.Prefill), 1e3*t.Prefill/rows)
	return nil
}
