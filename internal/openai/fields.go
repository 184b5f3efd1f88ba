package openai

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// Protocol is OpenAI's API, and the form of errors of all paths that no other API has.
var Protocol = api.Protocol{
	Name: "OpenAI", Stream: api.EventStream,
	Calls: map[string]api.Parse{
		"/v1/chat/completions": ParseChat, "/v1/completions": ParseCompletion,
		"/v1/responses": ParseResponse,
	},
	Docs: docs, Error: (*wire.Error).JSON, ErrorSchema: errorSchema,
}

// Fixed limits of requests.
const (
	maxTop  = 20
	maxEcho = 1 << 16 // bytes of a field that a reply repeats
)

var schemaName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// format reads response_format, or text.format, whose schema is inline (flat).
func format(f *wire.Object, c *api.Call, flat bool) {
	if f == nil || !f.Require("type", "text, json_object or json_schema") {
		return
	}
	switch kind := f.String("type"); kind {
	case "text":
	case "json_object":
		if f.Has("schema") { // llama-server's form
			api.Schema(f, c, "schema")
			break
		}
		c.Format.Object, c.FormatPath = true, f.Path("type")
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
			api.Schema(s, c, "schema")
		}
		if !flat {
			api.Note(c, s)
		}
	default:
		f.Fail("invalid_value", "type", "got %s, want text, json_object or json_schema",
			wire.Quote(kind))
	}
	api.Note(c, f)
}

// unsupported refuses fields that would change the answer, except with values that change nothing.
func unsupported(o *wire.Object, f *api.Front) {
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
			o.Lack(name, "%q does not support tools", f.About.ID)
		}
	}
	for _, name := range []string{"tool_choice", "function_call"} {
		if raw := o.Raw(name); raw != nil && compact(raw) != `"none"` && compact(raw) != `"auto"` {
			o.Fail("unsupported_value", name,
				"got %s, want none or auto: %q does not support tools", wire.Describe(raw),
				f.About.ID)
		}
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
	{"min_tokens", []string{"0"}, true}, {"reasoning_effort", []string{`"none"`}, false},
	{"modalities", []string{`["text"]`}, false}, {"verbosity", []string{`"medium"`}, false},
	{"use_beam_search", []string{"false"}, false},
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
