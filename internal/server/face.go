package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/wire"
)

// Worker is what a [Face] tells about a worker.
type Worker struct {
	Model string
	Stats func() restore.Stats
	Busy  func() int   // requests that are being answered
	Ready func() error // why it can take no request now; nil if it can

	Outcomes []string // that Done counts
}

// Face answers probes of a worker that takes its requests elsewhere: /health says that the process
// lives, /ready that it takes requests, /metrics is for Prometheus.
type Face struct {
	version, kernel string
	log             *slog.Logger
	worker          atomic.Pointer[facedWorker]
}

// facedWorker is a worker with its metrics.
type facedWorker struct {
	Worker
	*answerMetrics
	outcomes *prometheus.CounterVec
}

// NewFace returns a face without a worker. log may be nil.
func NewFace(version, kernel string, log *slog.Logger) *Face {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Face{version: version, kernel: kernel, log: log}
}

// Ready sets the worker.
func (f *Face) Ready(w Worker) {
	m := newAnswerMetrics(w.Model, f.version, f.kernel, w.Stats)
	busy := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "restore_worker_busy",
		Help: "Requests that the worker answers now."}, func() float64 { return float64(w.Busy()) })
	m.own.MustRegister(busy)
	outcomes := m.counters("restore_worker_requests_total",
		"Requests that the worker took, by what came of them.", "outcome")
	for _, o := range w.Outcomes {
		outcomes.WithLabelValues(o)
	}
	f.worker.Store(&facedWorker{w, m, outcomes})
}

// Done counts a request: what came of it, and its answer; nil if it has none.
func (f *Face) Done(outcome string, a *restore.Answer) {
	w := f.worker.Load()
	if w == nil {
		return
	}
	w.outcomes.WithLabelValues(outcome).Inc()
	if a != nil {
		w.count(a)
	}
}

// Serve answers probes on l until ctx ends.
func (f *Face) Serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{Handler: f, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(f.log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { _ = h.Close() }) // probes have no state
	defer stop()
	if err := h.Serve(&listener{Listener: l, log: f.log}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (f *Face) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	worker := f.worker.Load()
	fail := func(e *wire.Error) { reply(w, e.Status, e.JSON()) }
	switch {
	case r.URL.Path != "/health" && r.URL.Path != "/ready" && r.URL.Path != "/metrics":
		fail(wire.New(http.StatusNotFound, "unknown_path", "",
			"there is no %s, there are /health, /ready and /metrics", wire.Quote(r.URL.Path)))
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		fail(wire.New(http.StatusMethodNotAllowed, "method_not_allowed", "", "got %s, want GET",
			wire.Clip(r.Method)))
	case r.URL.Path == "/health":
		reply(w, http.StatusOK, status{"ok"})
	case worker == nil:
		fail(loading())
	case r.URL.Path == "/metrics":
		worker.handler().ServeHTTP(w, r)
	default:
		if err := worker.Ready(); err != nil {
			fail(wire.New(http.StatusServiceUnavailable, "not_ready", "", "%v", err))
			return
		}
		reply(w, http.StatusOK, status{"ready"})
	}
}

// reply writes a value as JSON.
func reply(w http.ResponseWriter, code int, v any) {
	body, err := wire.Marshal(v)
	if err != nil {
		code, body = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that is gone gets nothing
}
