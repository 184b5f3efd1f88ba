package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/grammar"
	"github.com/restore-vlm/restore/internal/spell"
	"github.com/restore-vlm/restore/internal/wire"
)

// Fixed limits of calls.
const (
	maxMessages = 1024
	maxParts    = 4096 // of all messages
	maxStops    = 16
	maxStop     = 256  // bytes
	maxSalt     = 256  // bytes
	maxBias     = 1024 // tokens
	maxChoices  = 16
	maxIgnored  = 1024    // unknown fields of all objects
	maxLayer    = 1 << 14 // bytes of an object "restore"
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

// Penalties reads the penalties of repeated tokens, and the bias of tokens.
func Penalties(o *wire.Object, c *Call, f *Front) {
	p := &c.Sampling.Penalties
	if v, ok := o.Float("frequency_penalty", -2, 2, false); ok {
		p.Frequency = v
	}
	if v, ok := o.Float("presence_penalty", -2, 2, false); ok {
		p.Presence = v
	}
	given := ""
	for _, name := range []string{"repeat_penalty", "repetition_penalty"} {
		v, ok := o.Float(name, 0.1, 10, false)
		switch {
		case ok && given != "" && v != p.Repeat:
			o.Fail("invalid_value", name, "got %v, want the same as %s, %v", v, given, p.Repeat)
		case ok:
			given, p.Repeat = name, v
		}
	}
	if n, ok := o.Int("repeat_last_n", -1, int64(f.About.Context)); ok {
		if p.RepeatLast = int(n); n == 0 {
			p.Repeat = 0
		}
	}
	bias(o, p, f)
}

// bias reads logit_bias: an object of token ids, or llama-server's list of pairs, in which false
// forbids a token.
func bias(o *wire.Object, p *restore.Penalties, f *Front) {
	const name = "logit_bias"
	raw := o.Raw(name)
	if raw == nil {
		return
	}
	p.Bias = map[int32]float64{}
	last := int64(min(f.About.Vocab-1, math.MaxInt32))
	switch wire.Kind(raw) {
	case "an object":
		x := o.Object(name)
		names := x.Names()
		if len(names) > maxBias {
			o.Fail("invalid_value", name, "got %d tokens, want at most %d", len(names), maxBias)
			return
		}
		for _, key := range names {
			id, err := strconv.ParseInt(key, 10, 64)
			if err != nil || id < 0 || id > last {
				x.Fail("invalid_value", wire.Name(key), "got no token id, want 0 to %d", last)
				continue
			}
			if v, ok := x.Float(key, -100, 100, false); ok {
				p.Bias[int32(id)] = v
			}
		}
	case "a list":
		l := o.List(name)
		if l.Len() > maxBias {
			o.Fail("invalid_value", name, "got %d pairs, want at most %d", l.Len(), maxBias)
			return
		}
		for item := range l.Items() {
			pair(item, last, p)
		}
	default:
		o.Fail("invalid_type", name, "got %s, want an object of token ids, or a list of pairs",
			wire.Describe(raw))
	}
}

// pair reads [token id, bias] or [token id, false].
func pair(item wire.Item, last int64, p *restore.Penalties) {
	l := item.List()
	if l.Len() != 2 {
		item.Fail("invalid_value", "got %d values, want a token id and a number or false", l.Len())
		return
	}
	id := int64(-1)
	for part := range l.Items() {
		switch {
		case id < 0:
			id = part.Int(0, last)
		case string(part.Raw()) == "false":
			p.Bias[int32(id)] = restore.Forbidden
		default:
			p.Bias[int32(id)] = part.Float(-100, 100)
		}
	}
}

// MaxTop is the most other tokens of which log probabilities are reported.
const MaxTop = 20

// Logprobs reads whether log probabilities are reported, and of how many other tokens.
func Logprobs(o *wire.Object, c *Call) {
	c.Logprobs = o.Bool("logprobs")
	n, _ := o.Int("top_logprobs", 0, MaxTop)
	if c.Top = int(n); n > 0 && !c.Logprobs {
		o.Fail("invalid_value", "top_logprobs", "got %d without logprobs, want logprobs: true too",
			n)
	}
}

// Choices reads the number of choices. Package openai calls it after Sampling.
func Choices(o *wire.Object, c *Call) {
	if n, ok := o.Int("n", 1, maxChoices); ok {
		c.N = int(n)
	}
	if c.N > 1 && c.Sampling.Temperature == 0 {
		o.Fail("invalid_value", "n", "got %d at temperature 0, want 1: all would be alike", c.N)
	}
	if n, ok := o.Int("best_of", math.MinInt64, math.MaxInt64); ok && n != int64(max(1, c.N)) {
		o.Fail("unsupported_parameter", "best_of", "got %d, want n, which is %d, or nothing", n,
			max(1, c.N))
	}
}

// Limit reads the number of tokens to generate from fields with the same meaning.
func Limit(o *wire.Object, c *Call, names ...string) {
	given := ""
	for _, name := range names {
		n, ok := o.Int(name, 1, math.MaxInt64)
		switch {
		case !ok:
		case given == "":
			given = name
			c.MaxTokens = int(min(n, math.MaxInt32))
		case int(min(n, math.MaxInt32)) != c.MaxTokens:
			o.Fail("invalid_value", name, "got %d, want the same as %s, %d", n, given, c.MaxTokens)
		}
	}
}

// Stops reads a field with stop strings: one, or a list.
func Stops(o *wire.Object, c *Call, name string) {
	raw := o.Raw(name)
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
		check(o.String(name),
			func(code, format string, args ...any) { o.Fail(code, name, format, args...) })
	case "a list":
		l := o.List(name)
		if n := l.Len(); n > maxStops {
			o.Fail("invalid_value", name, "got %d strings, want 1 to %d", n, maxStops)
			return
		}
		for item := range l.Items() {
			check(item.Text(), item.Fail)
		}
	default:
		o.Fail("invalid_type", name, "got %s, want a string or a list of strings",
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
	RefuseUnknown(x, append(slices.Clone(parameterFields()), own...))
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

// Lacks refuses fields that request what the model does not support, unless they are empty.
func (f *Front) Lacks(o *wire.Object, what string, names ...string) {
	for _, name := range names {
		if !wire.IsEmpty(o.Raw(name)) {
			o.Lack(name, "%q does not support %s", f.About.ID, what)
		}
	}
}

// RefuseUnknown refuses fields of an object that are not in names.
func RefuseUnknown(x *wire.Object, names []string) {
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
