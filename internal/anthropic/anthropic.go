// Package anthropic has the wire types of Anthropic's Messages API, and pure conversions between
// them, requests and answers. It was written from the types of Anthropic's SDK for Python.
package anthropic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"regexp"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// Protocol is Anthropic's API.
var Protocol = api.Protocol{
	Name: "Anthropic", Prefix: "/v1/messages", Stream: api.EventStream,
	Calls: map[string]api.Parse{"/v1/messages": Parse}, Docs: docs,
	Error: failure, ErrorSchema: errorSchema,
}

// CountPath is the path of the call that counts the tokens of a prompt.
const CountPath = "/v1/messages/count_tokens"

// Parse reads the body of /v1/messages. The error is a *[wire.Error].
func Parse(body []byte, f *api.Front) (*api.Call, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	f = f.Named(o.String("model"))
	q, tool := newCall(o, f)
	q.Stream = o.Bool("stream")
	if o.Require("max_tokens", "the most tokens of the answer") {
		api.Limit(o, q, "max_tokens")
	}
	api.Sampling(o, q)
	api.Stops(o, q, "stop_sequences")
	p := &reply{id: api.NewID("msg_"), model: f.About.ID, q: q, tool: tool}
	q.Events, q.Whole = p, func(a *restore.Answer) any { return p.whole(a) }
	return q, q.End(o, f)
}

// ParseCount reads the body of [CountPath]. The error is a *[wire.Error].
func ParseCount(body []byte, f *api.Front) (*api.Call, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	f = f.Named(o.String("model"))
	q, _ := newCall(o, f)
	q.Whole = func(a *restore.Answer) any { return Count{a.Usage.Prompt, q.Extend(a)} }
	return q, q.End(o, f)
}

// Count is the reply of [CountPath].
type Count struct {
	Input   int            `json:"input_tokens"`
	Restore *api.Extension `json:"restore"`
}

// newCall reads the fields that both calls have. tool is the name of the tool that the model must
// call, "" for none.
func newCall(o *wire.Object, f *api.Front) (q *api.Call, tool string) {
	q = api.NewCall(f, "messages")
	q.Model = o.String("model")
	refuse(o, f)
	tool = forced(o, q, f)
	if x := o.Object("output_config"); x != nil {
		if of := x.Object("format"); of != nil && of.Require("type", "json_schema") {
			if kind := of.String("type"); kind != "json_schema" {
				of.Fail("invalid_value", "type", "got %s, want json_schema", wire.Quote(kind))
			}
			if tool != "" {
				of.Fail("invalid_value", "", "got a format together with the forced tool %s, "+
					"want one of them", wire.Quote(tool))
			} else if of.Require("schema", "a JSON schema") {
				api.Schema(of, q, "schema")
			}
			api.Note(q, of)
		}
		api.Note(q, x)
	}
	api.ReadExtension(o, q)
	if o.Require("messages", "a list of messages") {
		dialogue(o, q, f)
	}
	return q, tool
}

// refuse refuses fields that would change the answer, except with values that change nothing, and
// accepts labels.
func refuse(o *wire.Object, f *api.Front) {
	f.Lacks(o, "tools", "mcp_servers")
	x := o.Object("thinking")
	if x != nil && x.Require("type", "disabled") && x.String("type") != "disabled" {
		f.Lacks(o, "thinking", "thinking")
	}
	o.Refuse("", "container", "context_management", "output_format")
	o.Ignore("metadata", "service_tier", "cache_control", "inference_geo", "speed", "diagnostics",
		"user_profile_id", "workspace_id")
}

// forced reads the tool that tool_choice forces the model to call, and returns its name: the answer
// is the tool's input, by its schema. That is how clients request structured output. Where the
// model would choose, tools are refused.
func forced(o *wire.Object, q *api.Call, f *api.Front) (name string) {
	const what = "tools, except one that tool_choice forces"
	kind := "auto"
	x := o.Object("tool_choice")
	if x != nil && x.Require("type", "auto, any, tool or none") {
		kind = x.String("type")
	}
	switch kind {
	case "auto", "none":
		f.Lacks(o, what, "tools")
		return ""
	case "any":
	case "tool":
		x.Require("name", "the name of a tool")
		name = x.String("name")
	default:
		x.Fail("invalid_value", "type", "got %s, want auto, any, tool or none", wire.Quote(kind))
		return ""
	}
	tools := o.List("tools")
	if kind == "any" && tools.Len() != 1 {
		f.Lacks(o, what, "tool_choice")
		return ""
	}
	for item := range tools.Items() {
		t := item.Object()
		if t.Require("name", toolNames); kind == "any" || t.String("name") == name {
			if name = t.String("name"); !toolName.MatchString(name) {
				t.Fail("invalid_value", "name", "got %s, want %s", wire.Quote(name), toolNames)
			}
			schemaOf(t, q, f)
			return name
		}
	}
	x.Fail("invalid_value", "name", "got %s, want the name of one of tools", wire.Quote(name))
	return ""
}

// toolName are the names of tools.
var toolName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

const toolNames = "1 to 128 letters, digits, - and _"

// schemaOf makes the schema of a tool's input the answer's.
func schemaOf(t *wire.Object, q *api.Call, f *api.Front) {
	if kind := t.String("type"); kind != "" && kind != "custom" {
		f.Lacks(t, "the tool "+wire.Quote(kind), "type")
	}
	t.Ignore("description", "strict", "cache_control", "eager_input_streaming", "allowed_callers",
		"defer_loading")
	if !t.Require("input_schema", "a JSON schema of an object") {
		return
	}
	s := t.Object("input_schema")
	if s.Require("type", "object") && s.String("type") != "object" {
		s.Fail("invalid_value", "type", "got %s, want object", wire.Quote(s.String("type")))
	}
	api.Schema(t, q, "input_schema")
	api.Note(q, t)
}

// dialogue reads the system prompt and the messages.
func dialogue(o *wire.Object, q *api.Call, f *api.Front) {
	d := &api.Dialogue{Call: q, Front: f, Join: true}
	if o.Has("system") {
		d.System(api.Joined(d.Content(o, "system", restore.System, part)))
	}
	if d.Each(o, func(m *wire.Object) {
		role := d.Role(m)
		if m.Require("content", "a string or a list of blocks") {
			d.Add(role, d.Content(m, "content", role, part), m)
		}
		api.Note(q, m)
	}) {
		d.End(o)
	}
}

// part reads a block of a message. The call of a tool is the text that the model wrote, and its
// result is the user's text.
func part(
	d *api.Dialogue, p *wire.Object, kind string, role restore.Role,
) (restore.Part, bool) {
	p.Ignore("cache_control")
	switch {
	case kind == "text":
		p.Ignore("citations")
		p.Require("text", "a string")
		return restore.Part{Text: p.String("text")}, true
	case kind == "image" && role == restore.User:
		return image(d, p)
	case kind == "tool_use" && role == restore.Assistant:
		p.Ignore("id", "name", "caller")
		p.Require("input", "an object")
		p.Object("input")
		var text bytes.Buffer
		_ = json.Compact(&text, p.Raw("input")) // which was parsed
		return restore.Part{Text: text.String()}, true
	case kind == "tool_result" && role == restore.User:
		p.Ignore("tool_use_id", "is_error")
		if !p.Has("content") {
			return restore.Part{}, true
		}
		return restore.Part{Text: api.Joined(d.Content(p, "content", restore.System, part))}, true
	}
	want := "text"
	if role == restore.User {
		want = "text or image"
	}
	p.Fail("unsupported_content_part", "type", "got %s, want %s", wire.Quote(kind), want)
	return restore.Part{}, false
}

// image reads a block {"source", "restore"}.
func image(d *api.Dialogue, p *wire.Object) (restore.Part, bool) {
	const want = "an object with type base64 or url"
	if !p.Require("source", want) {
		return restore.Part{}, false
	}
	s := p.Object("source")
	if !s.Require("type", "base64 or url") {
		return restore.Part{}, false
	}
	field := "data"
	switch kind := s.String("type"); kind {
	case "base64":
		s.Ignore("media_type") // the file tells
	case "url":
		field = "url"
	default:
		s.Fail("unsupported_content_part", "type", "got %s, want base64 or url", wire.Quote(kind))
		return restore.Part{}, false
	}
	if !s.Require(field, "a picture") {
		return restore.Part{}, false
	}
	part := d.Picture(s, field, p)
	api.Note(d.Call, s)
	return part, true
}

// block is a block of an answer: a text, or the call of a tool.
type block struct {
	Type string  `json:"type"`
	Text *string `json:"text,omitempty"`

	ID    string          `json:"id,omitempty"`
	Name  string          `json:"name,omitempty"`
	Input json.RawMessage `json:"input,omitempty"` // an object
}

// textDelta and inputDelta are parts of a block.
type textDelta struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type inputDelta struct {
	Type string `json:"type"`
	JSON string `json:"partial_json"`
}

// usage counts the tokens of a reply. Those of the prompt are Input, Written and Cached.
type usage struct {
	Input   int `json:"input_tokens"`
	Written int `json:"cache_creation_input_tokens"`
	Cached  int `json:"cache_read_input_tokens"`
	Output  int `json:"output_tokens"`
}

func newUsage(a *restore.Answer) usage {
	n := &a.Usage
	return usage{Input: n.Prompt - n.Cached, Cached: n.Cached, Output: n.Generated}
}

// ending says why an answer ended; nil: it did not.
type ending struct {
	Reason   *string `json:"stop_reason"`
	Sequence *string `json:"stop_sequence"`
}

// message is a whole reply.
type message struct {
	ID      string  `json:"id"`
	Type    string  `json:"type"`
	Role    string  `json:"role"`
	Model   string  `json:"model"`
	Content []block `json:"content"`
	ending
	Usage   usage          `json:"usage"`
	Timings *api.Timings   `json:"timings,omitempty"`
	Restore *api.Extension `json:"restore,omitempty"`
}

// reply makes the replies to one call. It implements [api.Stream].
type reply struct {
	id, model string
	q         *api.Call
	tool      string     // that the answer calls; "": the answer is a text
	frame     wire.Frame // of a piece; nil: not needed yet
}

func (p *reply) message() message {
	return message{ID: p.id, Type: "message", Role: "assistant", Model: p.model, Content: []block{}}
}

// block returns the block of the answer. An input that is not complete is an empty object, as is
// the one with which a stream begins.
func (p *reply) block(text string) block {
	if p.tool == "" {
		return block{Type: "text", Text: &text}
	}
	b := block{Type: "tool_use", ID: api.NewID("toolu_"), Name: p.tool,
		Input: json.RawMessage("{}")}
	if json.Valid([]byte(text)) {
		b.Input = json.RawMessage(text)
	}
	return b
}

func (p *reply) whole(a *restore.Answer) message {
	m := p.message()
	m.Content = append(m.Content, p.block(a.Text))
	m.ending, m.Usage = p.ending(a), newUsage(a)
	m.Timings, m.Restore = api.NewTimings(a), p.q.Extend(a)
	return m
}

func (p *reply) ending(a *restore.Answer) ending {
	reason := "end_turn"
	switch {
	case a.Stop != "":
		return ending{new("stop_sequence"), &a.Stop}
	case a.Finish == restore.FinishLength && a.Usage.Generated < p.q.MaxTokens:
		reason = "model_context_window_exceeded"
	case a.Finish == restore.FinishLength:
		reason = "max_tokens"
	case p.tool != "":
		reason = "tool_use"
	}
	return ending{Reason: &reason}
}

// event is any event of a stream.
type event struct {
	Type    string   `json:"type"`
	Message *message `json:"message,omitempty"`
	Index   *int     `json:"index,omitempty"`
	Block   *block   `json:"content_block,omitempty"`
	Delta   any      `json:"delta,omitempty"`
	Usage   *usage   `json:"usage,omitempty"`

	Timings *api.Timings   `json:"timings,omitempty"`
	Restore *api.Extension `json:"restore,omitempty"`
}

func (e *event) sent() api.Message { return api.Message{Event: e.Type, Data: e} }

// Begin implements [api.Stream]. The tokens of the prompt are not known yet.
func (p *reply) Begin() []api.Message {
	m, b := p.message(), p.block("")
	return []api.Message{
		(&event{Type: "message_start", Message: &m}).sent(),
		(&event{Type: "content_block_start", Index: new(0), Block: &b}).sent(),
	}
}

// Piece implements [api.Stream].
func (p *reply) Piece(e *restore.Piece) []api.Message {
	const kind = "content_block_delta"
	if p.frame == nil {
		var gap any = textDelta{"text_delta", wire.Gap}
		if p.tool != "" {
			gap = inputDelta{"input_json_delta", wire.Gap}
		}
		p.frame = wire.NewFrame(&event{Type: kind, Index: new(0), Delta: gap}, wire.Gap)
	}
	return []api.Message{{Event: kind, Text: p.frame.Fill(wire.Text(e.Text))}}
}

// End implements [api.Stream].
func (p *reply) End(a *restore.Answer) []api.Message {
	n := newUsage(a)
	last := &event{Type: "message_delta", Delta: p.ending(a), Usage: &n,
		Timings: api.NewTimings(a), Restore: p.q.Extend(a)}
	return []api.Message{
		(&event{Type: "content_block_stop", Index: new(0)}).sent(),
		last.sent(),
		(&event{Type: "message_stop"}).sent(),
	}
}

// Fail implements [api.Stream].
func (p *reply) Fail(e *wire.Error) []api.Message {
	return []api.Message{{Event: "error", Data: failure(e)}}
}

// kinds are the types of errors that other statuses than in OpenAI's API have.
var kinds = map[int]string{
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusServiceUnavailable:    "overloaded_error",
	http.StatusGatewayTimeout:        "timeout_error",
}

// failure returns the reply for an error.
func failure(e *wire.Error) any {
	type inner struct {
		Type    string `json:"type"`
		Message string `json:"message"`
		Code    string `json:"code"`
	}
	return struct {
		Type      string `json:"type"`
		Error     inner  `json:"error"`
		RequestID string `json:"request_id,omitempty"`
	}{"error", inner{cmp.Or(kinds[e.Status], e.Type), e.Message, e.Code}, e.RequestID}
}
