package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/fleet/natsserver"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/local"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/sample"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/version"
	"github.com/restore-vlm/restore/reduce"
)

// natsFlags say how to reach workers on other machines.
type natsFlags struct {
	url, credentials, ca string
	replicas             int
}

// embeddedName is the URL of a NATS server inside this process.
const embeddedName = "embedded"

// natsPort is the default port of NATS servers.
const natsPort = 4222

func (o *natsFlags) add(fs *pflag.FlagSet, what string, inside bool) {
	help := "`URL` of NATS servers, separated by commas, as in nats://user:pass@host:4222 or tls://host"
	if inside {
		help += "; embedded[:PORT] starts one in this process, on loopback for the same user, and embedded://USER:PASS@HOST:PORT for others"
	}
	fs.StringVar(&o.url, "nats", "", what+" by the "+help)
	fs.StringVar(&o.credentials, "nats-creds", "",
		"sign in to NATS with this `file` of credentials")
	fs.StringVar(&o.ca, "nats-ca", "", "trust the CA certificates in this `file` for NATS servers")
	fs.IntVar(&o.replicas, "nats-replicas", 1,
		"keep queued requests on `N` NATS servers; counts when this command creates the queue")
}

func (o *natsFlags) check(fs *pflag.FlagSet) error {
	if o.url == "" {
		for _, name := range []string{"nats-creds", "nats-ca", "nats-replicas"} {
			if onCommandLine(fs.Lookup(name)) {
				return usagef("--%s: has no use without --nats", name)
			}
		}
		return nil
	}
	if err := checkFiles(fs); err != nil {
		return err
	}
	if o.replicas < 1 || o.replicas > 5 {
		return usagef("--nats-replicas: out of range, got %d, want 1 to 5", o.replicas)
	}
	if o.embedded() {
		for _, name := range []string{"nats-creds", "nats-ca"} {
			if onCommandLine(fs.Lookup(name)) {
				return usagef("--%s: has no use with --nats embedded", name)
			}
		}
		_, err := o.inside()
		return err
	}
	for u := range strings.SplitSeq(o.url, ",") {
		if !strings.Contains(u, "://") {
			u = "nats://" + u
		}
		p, err := url.Parse(u)
		if err != nil || p.Host == "" ||
			!slices.Contains([]string{"nats", "tls", "ws", "wss"}, p.Scheme) {
			return usagef(
				"--nats: got a URL that is none, want nats://HOST:PORT, tls://HOST:PORT or embedded",
			)
		}
	}
	return nil
}

// embedded reports whether the NATS server runs inside this process.
func (o *natsFlags) embedded() bool {
	return o.url == embeddedName || strings.HasPrefix(o.url, embeddedName+":")
}

// inside returns the options of the NATS server inside this process.
func (o *natsFlags) inside() (e natsserver.Options, err error) {
	e.Host, e.Port = "127.0.0.1", natsPort
	rest := strings.TrimPrefix(strings.TrimPrefix(o.url, embeddedName), ":")
	if at, ok := strings.CutPrefix(rest, "//"); ok {
		u, err := url.Parse("nats://" + at)
		if err != nil || u.Hostname() == "" || u.Path != "" {
			return e, usagef(
				"--nats: got %q, want embedded[:PORT] or embedded://USER:PASS@HOST:PORT",
				embeddedName+"://…")
		}
		e.Host, rest = u.Hostname(), u.Port()
		e.User = u.User.Username()
		e.Password, _ = u.User.Password()
		if e.User != "" && e.Password == "" {
			return e, usagef("--nats: got a user without a password, want embedded://USER:PASS@%s",
				u.Host)
		}
		if !server.IsLoopback(e.Host) && (e.User == "" || e.Password == "") {
			return e, usagef(
				"--nats: got %s, which others can reach, without a user, want embedded://USER:PASS@%s",
				e.Host,
				net.JoinHostPort(e.Host, strconv.Itoa(natsPort)),
			)
		}
	}
	if rest == "" {
		return e, nil
	}
	if e.Port, err = strconv.Atoi(rest); err != nil || e.Port < 0 || e.Port > 65535 {
		return e, usagef("--nats: got port %q, want 0 to 65535", rest)
	}
	return e, nil
}

// dial connects to the fleet. A NATS server inside this process keeps its streams in folder; if
// folder is "", in a temporary one that is removed at the end.
func (o *natsFlags) dial(
	ctx context.Context,
	a *app,
	name, folder string,
	log *slog.Logger,
) (c *fleet.Conn, end func(), err error) {
	fo := fleet.Options{
		URL:         o.url,
		Credentials: o.credentials,
		CA:          o.ca,
		Name:        name,
		Log:         log,
		Layout:      fleet.Layout{Replicas: o.replicas},
	}
	stop := func() {}
	if o.embedded() {
		stop, err = o.start(a, folder, &fo)
	} else {
		fo.Token = o.storedToken()
	}
	if err != nil {
		return nil, nil, err
	}
	if c, err = fleet.Connect(ctx, fo); err != nil {
		stop()
		return nil, nil, natsError(err)
	}
	return c, func() { c.Close(); stop() }, nil
}

// start starts the NATS server inside this process, and sets how to connect to it.
func (o *natsFlags) start(a *app, folder string, fo *fleet.Options) (end func(), err error) {
	e, err := o.inside()
	if err != nil {
		return nil, err
	}
	e.Log = fo.Log
	if e.User == "" {
		e.Token = rand.Text()
		fo.Token = func() string { return e.Token }
	}
	if e.Folder = folder; folder == "" {
		if e.Folder, err = os.MkdirTemp("", "restore-nats-"); err != nil {
			return nil, err
		}
	}
	removeFolder := func() error {
		if folder != "" {
			return nil
		}
		return os.RemoveAll(e.Folder)
	}
	s, err := natsserver.Start(e)
	if err != nil {
		return nil, fmt.Errorf("%w (--nats)", errors.Join(err, removeFolder()))
	}
	removeToken := announce(a, s.URL(), e.Token)
	fo.URL, fo.Dial = s.URL(), nats.InProcessConnProvider(s)
	if e.User != "" {
		fo.URL = "nats://" + url.UserPassword(e.User, e.Password).String() + "@" +
			strings.TrimPrefix(s.URL(), "nats://")
	}
	return func() {
		removeToken()
		s.Close()
		_ = removeFolder() // a temporary folder
	}, nil
}

// natsError adds the flags that would help.
func natsError(err error) error {
	if errors.Is(err, nats.ErrAuthorization) || errors.As(err, new(*fleet.PermissionError)) {
		return fmt.Errorf("%w (--nats nats://USER:PASS@HOST, --nats-creds; a server of --nats "+
			"embedded without USER:PASS admits its own user on its own machine)", err)
	}
	return err
}

// workersOwn are the flags of the engine, which the worker sets.
var workersOwn = []string{
	"vision-tower",
	"mmproj",
	"pull",
	"threads",
	"quant",
	"encoder-quant",
	"cache-type",
	"ctx-size",
	"parallel",
	"kv-mb",
	"cache-mb",
	"cache-dir",
	"cache-dir-mb",
	"min-pixels",
	"max-pixels",
	"pad",
}

// checkRemote refuses flags that have no effect when other machines answer.
func checkRemote(fs *pflag.FlagSet) error {
	for _, name := range workersOwn {
		if f := fs.Lookup(name); f != nil && f.Changed && f.Annotations[fromEnvironment] == nil {
			return usagef("--%s: has no effect with --nats URL: it is for 'restore worker' to say",
				name)
		}
	}
	return nil
}

// checkFiles refuses parameters that are files, which workers cannot read.
func checkFiles(fs *pflag.FlagSet) (err error) {
	fs.VisitAll(func(f *pflag.Flag) {
		p, ok := f.Value.(*parameterFlag)
		if ok && p.Kind == reduce.File && f.Changed && f.Annotations[fromEnvironment] == nil {
			err = usagef("--%s: has no effect with --nats: workers read the one in their model's "+
				"folder", f.Name)
		}
	})
	return err
}

// defaults are the values for fields that a request omits, on any machine.
type defaults struct {
	Sampling  sample.Options `json:"sampling"`
	MaxTokens int            `json:"max_tokens"`
	Reduction methods.Given  `json:"reduction"`
	EXIF      bool           `json:"exif"`
	MaxPixels int64          `json:"max_pixels"`
	MaxBytes  int64          `json:"max_bytes"`
}

// defaults returns the defaults that the flags set.
func (o *answeringFlags) defaults() (*defaults, error) {
	given, err := o.given()
	return &defaults{
		o.sampling,
		o.maxTokens,
		given,
		o.exif,
		int64(o.maxPixels),
		int64(o.maxImage) * mb,
	}, err
}

// local returns the options of a local backend with these defaults.
func (d *defaults) local() local.Options {
	return local.Options{
		Version:   version.Module(),
		Sampling:  d.Sampling,
		MaxTokens: d.MaxTokens,
		Reduction: d.Reduction,
		Decode: imageproc.DecodeOptions{
			EXIF:   d.EXIF,
			Limits: imageproc.Limits{MaxPixels: d.MaxPixels, MaxBytes: d.MaxBytes},
		},
	}
}

// variants are backends over one model, one for each set of client defaults.
type variants struct {
	base *local.Backend

	mu  sync.Mutex
	all map[string]*local.Backend
}

// maxVariants limits the number of these backends.
const maxVariants = 64

// backend returns the backend with these defaults; nil means the model's own.
func (v *variants) backend(raw json.RawMessage) (server.Backend, error) {
	if raw == nil {
		return v.base, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if b := v.all[string(raw)]; b != nil {
		return b, nil
	}
	var d defaults
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, fmt.Errorf("defaults of a request: %w", err)
	}
	given, err := methods.ParseJSON(mustJSON(d.Reduction))
	if err != nil {
		return nil, err
	}
	d.Reduction = given
	if len(v.all) >= maxVariants || v.all == nil {
		v.all = map[string]*local.Backend{}
	}
	b := v.base.With(d.local())
	v.all[string(raw)] = b
	return b, nil
}

// worker makes a worker of a loaded model.
func (o *answeringFlags) worker(
	ctx context.Context,
	c *fleet.Conn,
	b *local.Backend,
	drain time.Duration,
) (*fleet.Worker, error) {
	machine, err := os.Hostname()
	if err != nil {
		machine = "unknown"
	}
	i := b.Info()
	sum := sha256.Sum256(append([]byte(i.ID), mustJSON(i.Settings)...))
	v := &variants{base: b}
	// The worker takes more requests than run, so that pictures are decoded while other requests
	// are answered.
	return c.NewWorker(
		ctx,
		fleet.WorkerOptions{Key: hex.EncodeToString(sum[:8]), Backend: v.backend, Drain: drain,
			Member: fleet.Member{
				Machine:  machine,
				CPU:      calibrate.CPU(),
				Cores:    o.model.threads,
				Version:  version.Module(),
				Types:    types(i.Settings),
				Capacity: 2 * o.parallel,
			}},
	)
}

// types tells apart workers of one model that keep it in other types.
func types(settings map[string]any) string {
	var out []string
	for _, name := range []string{"quant", "encoder-quant", "cache-type"} {
		out = append(out, fmt.Sprint(name, " ", settings[name]))
	}
	return strings.Join(out, ", ")
}

// opened is a backend and the functions that close it.
type opened struct {
	backend server.Backend
	engine  *engine.Engine // in this process, nil if workers answer
	ends    []func() error
}

// then adds a function for close.
func (o *opened) then(end func()) {
	o.ends = append(o.ends, func() error { end(); return nil })
}

// close calls the functions, the last first.
func (o *opened) close() error {
	var all error
	for _, end := range slices.Backward(o.ends) {
		all = errors.Join(all, end())
	}
	o.ends = nil
	return all
}

// place describes a command's part in a fleet.
type place struct {
	name    string // name of its connection
	folder  string // for the streams of an embedded server; "" is a temporary one
	aliases []string
	client  fleet.ClientOptions
	early   bool // without a fleet, begin before all weights of a packed file are checked
	// drain is how long this process's worker finishes its requests at the end; 0: until all are
	drain time.Duration
}

// openAt opens the backend: the model, or the workers of --nats. With an embedded NATS server this
// process's model is one of the workers. out gets the functions that close everything, also after
// an error.
func (o *answeringFlags) openAt(
	ctx context.Context, a *app, log *slog.Logger, n *natsFlags, out *opened, p place,
) error {
	var own *local.Backend
	if n.url == "" || n.embedded() {
		disk, err := o.disk(log)
		if err != nil {
			return err
		}
		b, e, err := o.open(a, log, disk, p.aliases)
		if err != nil {
			return err
		}
		out.ends = append(out.ends, e.Close)
		out.backend, out.engine, own = b, e, b
		if !p.early || n.url != "" {
			if err := e.Checked(ctx); err != nil {
				return err
			}
		}
	}
	if n.url == "" {
		return nil
	}
	c, end, err := n.dial(ctx, a, p.name, p.folder, log)
	if err != nil {
		return err
	}
	out.then(end)
	p.client.Model = o.model.files.Model
	if own != nil {
		key, end, err := o.startWorker(ctx, c, own, p.drain)
		if err != nil {
			return err
		}
		out.then(end)
		p.client.Model = key
	}
	k, err := o.client(ctx, a, c, p.client)
	if err != nil {
		return err
	}
	out.then(k.Close)
	k.Info().Aliases = p.aliases
	out.backend = k
	return nil
}

// checkNATS refuses wrong flags of a fleet and of its workers.
func (o *answeringFlags) checkNATS(n *natsFlags) error {
	if err := n.check(o.fs); err != nil || n.url == "" || n.embedded() {
		return err
	}
	return checkRemote(o.fs)
}

// startWorker makes a loaded model one of the fleet's workers until end is called.
func (o *answeringFlags) startWorker(
	ctx context.Context, c *fleet.Conn, b *local.Backend, drain time.Duration,
) (key string, end func(), err error) {
	w, err := o.worker(ctx, c, b, drain)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			c.Log().Error("worker", "error", err)
		}
	}()
	return w.Key(), func() { cancel(); <-done }, nil
}

// client returns a client of the fleet with the flags' defaults.
func (o *answeringFlags) client(
	ctx context.Context, a *app, c *fleet.Conn, more fleet.ClientOptions,
) (*fleet.Client, error) {
	d, err := o.defaults()
	if err != nil {
		return nil, err
	}
	return d.client(ctx, a, c, more)
}

// client returns a client of the fleet with these defaults.
func (d *defaults) client(
	ctx context.Context, a *app, c *fleet.Conn, more fleet.ClientOptions,
) (*fleet.Client, error) {
	more.Defaults = mustJSON(d)
	more.Info = func(i *server.Info) {
		i.Defaults = server.Defaults{Temperature: d.Sampling.Temp, TopP: d.Sampling.TopP,
			TopK: d.Sampling.TopK, MinP: d.Sampling.MinP, Restore: d.Reduction}
	}
	more.Waiting = func(why string) {
		a.note("%s: waiting for one ('restore worker --nats URL')", why)
	}
	k, err := c.Client(ctx, more)
	return k, natsError(err)
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers and strings always encode
	}
	return data
}
