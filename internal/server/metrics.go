package server

import (
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/media"
)

// metrics are the metrics of /metrics. No label takes a value from a request.
type metrics struct {
	*answerMetrics
	requests   *prometheus.CounterVec // route, code
	seconds    prometheus.Histogram
	images     map[media.Source]prometheus.Counter
	cancelled  prometheus.Counter
	rejections *prometheus.CounterVec // reason
}

// answerMetrics are those of a model's answers and of the process.
type answerMetrics struct {
	registry *prometheus.Registry
	own      prometheus.Registerer // adds the label of the model

	queue        prometheus.Histogram
	ttft         prometheus.Histogram
	interToken   prometheus.Histogram
	stages       map[string]prometheus.Observer
	promptTokens prometheus.Counter
	cachedTokens prometheus.Counter
	tokens       prometheus.Counter
	original     prometheus.Counter
	kept         prometheus.Counter
	merged       prometheus.Counter
}

// rejections are the reasons for refusing a request.
var rejections = []string{"queue_full", "shutting_down", "too_large", "deadline"}

// Buckets of histograms, in seconds.
var (
	requestBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 60, 150, 600}
	tokenBuckets   = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}
	stageBuckets   = []float64{
		.0005,
		.001,
		.0025,
		.005,
		.01,
		.025,
		.05,
		.1,
		.25,
		.5,
		1,
		2.5,
		5,
		10,
		25,
		60,
	}
)

func (m *answerMetrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.own.MustRegister(c)
	return c
}

func (m *answerMetrics) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.own.MustRegister(c)
	return c
}

func (m *answerMetrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.own.MustRegister(h)
	return h
}

// newAnswerMetrics makes the metrics of a model's answers; state returns the service's gauges.
func newAnswerMetrics(model, version, kernel string, state func() restore.Stats) *answerMetrics {
	m := &answerMetrics{registry: prometheus.NewRegistry()}
	m.own = prometheus.WrapRegistererWith(prometheus.Labels{"model": model}, m.registry)
	m.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.queue = m.histogram("restore_queue_seconds", "Time that a request waited in the queue.",
		requestBuckets)
	m.ttft = m.histogram("restore_ttft_seconds",
		"Time from a request's arrival to its first token.", requestBuckets)
	m.interToken = m.histogram("restore_inter_token_seconds",
		"Mean time between the tokens of an answer.", tokenBuckets)
	stage := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "restore_stage_seconds",
		Help:    "Time of a request's stages; stages that did not run are not counted.",
		Buckets: stageBuckets}, []string{"stage"})
	m.own.MustRegister(stage)
	m.stages = map[string]prometheus.Observer{}
	for _, name := range []string{"prepare", "encode", "select", "merge", "prefill", "decode"} {
		m.stages[name] = stage.WithLabelValues(name)
	}
	m.promptTokens = m.counter("restore_prompt_tokens_total",
		"Rows of prompts that the decoder read, with pictures after their reduction.")
	m.cachedTokens = m.counter("restore_cached_tokens_total",
		"Of these, rows whose keys and values were cached.")
	m.tokens = m.counter("restore_completion_tokens_total", "Tokens generated.")
	m.original = m.counter("restore_image_tokens_original_total", "Visual tokens before reduction.")
	m.kept = m.counter("restore_image_tokens_kept_total", "Visual tokens read unchanged.")
	m.merged = m.counter("restore_image_tokens_merged_total",
		"Tokens that stand for a group of visual tokens.")
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "restore_build_info",
		Help: "Always 1; the labels describe the running program.",
		ConstLabels: prometheus.Labels{
			"version": version, "go": runtime.Version(), "kernel": kernel,
		}})
	build.Set(1)
	m.own.MustRegister(build, newCollector(state))
	return m
}

// newMetrics makes the metrics of a server.
func newMetrics(model, version, kernel string, state func() restore.Stats) *metrics {
	m := &metrics{answerMetrics: newAnswerMetrics(model, version, kernel, state)}
	m.requests = m.counters("restore_requests_total", "Requests answered, by route and status.",
		"route", "code")
	m.seconds = m.histogram("restore_request_seconds",
		"Time from a request's arrival to the end of its answer.", requestBuckets)
	images := m.counters("restore_images_total", "Pictures loaded, by source.", "source")
	m.images = map[media.Source]prometheus.Counter{}
	for _, source := range []media.Source{media.Data, media.File, media.HTTP} {
		m.images[source] = images.WithLabelValues(string(source))
	}
	m.cancelled = m.counter("restore_cancelled_total", "Requests whose client disconnected.")
	m.rejections = m.counters("restore_rejected_total", "Refused requests, by reason.", "reason")
	for _, reason := range rejections {
		m.rejections.WithLabelValues(reason)
	}
	return m
}

func (m *answerMetrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

func (m *metrics) rejected(reason string) { m.rejections.WithLabelValues(reason).Inc() }

// answered counts a request by route and status.
func (m *metrics) answered(route string, code int, d time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(code)).Inc()
	m.seconds.Observe(d.Seconds())
}

// count adds the tokens and times of an answer.
func (m *answerMetrics) count(a *restore.Answer) {
	m.promptTokens.Add(float64(a.Usage.Prompt))
	m.cachedTokens.Add(float64(a.Usage.Cached))
	m.tokens.Add(float64(a.Usage.Generated))
	for _, p := range a.Pictures {
		m.original.Add(float64(p.Tokens))
		m.kept.Add(float64(p.Kept))
		m.merged.Add(float64(p.Merged))
	}
	t := &a.Timings
	m.queue.Observe(t.Queue.Seconds())
	m.ttft.Observe(t.FirstToken.Seconds())
	if a.Usage.Generated > 1 {
		m.interToken.Observe(t.Decode.Seconds() / float64(a.Usage.Generated-1))
	}
	for name, d := range map[string]time.Duration{
		"prepare": t.Prepare, "encode": t.Encode, "select": t.Select,
		"merge": t.Merge, "prefill": t.Prefill, "decode": t.Decode} {
		if d > 0 {
			m.stages[name].Observe(d.Seconds())
		}
	}
}
