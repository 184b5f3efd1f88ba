package openai

import (
	"regexp"

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

// maxEcho is the longest field that a reply repeats, in bytes.
const maxEcho = 1 << 16

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
	o.Only("min_tokens", "0")
	o.Only("reasoning_effort", `"none"`)
	o.Only("modalities", `["text"]`)
	o.Only("verbosity", `"medium"`)
	o.Only("use_beam_search", "false")
	f.Lacks(o, "tools", "tools", "functions")
	o.Only("tool_choice", `"none"`, `"auto"`)
	o.Only("function_call", `"none"`, `"auto"`)
	o.Refuse("", refused...)
	o.Ignore(labels...)
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
