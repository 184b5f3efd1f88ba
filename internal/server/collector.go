package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/restore-vlm/restore"
)

// number is one number of a state, or of a part of it.
type number[T any] struct {
	name string
	kind prometheus.ValueType
	help string
	of   func(T) float64
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

var stateNumbers = []number[*restore.Stats]{
	{"restore_running", gauge, "Requests that are being answered.",
		func(s *restore.Stats) float64 { return float64(s.Running) }},
	{"restore_queue_depth", gauge, "Requests that wait in the queue.",
		func(s *restore.Stats) float64 { return float64(s.Queued) }},
	{"restore_kv_bytes", gauge, "Memory of keys and values in use.",
		func(s *restore.Stats) float64 { return float64(s.KVBytes) }},
	{"restore_kv_limit_bytes", gauge, "Memory limit of keys and values.",
		func(s *restore.Stats) float64 { return float64(s.KVLimit) }},
	{"restore_feature_cache_misses_total", counter,
		"Pictures whose reduced features were in no cache.",
		func(s *restore.Stats) float64 { return float64(s.FeatureMisses) }},
	{"restore_feature_cache_evictions_total", counter,
		"Entries evicted from the caches of features, in memory and on disk.",
		func(s *restore.Stats) float64 { return float64(s.FeatureEvicted) }},
	{"restore_feature_cache_corrupt_total", counter,
		"Files of the cache of features that were damaged or foreign.",
		func(s *restore.Stats) float64 { return float64(s.FeatureCorrupt) }},
	{"restore_feature_cache_unsaved_total", counter,
		"Pictures whose features were not written to disk: too many waited, or writing failed.",
		func(s *restore.Stats) float64 { return float64(s.FeatureUnsaved) }},
	{"restore_prefix_cache_hits_total", counter, "Prompts whose prefix was cached.",
		func(s *restore.Stats) float64 { return float64(s.PrefixHits) }},
	{"restore_prefix_cache_misses_total", counter, "Prompts that were read from the start.",
		func(s *restore.Stats) float64 { return float64(s.PrefixMisses) }},
}

// fleetNumbers are for a service on other machines.
var fleetNumbers = []number[*restore.FleetStats]{
	{"restore_workers", gauge, "Live workers.",
		func(f *restore.FleetStats) float64 { return float64(f.Workers) }},
	{"restore_queue_oldest_seconds", gauge, "Age of the oldest request without an answer.",
		func(f *restore.FleetStats) float64 { return f.Oldest.Seconds() }},
}

// cacheNumbers have one series for each of the tiers.
var cacheNumbers = []number[restore.CacheStats]{
	{"restore_feature_cache_hits_total", counter, "Pictures whose reduced features were cached.",
		func(c restore.CacheStats) float64 { return float64(c.Hits) }},
	{"restore_feature_cache_bytes", gauge, "Size of the cache of features.",
		func(c restore.CacheStats) float64 { return float64(c.Bytes) }},
	{"restore_feature_cache_entries", gauge, "Entries of the cache of features.",
		func(c restore.CacheStats) float64 { return float64(c.Entries) }},
}

var tiers = []string{"memory", "disk", "shared"}

// collector reads a state when it is scraped.
type collector struct {
	state func() restore.Stats
	descs map[string]*prometheus.Desc
}

func newCollector(state func() restore.Stats) *collector {
	c := &collector{state: state, descs: map[string]*prometheus.Desc{}}
	for _, n := range stateNumbers {
		c.descs[n.name] = prometheus.NewDesc(n.name, n.help, nil, nil)
	}
	for _, n := range fleetNumbers {
		c.descs[n.name] = prometheus.NewDesc(n.name, n.help, nil, nil)
	}
	for _, n := range cacheNumbers {
		c.descs[n.name] = prometheus.NewDesc(n.name, n.help, []string{"tier"}, nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := c.state()
	for _, n := range stateNumbers {
		out <- prometheus.MustNewConstMetric(c.descs[n.name], n.kind, n.of(&s))
	}
	if s.Fleet != nil {
		for _, n := range fleetNumbers {
			out <- prometheus.MustNewConstMetric(c.descs[n.name], n.kind, n.of(s.Fleet))
		}
	}
	for _, n := range cacheNumbers {
		for _, tier := range tiers {
			out <- prometheus.MustNewConstMetric(c.descs[n.name], n.kind, n.of(s.Features[tier]),
				tier)
		}
	}
}
