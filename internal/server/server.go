package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/jobs"
	"github.com/restore-vlm/restore/internal/media"
)

// Options configure a Server. Durations of 0 are no limit.
type Options struct {
	Version, Kernel string

	Keys         []string // accepted keys; none: everybody may ask
	IsolateKeys  bool     // caches are shared only among requests with the same key
	Loopback     bool     // the port is on this machine only: check the Host of requests
	Origins      []string // of pages that may ask; none or "loopback": pages from this machine
	AllowedHosts []string // in addition to addresses and localhost

	Certificate *Certificate // nil: HTTP without TLS

	MaxBodyBytes int64
	MemoryBytes  int64       // limit of the process, of which bodies take a part; 0: none
	Jobs         *jobs.Store // of files and batches; nil: the server has none

	ReadHeaderTimeout, ReadTimeout time.Duration
	RequestTimeout, DrainTimeout   time.Duration
	Ping                           time.Duration // silence in a stream before a ping

	NoMetrics, NoPage bool
	LogPrompts        bool
	Log               *slog.Logger
}

// Server answers requests for one model. Until [Server.Ready] sets the model, it answers that it is
// loading.
type Server struct {
	o       Options
	log     *slog.Logger
	keys    keys
	bodies  *memory
	routes  map[string]*route
	front   atomic.Pointer[api.Front]
	counted atomic.Pointer[metrics]
	page    http.Handler

	unread time.Duration // time limit for a client to read a write

	draining atomic.Bool
	cut      context.Context // ends when the time to drain is over
	cutOff   context.CancelCauseFunc
	forced   atomic.Bool // some request was cut off

	predictMu sync.Mutex
	predict   predict
}

// What the server can use of a service that has it.
type (
	tokenizer interface {
		Tokenize(text string, special, parse bool) ([]restore.Token, error)
		Detokenize(ids []int32) string
	}
	gauges  interface{ Stats() restore.Stats }
	bounded interface{ LeastTokens(base string) int }
)

// New returns a server without a model.
func New(o Options) *Server {
	s := &Server{
		o:      o,
		log:    o.Log,
		keys:   newKeys(o.Keys),
		bodies: newBodies(&o),
		unread: writeTimeout,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.cut, s.cutOff = context.WithCancelCause(context.Background())
	s.routes = s.table()
	s.counted.Store(newMetrics("", o.Version, o.Kernel, s.state)) // until Ready
	s.page = newPage()
	return s
}

// Ready sets the server's model. It is called once.
func (s *Server) Ready(b restore.Service, o api.Settings) {
	m := newMetrics(b.Info().ID, s.o.Version, s.o.Kernel, s.state)
	o.Loaded = func(source media.Source) { m.images[source].Inc() }
	s.counted.Store(m)
	s.front.Store(api.NewFront(b, o))
}

// metrics returns the metrics of the current model.
func (s *Server) metrics() *metrics { return s.counted.Load() }

// state is the service's state, if it tells it; empty before Ready.
func (s *Server) state() restore.Stats {
	if f := s.front.Load(); f != nil {
		if g, ok := f.Service.(gauges); ok {
			return g.Stats()
		}
	}
	return restore.Stats{}
}

// Serve answers requests on l until ctx ends. Then it closes l, finishes the accepted requests, and
// returns. clean says that no request had to be cut off.
func (s *Server) Serve(ctx context.Context, l net.Listener) (clean bool, err error) {
	h := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: s.o.ReadHeaderTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		ConnContext:       withConn,
	}
	l = &listener{Listener: l, log: s.log}
	served := make(chan error, 1)
	go func() {
		if s.o.Certificate == nil {
			served <- h.Serve(l)
			return
		}
		h.TLSConfig = s.o.Certificate.config()
		served <- h.ServeTLS(l, "", "")
	}()
	select {
	case err := <-served:
		return false, err
	case <-ctx.Done():
	}
	return s.drain(h), nil
}

// grace is the time in which requests that are cut off must end.
const grace = 2 * time.Second

// drain ends the server. It closes the listener at once. Requests end by themselves or, when the
// time to drain is over, with an error.
func (s *Server) drain(h *http.Server) (clean bool) {
	s.draining.Store(true)
	s.log.Info("shutting down", "at_most", s.o.DrainTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), s.o.DrainTimeout)
	defer cancel()
	err := h.Shutdown(ctx)
	if err == nil {
		return !s.forced.Load()
	}
	s.forced.Store(true)
	s.cutOff(errShutdown)
	ctx, cancel = context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := h.Shutdown(ctx); err != nil {
		if err := h.Close(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("closing", "error", err)
		}
	}
	return false
}

// Close ends all requests at once.
func (s *Server) Close() { s.cutOff(errShutdown) }
