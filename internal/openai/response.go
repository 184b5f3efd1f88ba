package openai

import (
	"bytes"
	"cmp"
	"encoding/json"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// responseCall is a body of /v1/responses.
type responseCall struct {
	*api.Call
	// Fields that the reply repeats, as written; nil: absent. They keep no part of the body.
	instructions, metadata, user, safety, cacheKey, format json.RawMessage

	toolChoice    string
	parallelTools bool
	limit         *int
}

// ParseResponse reads the body of /v1/responses. The error is a *[wire.Error].
func ParseResponse(body []byte, f *api.Front) (*api.Call, error) {
	q, err := parseResponse(body, f)
	if err != nil {
		return nil, err
	}
	m := &responseMeta{ID: api.NewID("resp_"), MessageID: api.NewID("msg_"), Created: api.Now(),
		Model: f.About.ID}
	q.Whole = func(a *restore.Answer) any { return responseReply(m, q, a) }
	q.Events = newResponseEvents(m, q)
	return q.Call, nil
}

func parseResponse(body []byte, f *api.Front) (*responseCall, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	f = f.Named(o.String("model"))
	r := api.NewCall(f, "input")
	q := &responseCall{Call: r, parallelTools: true}
	q.refuse(o)
	common(o, r, f)
	if api.Limit(o, r, "max_output_tokens"); r.MaxTokens > 0 {
		most := r.MaxTokens
		q.limit = &most
	}
	q.top(o)
	if t := o.Object("text"); t != nil {
		t.Only("verbosity", `"medium"`)
		q.format = echoed(t, "format")
		format(t.Object("format"), r, true)
		api.Note(r, t)
	}
	q.echo(o)
	if o.Require("input", "a string or a list of items") {
		q.input(o, f)
	}
	return q, r.End(o, f)
}

// notStored says what a client can do that refers to an earlier response, as Vercel's AI SDK does
// unless its option store is false.
const notStored = ", for responses are not stored: set store: false in the client, or send the " +
	"earlier messages again"

// refuse refuses fields that need stored responses, tools, or thinking.
func (q *responseCall) refuse(o *wire.Object) {
	o.Refuse(notStored, "previous_response_id", "conversation")
	o.Refuse("", "prompt", "max_tool_calls", "context_management", "background")
	o.Only("n", "1")
	o.Only("best_of", "1")
	o.Only("truncation", `"disabled"`)
	if x := o.Object("reasoning"); x != nil {
		x.Only("effort", `"none"`)
		api.Note(q.Call, x)
	}
}

// top reads the log probabilities that "include" requests.
func (q *responseCall) top(o *wire.Object) {
	const member = "message.output_text.logprobs"
	for item := range o.List("include").Items() {
		if name := item.Text(); name != member {
			item.Fail("unsupported_value", "got %s, want %s", wire.Quote(name), member)
		}
		q.Logprobs = true
	}
	n, _ := o.Int("top_logprobs", 0, api.MaxTop)
	if q.Top = int(n); n > 0 && !q.Logprobs {
		o.Fail("invalid_value", "top_logprobs", "got %d, want include: [%q] too", n, member)
	}
}

// echo stores the fields that the reply repeats.
func (q *responseCall) echo(o *wire.Object) {
	if o.Has("instructions") {
		o.String("instructions")
	}
	q.instructions = bytes.Clone(o.Raw("instructions"))
	if o.Has("metadata") {
		o.Object("metadata")
	}
	q.metadata = echoed(o, "metadata")
	q.user, q.safety = echoed(o, "user"), echoed(o, "safety_identifier")
	q.cacheKey = echoed(o, "prompt_cache_key")
	q.toolChoice = cmp.Or(o.String("tool_choice"), "auto")
	if o.Has("parallel_tool_calls") {
		q.parallelTools = o.Bool("parallel_tool_calls")
	}
}

// echoed returns a field that the reply repeats. It is not a part of the body, which would stay in
// memory until the answer is complete.
func echoed(o *wire.Object, name string) json.RawMessage {
	raw := o.Raw(name)
	if len(raw) > maxEcho {
		o.Fail("invalid_value", name, "got %d bytes, want at most %d", len(raw), maxEcho)
		return nil
	}
	return bytes.Clone(raw)
}

// input reads the dialogue.
func (q *responseCall) input(o *wire.Object, f *api.Front) {
	d := &api.Dialogue{Call: q.Call, Front: f}
	d.System(o.String("instructions"))
	switch raw := o.Raw("input"); wire.Kind(raw) {
	case "a string":
		text := o.String("input")
		if text == "" {
			o.Fail("invalid_value", "input", "got an empty string, want text")
		}
		d.Say(text)
	case "a list":
		if !d.Each(o, func(m *wire.Object) { item(d, m) }) {
			return
		}
	default:
		o.Fail("invalid_type", "input", "got %s, want a string or a list of items",
			wire.Describe(raw))
		return
	}
	d.End(o)
}

// item reads one item of the input: a message.
func item(d *api.Dialogue, m *wire.Object) {
	if kind := m.Raw("type"); kind != nil && m.String("type") != "message" {
		why := ""
		if m.String("type") == "item_reference" {
			why = notStored
		}
		m.Fail("unsupported_value", "type", "got %s, want message%s", wire.Describe(kind), why)
		return
	}
	m.Ignore("type", "id", "status")
	role := d.Role(m)
	if m.Require("content", "a string or a list of parts") {
		d.Add(role, d.Content(m, "content", role, responsePart), m)
	}
	api.Note(d.Call, m)
}

// responsePart reads a part of /v1/responses.
func responsePart(
	d *api.Dialogue, p *wire.Object, kind string, role restore.Role,
) (restore.Part, bool) {
	want := "input_text"
	switch role {
	case restore.User:
		want = "input_text or input_image"
	case restore.Assistant:
		want = "output_text"
	}
	switch {
	case kind == "input_text" && role != restore.Assistant,
		kind == "output_text" && role == restore.Assistant:
		p.Ignore("annotations", "logprobs")
		p.Require("text", "a string")
		return restore.Part{Text: p.String("text")}, true
	case kind == "input_image" && role == restore.User:
		if raw := p.Raw("file_id"); raw != nil {
			p.Fail("unsupported_parameter", "file_id",
				"got %s, want image_url instead: no files are kept", wire.Describe(raw))
		}
		if !p.Require("image_url", "a data, http, https or file URL") {
			return restore.Part{}, false
		}
		return d.Picture(p, "image_url", p), true
	}
	p.Fail("unsupported_content_part", "type", "got %s, want %s", wire.Quote(kind), want)
	return restore.Part{}, false
}
