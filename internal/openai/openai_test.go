package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// model is a service that only describes itself.
type model struct{ restore.Service }

func (model) Info() *restore.Info { return &restore.Info{ID: "builtin", Vocab: 640} }

var env = api.NewFront(model{}, api.Settings{MaxImages: 2})

const hello = `"messages":[{"role":"user","content":"hello"}]`

func parseChat(body []byte) (*api.Call, error)       { return ParseChat(body, env) }
func parseCompletion(body []byte) (*api.Call, error) { return ParseCompletion(body, env) }
func parsedResponse(body []byte) (*api.Call, error)  { return ParseResponse(body, env) }

// refusals checks that each body is refused with a code, a field, and a text.
func refusals(t *testing.T, parse func([]byte) (*api.Call, error), cases [][4]string) {
	t.Helper()
	for _, c := range cases {
		_, err := parse([]byte(c[0]))
		var e *wire.Error
		if !errors.As(err, &e) || e.Status != 400 || e.Code != c[1] || e.Param != c[2] ||
			!strings.Contains(e.Message, c[3]) {
			got := "nothing"
			if e != nil {
				got = fmt.Sprintf("%s %s %q", e.Code, e.Param, e.Message)
			}
			t.Errorf("%.200s:\n got %s\nwant %s %s %q", c[0], got, c[1], c[2], c[3])
		}
	}
}

// Ensure that every rule of a chat's fields is checked, with its code and its path.
func TestChatRefusals(t *testing.T) {
	with := func(field string) string { return "{" + hello + "," + field + "}" }
	message := func(m string) string { return `{"messages":[` + m + `]}` }
	part := func(p string) string {
		return message(`{"role":"user","content":[{"type":"text","text":"a"},` + p + `]}`)
	}
	picture := `{"type":"image_url","image_url":{"url":"AAAA"}}`
	refusals(t, parseChat, [][4]string{
		{`{}`, "missing_required_parameter", "messages", "missing, want a list of messages"},
		{`{"messages":null}`, "missing_required_parameter", "messages", "missing"},
		{`{"messages":"hello"}`, "invalid_type", "messages", `got "hello", want a list`},
		{`{"messages":[]}`, "invalid_value", "messages", "got 0 messages, want 1 to 1024"},
		{
			message(strings.Repeat(`{"role":"user","content":"a"},`, 1024) +
				`{"role":"user","content":"a"}`),
			"invalid_value",
			"messages",
			"got 1025 messages",
		},
		{message(`"hello"`), "invalid_type", "messages[0]", "want an object"},
		{message(`{"content":"a"}`), "missing_required_parameter", "messages[0].role", "missing"},
		{
			message(`{"role":1,"content":"a"}`),
			"invalid_type",
			"messages[0].role",
			"got 1, want a string",
		},
		{
			message(`{"role":"tool","content":"a"}`),
			"unsupported_value",
			"messages[0].role",
			`got "tool", want system, developer, user or assistant`,
		},
		{
			message(`{"role":"function","content":"a"}`),
			"unsupported_value",
			"messages[0].role",
			`got "function"`,
		},
		{
			message(`{"role":"user"}`),
			"missing_required_parameter",
			"messages[0].content",
			"missing",
		},
		{
			message(`{"role":"user","content":null}`),
			"missing_required_parameter",
			"messages[0].content",
			"missing",
		},
		{
			message(`{"role":"user","content":5}`),
			"invalid_type",
			"messages[0].content",
			"got 5, want a string or a list of parts",
		},
		{
			message(`{"role":"user","content":""}`),
			"invalid_value",
			"messages[0].content",
			"neither text nor a picture",
		},
		{
			message(`{"role":"user","content":[]}`),
			"invalid_value",
			"messages[0].content",
			"neither text nor a picture",
		},
		{
			message(
				`{"role":"user","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"c"}`,
			),
			"unsupported_value",
			"messages[1].role",
			"before",
		},
		{
			message(`{"role":"user","content":"a"},{"role":"assistant","content":"b"}`),
			"unsupported_value",
			"messages[1].role",
			`got "assistant" in the last message, want a user's`,
		},
		{
			message(`{"role":"system","content":"a"}`),
			"unsupported_value",
			"messages[0].role",
			`got "system" in the last message, want a user's`,
		},
		{
			message(
				`{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[{}]},{"role":"user","content":"a"}`,
			),
			"unsupported_parameter",
			"messages[1].tool_calls",
			"does not support tools",
		},
		{
			part(`{"text":"a"}`),
			"missing_required_parameter",
			"messages[0].content[1].type",
			"missing",
		},
		{
			part(`{"type":"text"}`),
			"missing_required_parameter",
			"messages[0].content[1].text",
			"missing",
		},
		{
			part(`{"type":"video_url","video_url":{"url":"x"}}`),
			"unsupported_content_part",
			"messages[0].content[1].type",
			`got "video_url", want text or image_url`,
		},
		{
			part(`{"type":"input_audio"}`),
			"unsupported_content_part",
			"messages[0].content[1].type",
			"text or image_url",
		},
		{
			part(`{"type":"file"}`),
			"unsupported_content_part",
			"messages[0].content[1].type",
			"text or image_url",
		},
		{
			part(`{"type":"input_image"}`),
			"unsupported_content_part",
			"messages[0].content[1].type",
			"text or image_url",
		},
		{
			part(`{"type":"image_url"}`),
			"missing_required_parameter",
			"messages[0].content[1].image_url",
			"missing",
		},
		{
			part(`{"type":"image_url","image_url":{}}`),
			"missing_required_parameter",
			"messages[0].content[1].image_url.url",
			"missing",
		},
		{
			part(`{"type":"image_url","image_url":{"url":5}}`),
			"invalid_type",
			"messages[0].content[1].image_url.url",
			"got 5, want a string",
		},
		{
			part(`{"type":"image_url","image_url":5}`),
			"invalid_type",
			"messages[0].content[1].image_url",
			"got 5, want an object",
		},
		{
			part(`{"type":"image_url","image_url":{"url":"A","detail":"medium"}}`),
			"invalid_value",
			"messages[0].content[1].image_url.detail",
			"auto, low, high or original",
		},
		{
			part(`{"type":"image_url","image_url":{"url":"A","restore":{"nvis":3}}}`),
			"unknown_parameter",
			"messages[0].content[1].image_url.restore.nvis",
			"the nearest is n_vis",
		},
		{
			part(`{"type":"image_url","image_url":{"url":"A","restore":{"cache":true}}}`),
			"unknown_parameter",
			"messages[0].content[1].image_url.restore.cache",
			"there are base",
		},
		{
			part(picture + "," + picture + "," + picture),
			"too_many_images",
			"messages",
			"got 3 pictures, want at most 2 (--max-images)",
		},
		{
			message(`{"role":"system","content":[` + picture + `]},{"role":"user","content":"a"}`),
			"unsupported_content_part",
			"messages[0].content[0].type",
			`got "image_url", want text`,
		},
		{
			message(`{"role":"user","content":"a"},{"role":"assistant","content":[` + picture +
				`]},{"role":"user","content":"a"}`),
			"unsupported_content_part",
			"messages[1].content[0].type",
			"want text",
		},
		{with(`"model":5`), "invalid_type", "model", "got 5, want a string"},
		{with(`"stream":"yes"`), "invalid_type", "stream", "true or false"},
		{
			with(`"stream_options":{"include_usage":true}`),
			"invalid_value",
			"stream_options.include_usage",
			"stream: true",
		},
		{
			with(`"stream":true,"stream_options":[]`),
			"invalid_type",
			"stream_options",
			"got a list, want an object",
		},
		{with(`"max_tokens":0`), "integer_below_min_value", "max_tokens", "got 0, want at least 1"},
		{with(`"max_tokens":-1`), "integer_below_min_value", "max_tokens", "got -1"},
		{
			with(`"max_completion_tokens":1.5`),
			"invalid_type",
			"max_completion_tokens",
			"got 1.5, want an integer",
		},
		{
			with(`"max_completion_tokens":3,"max_tokens":4`),
			"invalid_value",
			"max_tokens",
			"got 4, want the same as max_completion_tokens, 3",
		},
		{
			with(`"temperature":2.1`),
			"decimal_above_max_value",
			"temperature",
			"got 2.1, want at most 2",
		},
		{with(`"temperature":-0.1`), "decimal_below_min_value", "temperature", "at least 0"},
		{with(`"temperature":"hot"`), "invalid_type", "temperature", `got "hot", want a number`},
		{with(`"top_p":0`), "decimal_below_min_value", "top_p", "more than 0"},
		{with(`"top_p":1.01`), "decimal_above_max_value", "top_p", "at most 1"},
		{with(`"top_k":-1`), "integer_below_min_value", "top_k", "at least 0"},
		{with(`"min_p":2`), "decimal_above_max_value", "min_p", "at most 1"},
		{with(`"seed":1.5`), "invalid_type", "seed", "integer"},
		{
			with(`"seed":9223372036854775808`),
			"integer_above_max_value",
			"seed",
			"9223372036854775807",
		},
		{with(`"stop":""`), "invalid_value", "stop", "empty string"},
		{with(`"stop":["a",""]`), "invalid_value", "stop[1]", "empty string"},
		{with(`"stop":[1]`), "invalid_type", "stop[0]", "string"},
		{with(`"stop":5`), "invalid_type", "stop", "a string or a list"},
		{
			with(`"stop":["` + strings.Repeat(`a","`, 16) + `a"]`),
			"invalid_value",
			"stop",
			"got 17 strings, want 1 to 16",
		},
		{
			with(`"stop":"` + strings.Repeat("a", 257) + `"`),
			"invalid_value",
			"stop",
			"got 257 bytes, want 1 to 256",
		},
		{with(`"n":2`), "invalid_value", "n", "got 2 at temperature 0, want 1"},
		{with(`"n":17,"temperature":1`), "integer_above_max_value", "n", "got 17, want at most 16"},
		{with(`"n":0`), "integer_below_min_value", "n", "got 0, want at least 1"},
		{with(`"logprobs":5`), "invalid_type", "logprobs", "true or false"},
		{with(`"top_logprobs":2`), "invalid_value", "top_logprobs", "logprobs: true"},
		{
			with(`"logprobs":true,"top_logprobs":21`),
			"integer_above_max_value",
			"top_logprobs",
			"at most 20",
		},
		{with(`"response_format":"json"`), "invalid_type", "response_format", "object"},
		{
			with(`"response_format":{}`),
			"missing_required_parameter",
			"response_format.type",
			"missing",
		},
		{
			with(`"response_format":{"type":"xml"}`),
			"invalid_value",
			"response_format.type",
			"text, json_object or json_schema",
		},
		{
			with(`"response_format":{"type":"json_schema"}`),
			"missing_required_parameter",
			"response_format.json_schema",
			"missing",
		},
		{
			with(`"response_format":{"type":"json_schema","json_schema":{"schema":{}}}`),
			"missing_required_parameter",
			"response_format.json_schema.name",
			"missing",
		},
		{
			with(
				`"response_format":{"type":"json_schema","json_schema":{"name":"a b","schema":{}}}`,
			),
			"invalid_value",
			"response_format.json_schema.name",
			"1 to 64",
		},
		{
			with(`"response_format":{"type":"json_schema","json_schema":{"name":"a"}}`),
			"missing_required_parameter",
			"response_format.json_schema.schema",
			"missing",
		},
		{
			with(
				`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"properties":{"x":{"not":"a"}}}}}`,
			),
			"invalid_json_schema",
			"response_format.json_schema.schema",
			`keyword "not" at /properties/x/not`,
		},
		{with(`"restore":true`), "invalid_type", "restore", "got true, want an object"},
		{
			with(`"restore":{"a\nb":64}`),
			"unknown_parameter",
			`restore."a\nb"`,
			"unknown field",
		},
		{
			with(`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{` +
				`"properties":{"a\nb":{"not":"x"}}}}}`),
			"invalid_json_schema",
			"response_format.json_schema.schema",
			`keyword "not" at "/properties/a\nb/not"`,
		},
		{
			with(`"restore":{"nvis":64}`),
			"unknown_parameter",
			"restore.nvis",
			"the nearest is n_vis; there are base, before, n_vis, keep_ratio, ",
		},
		{with(`"restore":{"report":"all"}`), "invalid_value", "restore.report", "counts or groups"},
		{with(`"restore":{"cache":1}`), "invalid_type", "restore.cache", "true or false"},
		{with(`"restore":{"cache_salt":""}`), "invalid_value", "restore.cache_salt", "1 to 256"},
		{
			with(`"frequency_penalty":2.5`),
			"decimal_above_max_value",
			"frequency_penalty",
			"got 2.5, want at most 2",
		},
		{with(`"presence_penalty":"x"`), "invalid_type", "presence_penalty", "a number"},
		{with(`"presence_penalty":-3`), "decimal_below_min_value", "presence_penalty", "got -3, want at least -2"},
		{with(`"logit_bias":{"5":101}`), "decimal_above_max_value", "logit_bias.5", "got 101, want at most 100"},
		{with(`"logit_bias":{"x":1}`), "invalid_value", "logit_bias.x", "got no token id"},
		{with(`"logit_bias":[[5]]`), "invalid_value", "logit_bias[0]", "got 1 values, want a token id"},
		{with(`"logit_bias":[[-1,2]]`), "integer_below_min_value", "logit_bias[0][0]", "got -1"},
		{with(`"logit_bias":[[5,true]]`), "invalid_type", "logit_bias[0][1]", "got true, want a number"},
		{with(`"logit_bias":"5"`), "invalid_type", "logit_bias", "want an object of token ids"},
		{with(`"repeat_penalty":0`), "decimal_below_min_value", "repeat_penalty", "got 0, want at least 0.1"},
		{with(`"repeat_penalty":2,"repetition_penalty":3`), "invalid_value", "repetition_penalty", "the same as repeat_penalty"},
		{with(`"repeat_last_n":-2`), "integer_below_min_value", "repeat_last_n", "got -2, want at least -1"},
		{
			with(`"tools":[{"type":"function"}]`),
			"unsupported_parameter",
			"tools",
			`"builtin" does not support tools`,
		},
		{with(`"functions":[{}]`), "unsupported_parameter", "functions", "does not support tools"},
		{with(`"tool_choice":"required"`), "unsupported_parameter", "tool_choice", `"auto" or nothing`},
		{
			with(`"function_call":{"name":"f"}`), "unsupported_parameter", "function_call",
			`"none", "auto" or nothing`,
		},
		{with(`"reasoning_effort":"high"`), "unsupported_parameter", "reasoning_effort", "none"},
		{with(`"modalities":["text","audio"]`), "unsupported_parameter", "modalities", "text"},
		{with(`"best_of":2`), "unsupported_parameter", "best_of", "want n, which is 1"},
		{with(`"repetition_penalty":11`), "decimal_above_max_value", "repetition_penalty", "want at most 10"},
		{with(`"use_beam_search":true`), "unsupported_parameter", "use_beam_search", "false"},
		{with(`"grammar":"root ::= x"`), "unsupported_parameter", "grammar", "not supported"},
		{with(`"guided_choice":["a"]`), "unsupported_parameter", "guided_choice", "not supported"},
		{with(`"prompt_logprobs":0`), "unsupported_parameter", "prompt_logprobs", "not supported"},
		{with(`"echo":true`), "unsupported_parameter", "echo", "not supported"},
	})
}

// Ensure that fields that change nothing are accepted, and that other unknown fields are listed as
// ignored.
func TestChatTaken(t *testing.T) {
	r, err := parseChat(
		[]byte(
			`{"model":null,"messages":[{"role":"developer","content":"be brief"},{"role":"system","content":[{"type":"text","text":"in English"}]},
		{"role":"user","content":[{"type":"image_url","image_url":"AAAA"},{"type":"text","text":"what?","x":1},{"type":"image_url","image_url":{"url":"BBBB","detail":"auto","restore":{"n_vis":3},"y":null}}]},
		{"role":"assistant","content":"a cat","refusal":null,"name":"me"},{"role":"user","content":"sure?"}],
		"max_tokens":7,"max_completion_tokens":7,"temperature":0.5,"top_p":1,"top_k":99999999999999999999,"min_p":0,"seed":-5,"stop":["a","b"],"n":1,
		"logprobs":true,"top_logprobs":2,"response_format":{"type":"json_object"},"ignore_eos":true,"frequency_penalty":0.0,"presence_penalty":0,"logit_bias":{},
		"tools":[],"functions":[],"tool_choice":"auto","function_call":"none","reasoning_effort":"none","modalities":[ "text" ],"verbosity":"medium","best_of":1,"repetition_penalty":1.0,
		"min_tokens":0,"use_beam_search":false,"audio":null,"grammar":"","prediction":[],"echo":false,"user":"me","metadata":{"a":1},"store":true,"service_tier":"flex",
		"foo":{"bar":1},"restore":{"base":"holov","n_vis":5,"report":"groups","cache":false,"cache_salt":"s"},"stream":false,"gone":null}`,
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Messages) != 4 || r.Messages[0].Role != restore.System ||
		r.Messages[0].Parts[0].Text != "be brief\n\nin English" {
		t.Errorf("messages: got %+v", r.Messages)
	}
	parts := r.Messages[1].Parts
	if len(parts) != 3 || len(r.Shown) != 2 || string(r.Shown[0].URL) != "AAAA" ||
		parts[1].Text != "what?" || r.Shown[0].Path != "messages[2].content[0].image_url" ||
		r.Shown[1].Path != "messages[2].content[2].image_url.url" ||
		encode(t, parts[0].Reduction) != `{"base":"holov","n_vis":5}` ||
		encode(t, parts[2].Reduction) != `{"base":"holov","n_vis":3}` {
		t.Errorf("parts: got %+v, %s, %s", parts, encode(t, parts[0].Reduction),
			encode(t, parts[2].Reduction))
	}
	if r.MaxTokens != 7 || r.Sampling.Temperature != 0.5 || r.Sampling.TopK != 1<<31-1 ||
		r.Sampling.Seed != -5 || len(r.Stop) != 2 || !r.Logprobs || r.Top != 2 ||
		!r.Format.Object || !r.IgnoreEnd ||
		!r.Groups ||
		!r.NoCache ||
		r.Salt != "" {
		t.Errorf("got %+v", r)
	}
	if got := strings.Join(r.Ignored, " "); got != "messages[2].content[1].x foo" {
		t.Errorf("ignored: got %q", got)
	}
}

// Ensure that an empty list of stop strings stops at none. lm-eval sends one for tasks without any,
// such as IFEval.
func TestNoStops(t *testing.T) {
	r, err := parseChat([]byte(
		`{"messages":[{"role":"user","content":"a"}],"stop":[],"top_logprobs":0}`))
	if err != nil || len(r.Stop) > 0 || len(r.Ignored) > 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Ensure that a schema beside json_object is obeyed: llama-server's documentation has this form,
// and instructor 1.6.4 sends it in its mode JSON_SCHEMA.
func TestObjectSchema(t *testing.T) {
	schema := `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
	format := func(schema string) string {
		return `{"messages":[{"role":"user","content":"a"}],"response_format":` +
			`{"type":"json_object","schema":` + schema + `}}`
	}
	r, err := parseChat([]byte(format(schema)))
	if err != nil || string(r.Format.Schema) != schema || r.Format.Object ||
		r.FormatPath != "response_format.schema" || len(r.Ignored) > 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	r, err = parseChat([]byte(format("null")))
	if err != nil || r.Format.Schema != nil || !r.Format.Object {
		t.Errorf("without a schema: got %+v, %v", r, err)
	}
	refusals(t, parseChat, [][4]string{
		{format(`{"not":{}}`), "invalid_json_schema", "response_format.schema", "not"},
	})
}

// Ensure that prompts of every valid form are accepted, and no others.
func TestCompletion(t *testing.T) {
	for body, want := range map[string]restore.Request{
		`{"prompt":"a"}`: {Prompt: "a", Raw: true}, `{"prompt":["a"]}`: {Prompt: "a", Raw: true}, `{"prompt":[1,639]}`: {Tokens: []int32{1, 639}}, `{"prompt":[[5]]}`: {Tokens: []int32{5}},
	} {
		r, err := parseCompletion([]byte(body))
		if err != nil || r.Prompt != want.Prompt || r.Raw != want.Raw ||
			fmt.Sprint(r.Tokens) != fmt.Sprint(want.Tokens) ||
			r.MaxTokens != 16 {
			t.Errorf("%s: got %+v, %v", body, r, err)
		}
	}
	r, err := parseCompletion([]byte(
		`{"prompt":"a","max_tokens":3,"logprobs":0,"echo":false,"best_of":1,"suffix":""}`))
	if err != nil || r.MaxTokens != 3 || !r.Logprobs || r.Top != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
	twice := []restore.Token{{Top: []restore.Token{{Logprob: 0}, {Logprob: -9}}}}
	if l := newCompletionLogprobs(twice, new(int)); l.Top[0][""] != 0 {
		t.Errorf("two tokens without text: got %v, want the likelier one", l.Top)
	}
	refusals(t, parseCompletion, [][4]string{
		{`{}`, "missing_required_parameter", "prompt", "missing"},
		{`{"prompt":5}`, "invalid_type", "prompt", "got 5"},
		{`{"prompt":[]}`, "invalid_value", "prompt", "empty list"},
		{`{"prompt":["a","b"]}`, "unsupported_value", "prompt", "got 2 prompts, want one"},
		{`{"prompt":[[1],[2]]}`, "unsupported_value", "prompt", "got 2 prompts"},
		{`{"prompt":[1,"a"]}`, "invalid_type", "prompt[1]", "integer"},
		{`{"prompt":[640]}`, "integer_above_max_value", "prompt[0]", "got 640, want at most 639"},
		{`{"prompt":[99999999999999999999]}`, "integer_above_max_value", "prompt[0]", "at most 639"},
		{`{"prompt":[-1]}`, "integer_below_min_value", "prompt[0]", "got -1"},
		{`{"prompt":[[true]]}`, "invalid_type", "prompt[0][0]", "integer"},
		{`{"prompt":"a","logprobs":6}`, "integer_above_max_value", "logprobs", "at most 5"},
		{`{"prompt":"a","logprobs":true}`, "invalid_type", "logprobs", "integer"},
		{`{"prompt":"a","echo":true}`, "unsupported_parameter", "echo", "not supported"},
		{`{"prompt":"a","best_of":2}`, "unsupported_parameter", "best_of", "want n, which is 1"},
		{`{"prompt":"a","n":99999999999999999999}`, "integer_above_max_value", "n", "at most 16"},
		{`{"prompt":"a","suffix":"b"}`, "unsupported_parameter", "suffix", "not supported"},
		{`{"prompt":"a","max_tokens":0}`, "integer_below_min_value", "max_tokens", "at least 1"},
	})
}

// Ensure that items of every valid form are accepted, and no others.
func TestResponse(t *testing.T) {
	r, err := parsedResponse(
		[]byte(`{"instructions":"be brief","input":[{"role":"system","content":"more"},
		{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"AAAA","detail":"auto","restore":{"base":"holov","n_vis":3}}]},
		{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]},{"role":"user","content":"c"}],
		"max_output_tokens":5,"include":["message.output_text.logprobs"],"top_logprobs":1,"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"null"},"strict":true}},
		"reasoning":{"effort":"none"},"background":false,"truncation":"disabled","tools":[],"stop":"x"}`),
	)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Messages) != 4 || r.Messages[0].Parts[0].Text != "be brief\n\nmore" ||
		r.Shown[0].Path != "input[1].content[1].image_url" ||
		r.MaxTokens != 5 || !r.Logprobs ||
		r.Top != 1 ||
		string(r.Format.Schema) != `{"type":"null"}` ||
		r.FormatPath != "text.format.schema" ||
		len(r.Ignored) != 0 {
		t.Errorf("got %+v", r)
	}
	refusals(t, parsedResponse, [][4]string{
		{`{}`, "missing_required_parameter", "input", "missing"},
		{`{"input":5}`, "invalid_type", "input", "got 5"},
		{`{"input":""}`, "invalid_value", "input", "empty string"},
		{`{"input":[]}`, "invalid_value", "input", "got 0 messages"},
		{
			`{"input":[{"type":"item_reference","id":"x"}]}`,
			"unsupported_value",
			"input[0].type",
			"want message",
		},
		{
			`{"input":[{"role":"user","content":"a"},{"type":"item_reference","id":"msg_1"}]}`,
			"unsupported_value",
			"input[1].type",
			"set store: false in the client",
		},
		{
			`{"input":[{"type":"function_call_output"}]}`,
			"unsupported_value",
			"input[0].type",
			"want message",
		},
		{
			`{"input":[{"role":"user","content":[{"type":"input_file"}]}]}`,
			"unsupported_content_part",
			"input[0].content[0].type",
			"input_text or input_image",
		},
		{
			`{"input":[{"role":"user","content":[{"type":"output_text","text":"a"}]}]}`,
			"unsupported_content_part",
			"input[0].content[0].type",
			"input_text",
		},
		{
			`{"input":[{"role":"user","content":[{"type":"input_image","file_id":"x"}]}]}`,
			"unsupported_parameter",
			"input[0].content[0].file_id",
			"image_url instead",
		},
		{
			`{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`,
			"missing_required_parameter",
			"input[0].content[0].image_url",
			"missing",
		},
		{
			`{"input":[{"role":"assistant","content":"a"}]}`,
			"unsupported_value",
			"input[0].role",
			`got "assistant" in the last message, want a user's`,
		},
		{
			`{"input":"a","previous_response_id":"resp_1"}`,
			"unsupported_parameter",
			"previous_response_id",
			"not supported",
		},
		{
			`{"input":"a","previous_response_id":"resp_1"}`,
			"unsupported_parameter",
			"previous_response_id",
			"send the earlier messages again",
		},
		{
			`{"input":"a","conversation":"c"}`,
			"unsupported_parameter",
			"conversation",
			"not supported",
		},
		{`{"input":"a","prompt":{"id":"p"}}`, "unsupported_parameter", "prompt", "not supported"},
		{`{"input":"a","background":true}`, "unsupported_parameter", "background", "not supported"},
		{
			`{"input":"a","tools":[{"type":"web_search"}]}`,
			"unsupported_parameter",
			"tools",
			"does not support tools",
		},
		{
			`{"input":"a","max_tool_calls":1}`,
			"unsupported_parameter",
			"max_tool_calls",
			"not supported",
		},
		{
			`{"input":"a","reasoning":{"effort":"low"}}`,
			"unsupported_parameter",
			"reasoning.effort",
			`want "none" or nothing`,
		},
		{`{"input":"a","truncation":"auto"}`, "unsupported_parameter", "truncation", "disabled"},
		{
			`{"input":"a","context_management":[{}]}`,
			"unsupported_parameter",
			"context_management",
			"not supported",
		},
		{
			`{"input":"a","include":["file_search_call.results"]}`,
			"unsupported_value",
			"include[0]",
			"logprobs",
		},
		{`{"input":"a","top_logprobs":3}`, "invalid_value", "top_logprobs", "include"},
		{
			`{"input":"a","max_output_tokens":0}`,
			"integer_below_min_value",
			"max_output_tokens",
			"at least 1",
		},
		{
			`{"input":"a","text":{"format":{"type":"json_schema","name":"n","schema":{"format":"iri"}}}}`,
			"invalid_json_schema",
			"text.format.schema",
			"/format",
		},
		{
			`{"input":"a","text":{"format":{"type":"json_schema","schema":{}}}}`,
			"missing_required_parameter",
			"text.format.name",
			"missing",
		},
	})
}

var answer = &restore.Answer{
	Text: "hi é", Finish: restore.FinishStop,
	Pictures: []restore.PictureReport{
		{Width: 336, Height: 336, Tokens: 576, Kept: 32,
			Merged: 32, Cache: restore.CacheNone, Method: "RESTORE",
			Parameters: json.RawMessage(`{"base":"holov"}`)}},
	Usage: restore.Usage{Prompt: 130, Image: 64, Cached: 30, Generated: 3},
	Timings: restore.Timings{
		Prefill: 10 * time.Millisecond, Decode: 6 * time.Millisecond,
		FirstToken: 20 * time.Millisecond,
	},
	Logprobs: []restore.Token{
		{
			Bytes:   []byte("hi"),
			Logprob: -0.5,
			Top:     []restore.Token{{Bytes: []byte("hi"), Logprob: -0.5}},
		},
		{Bytes: []byte(" \xc3"), Logprob: -1},
		{Bytes: []byte("\xa9"), Logprob: 0},
	},
}

func encode(t *testing.T, v any) string {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func newCall() *api.Call { return &api.Call{Request: new(restore.Request)} }

// Ensure that replies have exactly the fields of the contract, in its order.
func TestReplies(t *testing.T) {
	scores, counted, grouped := newCall(), newCall(), newCall()
	scores.Logprobs, counted.IncludeUsage = true, true
	grouped.Groups, grouped.Ignored = true, []string{"foo"}
	m := &meta{"chatcmpl-1", 1760000000, "builtin", "fp_1a2b3c4d5e6f"}
	const timings = `"timings":{"queue_ms":0,"prepare_ms":0,"encode_ms":0,"select_ms":0,"merge_ms":0,"prompt_n":100,"cache_n":30,"prompt_ms":10,"prompt_per_token_ms":0.1,"prompt_per_second":10000,"ttft_ms":20,"predicted_n":3,"predicted_ms":6,"predicted_per_token_ms":2,"predicted_per_second":500}`
	const extension = `"restore":{"images":[{"index":0,"width":336,"height":336,"tokens":576,"kept":32,"merged":32,"cache":"none","method":"RESTORE","parameters":{"base":"holov"}}],"visual_tokens":{"before":576,"kept":32,"merged":32}}`
	const usage = `"usage":{"prompt_tokens":130,"completion_tokens":3,"total_tokens":133,"prompt_tokens_details":{"cached_tokens":30,"image_tokens":64,"text_tokens":66},"completion_tokens_details":{"reasoning_tokens":0}}`
	const begin = `"id":"chatcmpl-1","object":"%s","created":1760000000,"model":"builtin","system_fingerprint":"fp_1a2b3c4d5e6f",`
	want := fmt.Sprintf(`{`+begin, "chat.completion") +
		`"choices":[{"index":0,"message":{"role":"assistant","content":"hi é","refusal":null},"logprobs":null,"finish_reason":"stop"}],` + usage + "," + timings + "," + extension + "}"
	if got := encode(t, chatReply(m, newCall(), answer)); got != want {
		t.Errorf("chat:\n got %s\nwant %s", got, want)
	}
	logprobs := `"logprobs":{"content":[{"token":"hi","logprob":-0.5,"bytes":[104,105],"top_logprobs":[{"token":"hi","logprob":-0.5,"bytes":[104,105]}]},` +
		`{"token":" �","logprob":-1,"bytes":[32,195],"top_logprobs":[]},{"token":"�","logprob":0,"bytes":[169],"top_logprobs":[]}],"refusal":null}`
	if got := encode(t, chatReply(m, scores, answer)); !strings.Contains(got,
		logprobs) {
		t.Errorf("chat: got %s, want %s", got, logprobs)
	}
	logprobs = `"logprobs":{"tokens":["hi"," �","�"],"token_logprobs":[-0.5,-1,0],"top_logprobs":[{"hi":-0.5},{},{}],"text_offset":[0,2,3]}`
	if got := encode(t, completionReply(m, scores, answer)); !strings.Contains(got,
		logprobs) {
		t.Errorf("completion: got %s, want %s", got, logprobs)
	}
	groups := *answer
	groups.Pictures = []restore.PictureReport{
		{
			Tokens: 4,
			Kept:   1,
			Merged: 1,
			Rows:   2,
			Cols:   2,
			Cache:  restore.CachePrefix,
			Groups: []restore.Group{
				{Members: []int{1}, Position: 1, Kept: true},
				{Members: []int{0, 2, 3}, Position: 2},
			},
		},
	}
	report := `"parameters":null,"grid":{"rows":2,"cols":2},"groups":[{"members":[1],"position":1,"kept":true},{"members":[0,2,3],"position":2,"kept":false}]}`
	if got := encode(t, chatReply(m, grouped, &groups)); !strings.Contains(got, report) ||
		!strings.Contains(got, `"ignored_fields":["foo"]`) {
		t.Errorf("groups: got %s, want %s", got, report)
	}

	stream := func(s api.Stream) string {
		var b strings.Builder
		messages := append(s.Begin(), s.Piece(&restore.Piece{Text: "hi é"})...)
		for _, m := range append(messages, s.End(answer)...) {
			if m.Event != "" {
				b.WriteString(m.Event + " ")
			}
			b.WriteString(sent(t, m) + "\n")
		}
		return b.String()
	}
	chunk := fmt.Sprintf("{"+begin, "chat.completion.chunk")
	want = chunk + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}` + "\n" +
		chunk + `"choices":[{"index":0,"delta":{"content":"hi é"},"logprobs":null,"finish_reason":null}]}` + "\n" +
		chunk + `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],` + timings + "," + extension + "}\n[DONE]\n"
	if got := stream(newChatChunks(m, newCall())); got != want {
		t.Errorf("stream:\n got %s\nwant %s", got, want)
	}
	want = chunk + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n" +
		chunk + `"choices":[{"index":0,"delta":{"content":"hi é"},"logprobs":null,"finish_reason":null}],"usage":null}` + "\n" +
		chunk + `"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}` + "\n" +
		chunk + `"choices":[],` + usage + "," + timings + "," + extension + "}\n[DONE]\n"
	if got := stream(newChatChunks(m, counted)); got != want {
		t.Errorf("stream with usage:\n got %s\nwant %s", got, want)
	}
	text := fmt.Sprintf("{"+begin, "text_completion")
	want = text + `"choices":[{"index":0,"text":"hi é","logprobs":null,"finish_reason":null}]}` + "\n" +
		text + `"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],` + timings + "," + extension + "}\n[DONE]\n"
	if got := stream(newCompletionChunks(m, newCall())); got != want {
		t.Errorf("completion's stream:\n got %s\nwant %s", got, want)
	}
	scored := &restore.Piece{
		Text: "\"", Tokens: []restore.Token{{Bytes: []byte(`"`), Logprob: -1}},
	}
	for _, c := range []struct {
		stream api.Stream
		want   string
	}{
		{newChatChunks(m, scores), chunk + `"choices":[{"index":0,"delta":{"content":"\""},` +
			`"logprobs":{"content":[{"token":"\"","logprob":-1,"bytes":[34],"top_logprobs":[]}],` +
			`"refusal":null},"finish_reason":null}]}`},
		{newChatChunks(m, newCall()), chunk + `"choices":[{"index":0,"delta":{"content":"\""},` +
			`"logprobs":null,"finish_reason":null}]}`},
		{newCompletionChunks(m, scores), text + `"choices":[{"index":0,"text":"\"","logprobs":` +
			`{"tokens":["\""],"token_logprobs":[-1],"top_logprobs":[{}],"text_offset":[0]},` +
			`"finish_reason":null}]}`},
	} {
		if got := sent(t, c.stream.Piece(scored)[0]); got != c.want {
			t.Errorf("piece: got %s\nwant %s", got, c.want)
		}
	}
}

// Ensure that text_offset counts the characters before the one that a token begins in, streamed or
// not, also where tokens split characters or pieces split tokens.
func TestTextOffset(t *testing.T) {
	scores := newCall()
	scores.Logprobs, scores.N = true, 2
	pieces := []restore.Piece{
		{Text: "€x", Tokens: tokens("\xe2", "\x82", "\xac")}, {Text: "日", Tokens: tokens("x日")},
		{Text: "y"}, {Text: "😀", Tokens: tokens("y\xf0\x9f", "\x98\x80")}, {Tokens: tokens("")},
		{Text: "z", Tokens: tokens("z")},
	}
	want := []int{0, 0, 0, 1, 3, 4, 5, 5}
	a := new(restore.Answer)
	stream := newCompletionChunks(new(meta), scores).(*completionChunks)
	var got [2][]int
	for i := range pieces {
		a.Logprobs = append(a.Logprobs, pieces[i].Tokens...)
		for scores.Choice = range got {
			r := stream.Piece(&pieces[i])[0].Data.(*reply[completionChoice])
			got[scores.Choice] = append(got[scores.Choice], r.Choices[0].Logprobs.Offsets...)
		}
	}
	whole := completionReply(new(meta), scores, a).(*reply[completionChoice])
	for _, got := range [][]int{whole.Choices[0].Logprobs.Offsets, got[0], got[1]} {
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

// tokens are tokens of these bytes.
func tokens(bytes ...string) []restore.Token {
	var out []restore.Token
	for _, b := range bytes {
		out = append(out, restore.Token{Bytes: []byte(b)})
	}
	return out
}

// sent is what a message sends.
func sent(t *testing.T, m api.Message) string {
	t.Helper()
	if m.Data == nil {
		return m.Text
	}
	return encode(t, m.Data)
}

// Ensure that a response repeats the choice of tools.
func TestToolChoice(t *testing.T) {
	for body, want := range map[string]string{
		`{"input":"a"}`:                      `"tool_choice":"auto"`,
		`{"input":"a","tool_choice":"auto"}`: `"tool_choice":"auto"`,
		`{"input":"a","tool_choice":"none"}`: `"tool_choice":"none"`,
		`{"input":"a","tool_choice":null}`:   `"tool_choice":"auto"`,
	} {
		q, err := parseResponse([]byte(body), env)
		if err != nil {
			t.Fatal(err)
		}
		got := encode(t, responseReply(new(responseMeta), q, answer))
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
	}
}

// Ensure that the events of a response come in their order, numbered, and that the last
// one is the whole response.
func TestResponseEvents(t *testing.T) {
	q, err := parseResponse([]byte(`{"input":"a","metadata":{"k":"v"},"max_output_tokens":9}`), env)
	if err != nil {
		t.Fatal(err)
	}
	m := &responseMeta{"resp_1", "msg_1", 5, "builtin"}
	s := newResponseEvents(m, q)
	messages := append(append(s.Begin(), s.Piece(&restore.Piece{Text: "hi"})...),
		s.Piece(&restore.Piece{Text: " é"})...)
	cut := *answer
	cut.Finish = restore.FinishLength
	messages = append(messages, s.End(&cut)...)
	var kinds []string
	for i, m := range messages[:len(messages)-1] {
		kinds = append(kinds, strings.TrimPrefix(m.Event, "response."))
		if got, want := sent(t, m), fmt.Sprintf(`{"type":%q,"sequence_number":%d,`, m.Event,
			i); !strings.HasPrefix(got, want) {
			t.Errorf("event %d: got %s, want %s", i, got, want)
		}
	}
	if got := strings.Join(kinds, " "); got != "created in_progress output_item.added "+
		"content_part.added output_text.delta output_text.delta output_text.done "+
		"content_part.done output_item.done incomplete" {
		t.Errorf("events: got %s", got)
	}
	if messages[len(messages)-1] != done {
		t.Error("the last event is not [DONE]")
	}
	want := `{"type":"response.incomplete","sequence_number":9,"response":{"id":"resp_1","object":"response","created_at":5,"completed_at":null,"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"model":"builtin",` +
		`"previous_response_id":null,"instructions":null,"output":[{"type":"message","id":"msg_1","status":"incomplete","role":"assistant","content":[{"type":"output_text","text":"hi é","annotations":[],"logprobs":[`
	if got := encode(t, messages[len(messages)-2].Data); !strings.HasPrefix(got, want) {
		t.Errorf("got %s\nwant %s", got, want)
	}
	ended := regexp.MustCompile(`"completed_at":[1-9]\d*,"status":"completed"`)
	if got := encode(t, responseReply(m, q, answer)); !ended.MatchString(got) {
		t.Errorf("got %s, want %s", got, ended)
	}
	for i, want := range []string{`"status":"in_progress"`, `"completed_at":null`, `"content":[]`, `"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}`,
		`"item_id":"msg_1","output_index":0,"content_index":0,"delta":"hi","logprobs":[]`} {
		if got := sent(t, messages[i]); !strings.Contains(got, want) {
			t.Errorf("event %d: got %s, want %s", i, got, want)
		}
	}
	failed := s.Fail(wire.New(500, "internal_error", "", "no"))
	if got := encode(t, failed[0].Data); failed[1] != done ||
		!strings.Contains(got, `"status":"failed"`) ||
		!strings.Contains(got, `"error":{"code":"internal_error","message":"no"}`) {
		t.Errorf("failure: got %s", got)
	}
}

// Ensure that what a reply or the backend keeps of a body is no part of it: the body's memory is
// free when its pictures are loaded.
func TestNothingKeepsBody(t *testing.T) {
	body := []byte(`{"input":"hello","instructions":"hello","metadata":{"a":"hello"},` +
		`"user":"hello","prompt_cache_key":"hello","restore":{"base":"holov","n_vis":9},"stop":["hello"],` +
		`"text":{"format":{"type":"json_schema","name":"n","schema":{"enum":["hello"]}}}}`)
	q, err := parseResponse(body, env)
	if err != nil {
		t.Fatal(err)
	}
	show := func() string {
		return encode(t, q.Request) + encode(t, q.Messages) +
			encode(t, responseReply(&responseMeta{}, q, &restore.Answer{}))
	}
	before := show()
	if n := strings.Count(before, "hello"); n < 7 {
		t.Fatalf("only %d values of the body are kept: %s", n, before)
	}
	for i := range body {
		body[i] = '#'
	}
	if after := show(); after != before {
		t.Errorf("a part of the body is kept:\n%s\n%s", before, after)
	}
}

// bodyBytes limits what parsing a body may allocate for each of its bytes; the smallest values are
// read into objects, messages and parts.
const bodyBytes = 300

// FuzzBodies parses any body on every route.
func FuzzBodies(f *testing.F) {
	for _, s := range []string{
		"{" + hello + `,"restore":{"n_vis":3},"stop":["a"],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}}}`,
		`{"prompt":[[1,2]],"logprobs":1}`, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"AAAA","restore":{}}]}]}`,
	} {
		f.Add([]byte(s))
	}
	for _, s := range []string{
		`{"messages":[` + strings.Repeat(`{"role":"user","content":[{}]},`, 1023) + `{}]}`,
		`{"messages":[{"role":"user","content":[` + strings.Repeat(`{"a":0,"b":0},`, 999) + `0]}]}`,
		`{"messages":[` + strings.Repeat("0,", 5000) + `0],"tools":[` + strings.Repeat("[],", 5000) + `0]}`,
		`{` + strings.Repeat(`"a":0,`, 1025) + `"messages":0}`, `{"restore":{"a\nb":1}}`,
		`{"messages":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`, "\uFEFF{}",
		`{"input":"a","metadata":{"a":"` + strings.Repeat("b", 70000) + `"}}`,
		`{"prompt":"a","response_format":{"type":"json_schema","json_schema":{"name":"n",` +
			`"schema":{"properties":{"a\nb":{"pattern":1}}}}}}`,
	} {
		f.Add([]byte(s))
	}
	parsers := []func([]byte) (*api.Call, error){parseChat, parseCompletion, parsedResponse}
	for _, parse := range parsers { // what is made once for all bodies is not counted
		_, _ = parse([]byte("{" + hello + `,"restore":{"n_vis":3},"response_format":{` +
			`"type":"json_schema","json_schema":{"name":"n","schema":{}}}}`))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range parsers {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r, err := parse(body)
			runtime.ReadMemStats(&after)
			all := after.TotalAlloc - before.TotalAlloc
			if all > uint64(bodyBytes*len(body)+1<<18) {
				t.Fatalf("%.200q: allocated %d bytes for %d", body, all, len(body))
			}
			var e *wire.Error
			if err != nil &&
				(!errors.As(err, &e) || e.Status != 400 || e.Code == "" ||
					strings.ContainsAny(e.Message, "\n\r")) {
				t.Fatalf("%q: %v", body, err)
			}
			if err == nil && r.Prompt == "" && r.Tokens == nil && !r.Raw && len(r.Messages) == 0 {
				t.Fatalf("%q: taken without a question", body)
			}
		}
	})
}
