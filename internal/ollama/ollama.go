// Package ollama has the wire types of Ollama's API, and pure conversions between them,
// requests and answers.
package ollama

import (
	"math"
	"net/http"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// Protocol is Ollama's API.
var Protocol = api.Protocol{
	Name: "Ollama", Prefix: "/api/", Stream: api.LineStream,
	Calls: map[string]api.Parse{"/api/chat": ParseChat, "/api/generate": ParseGenerate},
	Docs:  docs, Error: failure, ErrorSchema: `{"error": {"type": "string"}}`,
}

// ParseChat reads the body of /api/chat. The error is a *[wire.Error].
func ParseChat(body []byte, f *api.Front) (*api.Call, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	f = f.Named(o.String("model"))
	q := newCall(o, f, "messages")
	if q.Idle = o.List("messages").Len() == 0; !q.Idle {
		messages(o, q, f)
	}
	return q, end(q, o, f)
}

// ParseGenerate reads the body of /api/generate. The error is a *[wire.Error].
func ParseGenerate(body []byte, f *api.Front) (*api.Call, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	f = f.Named(o.String("model"))
	q := newCall(o, f, "prompt")
	o.Refuse("", "suffix", "template", "context")
	text, system, raw := o.String("prompt"), o.String("system"), o.Bool("raw")
	parts := images(o, q, f)
	switch {
	case text == "" && parts == nil:
		q.Idle = true
	case raw && (parts != nil || system != ""):
		o.Fail("invalid_value", "raw", "got true with system or images, want a prompt alone")
	case raw:
		q.Prompt, q.Raw = text, true
	default:
		if system != "" {
			q.Messages = append(q.Messages, api.SystemMessage(system))
		}
		if text != "" {
			parts = append(parts, restore.Part{Text: text})
		}
		q.Messages = append(q.Messages, restore.Message{Role: restore.User, Parts: parts})
	}
	return q, end(q, o, f)
}

func newCall(o *wire.Object, f *api.Front, field string) *api.Call {
	q := api.NewCall(f, field)
	p := &reply{model: f.About.ID, generate: field == "prompt", q: q}
	q.Events, q.Whole = p, p.whole
	q.Stream = true
	q.Model = o.String("model")
	if o.Has("stream") {
		q.Stream = o.Bool("stream")
	}
	switch raw := o.Raw("format"); {
	case wire.IsEmpty(raw) && wire.Kind(raw) != "an object":
	case string(raw) == `"json"`:
		q.Format.Object, q.FormatPath = true, "format"
	case wire.Kind(raw) == "an object":
		api.Schema(o, q, "format")
	default:
		o.Fail("invalid_value", "format", "got %s, want \"json\" or a JSON schema",
			wire.Describe(raw))
	}
	f.Lacks(o, "thinking", "think")
	f.Lacks(o, "tools", "tools")
	o.Ignore("keep_alive")
	api.Logprobs(o, q)
	api.ReadExtension(o, q)
	if x := o.Object("options"); x != nil {
		options(x, q, f)
	}
	return q
}

// end ends the parsing of a call.
func end(q *api.Call, o *wire.Object, f *api.Front) error {
	err := q.End(o, f)
	if e, ok := err.(*wire.Error); ok && f.CheckModel(q.Model) != nil && e.Param == "model" {
		return NotFound(q.Model)
	}
	return err
}

// NotFound is the error for the name of another model.
func NotFound(model string) *wire.Error {
	return wire.New(http.StatusNotFound, "model_not_found", "model", "model %s not found",
		wire.Quote(model))
}

// options reads the sampling options.
func options(x *wire.Object, r *api.Call, f *api.Front) {
	api.Sampling(x, r)
	api.Penalties(x, r, f)
	api.Stops(x, r, "stop")
	if n, ok := x.Int("num_predict", -2, math.MaxInt64); ok {
		switch {
		case n == 0:
			x.Fail("integer_below_min_value", "num_predict",
				"got 0, want at least 1, or -1 or -2: no limit")
		case n < 0:
			r.MaxTokens = api.Unlimited
		default:
			r.MaxTokens = int(min(n, math.MaxInt32))
		}
	}
	if n, ok := x.Int("num_ctx", 1, int64(f.About.Context)); ok {
		r.Request.Context = int(n)
	}
	x.Only("mirostat", "0")
	x.Ignore("num_thread", "num_batch", "num_gpu", "main_gpu", "use_mmap", "use_mlock", "low_vram",
		"numa", "num_keep")
	api.Note(r, x)
}

// messages reads a dialogue. A message's pictures come before its text.
func messages(o *wire.Object, r *api.Call, f *api.Front) {
	d := &api.Dialogue{Call: r, Front: f}
	if d.Each(o, func(m *wire.Object) {
		role, text := d.Role(m), m.String("content")
		parts := images(m, r, f)
		f.Lacks(m, "tools", "tool_calls")
		m.Ignore("thinking", "tool_name")
		api.Note(r, m)
		if role != restore.User && parts != nil {
			m.Fail("unsupported_value", "images",
				"got pictures of the %s, want them in a user's message", role)
		}
		if text != "" || parts == nil {
			parts = append(parts, restore.Part{Text: text})
		}
		d.Add(role, parts, m)
	}) {
		d.End(o)
	}
}

// images reads pictures in base64 or as URLs.
func images(o *wire.Object, q *api.Call, f *api.Front) []restore.Part {
	l := o.List("images")
	if l.Len() > f.MaxImages {
		o.Fail("too_many_images", "images", "got %d pictures, want at most %d (--max-images)",
			l.Len(), f.MaxImages)
		return nil
	}
	var parts []restore.Part
	for item := range l.Items() {
		_, part := q.Picture(item.Bytes(), item.Path())
		parts = append(parts, part)
	}
	return parts
}

// logprob is a token's log probability, and what other tokens have in its place.
type logprob struct {
	api.TokenLogprob
	Top []api.TokenLogprob `json:"top_logprobs,omitempty"`
}

func newLogprobs(tokens []restore.Token) []logprob {
	var out []logprob
	for i := range tokens {
		l := logprob{TokenLogprob: api.NewTokenLogprob(&tokens[i])}
		for j := range tokens[i].Top {
			l.Top = append(l.Top, api.NewTokenLogprob(&tokens[i].Top[j]))
		}
		out = append(out, l)
	}
	return out
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// line is a whole reply or one line of a stream.
type line struct {
	Model     string    `json:"model"`
	CreatedAt time.Time `json:"created_at"`
	Message   *message  `json:"message,omitempty"`  // for /api/chat
	Response  *string   `json:"response,omitempty"` // for /api/generate
	Done      bool      `json:"done"`
	Reason    string    `json:"done_reason,omitempty"`
	*totals
	Logprobs []logprob      `json:"logprobs,omitempty"`
	Restore  *api.Extension `json:"restore,omitempty"`
}

// totals are the counts, and the times in nanoseconds, of a whole answer. The total goes from the
// arrival of the request to the last token, however slowly the client reads.
type totals struct {
	Total         int64 `json:"total_duration"`
	Load          int64 `json:"load_duration"`
	PromptCount   int   `json:"prompt_eval_count"`
	PromptElapsed int64 `json:"prompt_eval_duration"`
	Count         int   `json:"eval_count"`
	Elapsed       int64 `json:"eval_duration"`
}

// reply makes the replies to one call. It implements [api.Stream].
type reply struct {
	model    string
	generate bool // /api/generate, else /api/chat
	q        *api.Call

	frame wire.Frame // of a piece without log probabilities; nil: not needed yet
}

func (p *reply) line(at time.Time, text string) line {
	l := line{Model: p.model, CreatedAt: at}
	if p.generate {
		l.Response = &text
	} else {
		l.Message = &message{"assistant", text}
	}
	return l
}

func now() time.Time { return time.Now().UTC() }

// Begin implements [api.Stream].
func (p *reply) Begin() []api.Message { return nil }

// Piece implements [api.Stream].
func (p *reply) Piece(e *restore.Piece) []api.Message {
	if len(e.Tokens) > 0 {
		l := p.line(now(), e.Text)
		l.Logprobs = newLogprobs(e.Tokens)
		return []api.Message{{Data: l}}
	}
	if p.frame == nil {
		p.frame = wire.NewFrame(p.line(time.Time{}, wire.Gap), time.Time{}, wire.Gap)
	}
	at := now().Format(`"` + time.RFC3339Nano + `"`)
	return []api.Message{{Text: p.frame.Fill(at, wire.Text(e.Text))}}
}

// End implements [api.Stream].
func (p *reply) End(a *restore.Answer) []api.Message {
	return []api.Message{{Data: p.end("", a)}}
}

// Fail implements [api.Stream].
func (p *reply) Fail(e *wire.Error) []api.Message { return []api.Message{{Data: failure(e)}} }

// whole returns a whole reply; nil is the answer to a call without a question.
func (p *reply) whole(a *restore.Answer) any {
	if a == nil {
		l := p.line(now(), "")
		l.Done, l.Reason = true, "load"
		return l
	}
	l := p.end(a.Text, a)
	l.Logprobs = newLogprobs(a.Logprobs)
	return l
}

func (p *reply) end(text string, a *restore.Answer) line {
	l := p.line(now(), text)
	l.Done, l.Reason = true, string(a.Finish)
	l.totals = &totals{
		Total:         int64(a.Timings.FirstToken + a.Timings.Decode),
		PromptCount:   a.Usage.Prompt,
		PromptElapsed: int64(a.Timings.Prefill),
		Count:         a.Usage.Generated,
		Elapsed:       int64(a.Timings.Decode),
	}
	l.Restore = p.q.Extend(a)
	return l
}

// failure returns the reply for an error.
func failure(e *wire.Error) any {
	return struct {
		Error string `json:"error"`
	}{e.Message}
}
