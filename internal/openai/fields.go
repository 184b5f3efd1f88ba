package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/grammar"
	"github.com/restore-vlm/restore/internal/spell"
	"github.com/restore-vlm/restore/internal/wire"
)

// Env has the server's limits for the checks of a request.
type Env struct {
	Model      string   // the model's id
	MaxImages  int      // per request
	Vocab      int      // number of token ids
	Parameters []string // reduction fields of the object "restore"
}

// Fixed limits of requests.
const (
	maxMessages = 1024
	maxStops    = 16
	maxStop     = 256 // bytes
	maxSalt     = 256 // bytes
	maxTop      = 20
	maxParts    = 4096    // of all messages
	maxIgnored  = 1024    // unknown fields of all objects
	maxLayer    = 1 << 14 // bytes of an object "restore"
	maxEcho     = 1 << 16 // bytes of a field that a reply repeats
)

// limit reads the number of tokens to generate from fields with the same meaning.
func limit(o *wire.Object, r *ask.Request, names ...string) {
	given := ""
	for _, name := range names {
		n, ok := o.Int(name, 1, math.MaxInt64)
		switch {
		case !ok:
		case given == "":
			given = name
			r.MaxTokens = int(min(n, math.MaxInt32))
		case int(min(n, math.MaxInt32)) != r.MaxTokens:
			o.Fail("invalid_value", name, "got %d, want the same as %s, %d", n, given, r.MaxTokens)
		}
	}
}

// Sampling reads the sampling options.
func Sampling(o *wire.Object, r *ask.Request) {
	if v, ok := o.Float("temperature", 0, 2, false); ok {
		r.Sampling.Temperature = &v
	}
	if v, ok := o.Float("top_p", 0, 1, true); ok {
		r.Sampling.TopP = &v
	}
	if v, ok := o.Float("min_p", 0, 1, false); ok {
		r.Sampling.MinP = &v
	}
	if v, ok := o.Int("top_k", 0, math.MaxInt64); ok {
		k := int(min(v, math.MaxInt32))
		r.Sampling.TopK = &k
	}
	if v, ok := o.Int("seed", math.MinInt64, math.MaxInt64); ok {
		o.Exact("seed")
		r.Sampling.Seed = &v
	}
	r.IgnoreEOS = o.Bool("ignore_eos")
}

// Stops reads stop strings: one, or a list.
func Stops(o *wire.Object, r *ask.Request) {
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
		r.Stop = append(r.Stop, s)
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

var schemaName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// format reads response_format, or text.format, whose schema is inline (flat).
func format(f *wire.Object, r *ask.Request, flat bool) {
	if f == nil || !f.Require("type", "text, json_object or json_schema") {
		return
	}
	switch kind := f.String("type"); kind {
	case "text":
	case "json_object":
		r.Format = ask.Format{Object: true, Path: f.Path("type")}
	case "json_schema":
		s := f
		if !flat {
			if !f.Require("json_schema", "an object with name and schema") {
				return
			}
			s = f.Object("json_schema")
		}
		if s.Require("name", "1 to 64 letters, digits, - and _") {
			if name := s.String("name"); !schemaName.MatchString(name) {
				s.Fail("invalid_value", "name", "got %s, want 1 to 64 letters, digits, - and _",
					wire.Quote(name))
			}
		}
		s.Bool("strict")
		s.Ignore("description")
		if s.Require("schema", "a JSON schema") {
			r.Format = Schema(s, "schema")
		}
		if !flat {
			Note(r, s)
		}
	default:
		f.Fail("invalid_value", "type", "got %s, want text, json_object or json_schema",
			wire.Quote(kind))
	}
	Note(r, f)
}

// Schema reads a field with a JSON schema and checks its keywords. What the schema becomes is
// computed when the request has its place in the queue.
func Schema(o *wire.Object, name string) ask.Format {
	schema := o.Raw(name)
	_, err := grammar.Parse(schema)
	var e *grammar.Error
	if errors.As(err, &e) {
		o.Fail("invalid_json_schema", name, "%v", e)
		return ask.Format{}
	}
	return ask.Format{Schema: bytes.Clone(schema), Path: o.Path(name)} // not a part of the body
}

// Note adds the fields of an object that were never read to the ignored ones.
func Note(r *ask.Request, o *wire.Object) {
	for _, name := range o.Unread() {
		if len(r.Ignored) == maxIgnored {
			o.Fail("invalid_value", wire.Name(name),
				"got more than %d unknown fields in the body, want at most that", maxIgnored)
			return
		}
		r.Ignored = append(r.Ignored, o.Path(wire.Name(name)))
	}
}

// Extension reads the object "restore" of a body.
func Extension(o *wire.Object, r *ask.Request, env *Env) {
	x := o.Object("restore")
	if x == nil {
		return
	}
	own := []string{"report", "cache", "cache_salt"}
	Known(x, append(slices.Clone(env.Parameters), own...))
	if x.Has("report") {
		switch kind := x.String("report"); kind {
		case "counts":
		case "groups":
			r.Groups = true
		default:
			x.Fail("invalid_value", "report", "got %s, want counts or groups", wire.Quote(kind))
		}
	}
	if x.Has("cache") {
		r.NoCache = !x.Bool("cache")
	}
	if x.Has("cache_salt") {
		if r.Salt = x.String("cache_salt"); len(r.Salt) < 1 || len(r.Salt) > maxSalt {
			x.Fail("invalid_value", "cache_salt", "got %d bytes, want 1 to %d", len(r.Salt),
				maxSalt)
		}
	}
	r.Reduction = layer(x, own)
}

// layer returns the reduction fields of an object "restore", except those in but.
func layer(x *wire.Object, but []string) ask.Layer {
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
	l := ask.Layer{Path: x.Path("")}
	if b.Len() > 0 {
		l.Object = json.RawMessage("{" + b.String() + "}")
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
		if n := nearest(name, names); n != "" {
			near = "the nearest is " + n + "; "
		}
		x.Fail("unknown_parameter", wire.Name(name), "unknown field, %sthere are %s", near,
			strings.Join(names, ", "))
	}
}

// nearest returns the name with the smallest edit distance, "" if none is near.
func nearest(name string, names []string) string {
	best, least := "", len(name)/2+1
	for _, n := range names {
		if d := spell.Distance(name, n, least); d < least {
			best, least = n, d
		}
	}
	return best
}

// unsupported refuses fields that would change the answer, except with values that change nothing.
func unsupported(o *wire.Object, env *Env) {
	for _, f := range neutral {
		raw := o.Raw(f.name)
		if raw == nil {
			continue
		}
		if slices.Contains(f.values, compact(raw)) || f.number && isNumber(raw, f.values[0]) {
			continue
		}
		if f.number && wire.Kind(raw) != "a number" {
			o.Fail("invalid_type", f.name, "got %s, want a number", wire.Describe(raw))
			continue
		}
		o.Fail("unsupported_parameter", f.name, "got %s, want %s or nothing", wire.Describe(raw),
			strings.Join(f.values, ", "))
	}
	for _, name := range []string{"tools", "functions"} {
		if raw := o.Raw(name); raw != nil && compact(raw) != "[]" {
			o.Lack(name, "%q does not support tools", env.Model)
		}
	}
	if raw := o.Raw("tool_choice"); raw != nil && compact(raw) != `"none"` &&
		compact(raw) != `"auto"` {
		o.Fail("unsupported_value", "tool_choice",
			"got %s, want none or auto: %q does not support tools", wire.Describe(raw), env.Model)
	}
	for _, name := range refused {
		if raw := o.Raw(name); raw != nil && compact(raw) != "false" && compact(raw) != "{}" {
			o.Fail("unsupported_parameter", name, "got %s, want nothing: it is not supported",
				wire.Describe(raw))
		}
	}
	o.Ignore(labels...)
}

// neutral are fields that are accepted only with values that change nothing.
var neutral = []struct {
	name   string
	values []string
	number bool
}{
	{"frequency_penalty", []string{"0"}, true}, {"presence_penalty", []string{"0"}, true},
	{
		"best_of",
		[]string{"1"},
		true,
	}, {"repetition_penalty", []string{"1"}, true}, {"repeat_penalty", []string{"1"}, true},
	{
		"min_tokens",
		[]string{"0"},
		true,
	}, {"logit_bias", []string{"{}"}, false}, {"reasoning_effort", []string{`"none"`}, false},
	{
		"modalities",
		[]string{`["text"]`},
		false,
	}, {"verbosity", []string{`"medium"`}, false}, {"use_beam_search", []string{"false"}, false},
}

// refused are fields that would change the answer.
var refused = []string{
	"audio",
	"prediction",
	"web_search_options",
	"grammar",
	"json_schema",
	"guided_json",
	"guided_regex",
	"guided_grammar",
	"guided_choice",
	"structured_outputs",
	"mm_processor_kwargs",
	"chat_template",
	"chat_template_kwargs",
	"prompt_logprobs",
	"echo",
	"continue_final_message",
}

// labels are fields that do not change the answer.
var labels = []string{
	"user",
	"metadata",
	"store",
	"service_tier",
	"safety_identifier",
	"prompt_cache_key",
	"prompt_cache_retention",
	"parallel_tool_calls",
}

// compact is a value without white space outside strings, "" if it is long.
func compact(raw json.RawMessage) string {
	if len(raw) > 64 {
		return ""
	}
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return ""
	}
	out, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(out)
}

// isNumber reports whether a value equals the number want, in any notation.
func isNumber(raw json.RawMessage, want string) bool {
	var v, w float64
	return wire.Kind(raw) == "a number" && json.Unmarshal(raw, &v) == nil &&
		json.Unmarshal([]byte(want), &w) == nil &&
		v == w
}
