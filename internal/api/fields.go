package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/grammar"
	"github.com/restore-vlm/restore/internal/spell"
	"github.com/restore-vlm/restore/internal/wire"
)

// Fixed limits of calls.
const (
	maxStops   = 16
	maxStop    = 256     // bytes
	maxSalt    = 256     // bytes
	maxIgnored = 1024    // unknown fields of all objects
	maxLayer   = 1 << 14 // bytes of an object "restore"
)

// Sampling reads the sampling options.
func Sampling(o *wire.Object, c *Call) {
	if v, ok := o.Float("temperature", 0, 2, false); ok {
		c.Sampling.Temperature = v
	}
	if v, ok := o.Float("top_p", 0, 1, true); ok {
		c.Sampling.TopP = v
	}
	if v, ok := o.Float("min_p", 0, 1, false); ok {
		c.Sampling.MinP = v
	}
	if v, ok := o.Int("top_k", 0, math.MaxInt64); ok {
		c.Sampling.TopK = int(min(v, math.MaxInt32))
	}
	if v, ok := o.Int("seed", math.MinInt64, math.MaxInt64); ok {
		o.Exact("seed")
		c.Sampling.Seed, c.seeded = v, true
	}
	c.IgnoreEnd = o.Bool("ignore_eos")
}

// Stops reads stop strings: one, or a list.
func Stops(o *wire.Object, c *Call) {
	raw := o.Raw("stop")
	if raw == nil {
		return
	}
	check := func(s string, fail func(code, format string, args ...any)) {
		switch {
		case s == "":
			fail("invalid_value", "got an empty string, want 1 to %d bytes", maxStop)
		case len(s) > maxStop:
			fail("invalid_value", "got %d bytes, want 1 to %d", len(s), maxStop)
		}
		c.Stop = append(c.Stop, s)
	}
	switch wire.Kind(raw) {
	case "a string":
		check(o.String("stop"),
			func(code, format string, args ...any) { o.Fail(code, "stop", format, args...) })
	case "a list":
		l := o.List("stop")
		if n := l.Len(); n < 1 || n > maxStops {
			o.Fail("invalid_value", "stop", "got %d strings, want 1 to %d", n, maxStops)
			return
		}
		for item := range l.Items() {
			check(item.Text(), item.Fail)
		}
	default:
		o.Fail("invalid_type", "stop", "got %s, want a string or a list of strings",
			wire.Describe(raw))
	}
}

// Schema reads a field with a JSON schema and checks its keywords. What the schema becomes is
// computed when the request has its place in the queue.
func Schema(o *wire.Object, c *Call, name string) {
	schema := o.Raw(name)
	_, err := grammar.Parse(schema)
	var e *grammar.Error
	if errors.As(err, &e) {
		o.Fail("invalid_json_schema", name, "%v", e)
		return
	}
	c.Format.Schema, c.FormatPath = bytes.Clone(schema), o.Path(name) // not a part of the body
}

// Note adds the fields of an object that were never read to the ignored ones.
func Note(c *Call, o *wire.Object) {
	for _, name := range o.Unread() {
		if len(c.Ignored) == maxIgnored {
			o.Fail("invalid_value", wire.Name(name),
				"got more than %d unknown fields in the body, want at most that", maxIgnored)
			return
		}
		c.Ignored = append(c.Ignored, o.Path(wire.Name(name)))
	}
}

// ReadExtension reads the object "restore" of a body.
func ReadExtension(o *wire.Object, c *Call) {
	x := o.Object("restore")
	if x == nil {
		return
	}
	own := []string{"report", "cache", "cache_salt"}
	Known(x, append(slices.Clone(parameterFields()), own...))
	if x.Has("report") {
		switch kind := x.String("report"); kind {
		case "counts":
		case "groups":
			c.Groups = true
		default:
			x.Fail("invalid_value", "report", "got %s, want counts or groups", wire.Quote(kind))
		}
	}
	if x.Has("cache") {
		c.NoCache = !x.Bool("cache")
	}
	if x.Has("cache_salt") {
		if c.Salt = x.String("cache_salt"); len(c.Salt) < 1 || len(c.Salt) > maxSalt {
			x.Fail("invalid_value", "cache_salt", "got %d bytes, want 1 to %d", len(c.Salt),
				maxSalt)
		}
	}
	c.outer = layerOf(x, own)
}

// layerOf returns the reduction fields of an object "restore", except those in but.
func layerOf(x *wire.Object, but []string) layer {
	var b strings.Builder
	for _, name := range x.Names() {
		if slices.Contains(but, name) {
			continue
		}
		raw := x.Raw(name)
		if n := b.Len() + len(name) + len(raw); n > maxLayer {
			x.Fail("invalid_value", "", "got %d bytes, want at most %d", n, maxLayer)
			break
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		key, _ := json.Marshal(name) // name is a known name
		b.Write(key)
		b.WriteByte(':')
		b.Write(raw)
	}
	l := layer{path: x.Path("")}
	if b.Len() > 0 {
		l.object = json.RawMessage("{" + b.String() + "}")
	}
	return l
}

// Known refuses fields of an object that are not in names.
func Known(x *wire.Object, names []string) {
	for _, name := range x.Names() {
		if slices.Contains(names, name) {
			continue
		}
		near := ""
		if n := spell.Nearest(name, names); n != "" {
			near = "the nearest is " + n + "; "
		}
		x.Fail("unknown_parameter", wire.Name(name), "unknown field, %sthere are %s", near,
			strings.Join(names, ", "))
	}
}
