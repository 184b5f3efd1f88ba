// Package ollama has the wire types of Ollama's API, and pure conversions between them and package
// ask.
package ollama

import (
	"math"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/openai"
	"github.com/restore-vlm/restore/internal/wire"
)

// Env has the server's limits for the checks of a request.
type Env struct {
	openai.Env
	Context int // in positions
}

// Request is a body except for the question itself.
type Request struct {
	Model  string // "" if the body names none
	Stream bool
	Load   bool // no question, only a request to load the model, which is loaded
	Ask    *ask.Request
}

// ParseChat reads the body of /api/chat. The error is a *[wire.Error].
func ParseChat(body []byte, env *Env) (*Request, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	q := newRequest(o, env)
	if l := o.List("messages"); l.Len() == 0 {
		q.Load = true
	} else {
		q.messages(o, l, env)
	}
	return q, q.end(o)
}

// ParseGenerate reads the body of /api/generate. The error is a *[wire.Error].
func ParseGenerate(body []byte, env *Env) (*Request, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	q := newRequest(o, env)
	for _, name := range []string{"suffix", "template", "context"} {
		if raw := o.Raw(name); !wire.IsEmpty(raw) && string(raw) != `""` {
			o.Fail("unsupported_parameter", name, "got %s, want nothing: it is not supported",
				wire.Describe(raw))
		}
	}
	text, system, raw := o.String("prompt"), o.String("system"), o.Bool("raw")
	parts := q.images(o, env)
	switch {
	case text == "" && parts == nil:
		q.Load = true
	case raw && (parts != nil || system != ""):
		o.Fail("invalid_value", "raw", "got true with system or images, want a prompt alone")
	case raw:
		q.Ask.Prompt = &ask.Prompt{Text: text}
	default:
		if system != "" {
			q.Ask.Messages = append(q.Ask.Messages,
				ask.Message{Role: ask.System, Parts: []ask.Part{{Text: system}}})
		}
		if text != "" {
			parts = append(parts, ask.Part{Text: text})
		}
		q.Ask.Messages = append(q.Ask.Messages, ask.Message{Role: ask.User, Parts: parts})
	}
	return q, q.end(o)
}

func newRequest(o *wire.Object, env *Env) *Request {
	q := &Request{Stream: true, Ask: new(ask.Request)}
	r := q.Ask
	q.Model = o.String("model")
	if o.Has("stream") {
		q.Stream = o.Bool("stream")
	}
	switch raw := o.Raw("format"); {
	case wire.IsEmpty(raw) && string(raw) != "{}" || string(raw) == `""`:
	case string(raw) == `"json"`:
		r.Format = ask.Format{Object: true, Path: "format"}
	case wire.Kind(raw) == "an object":
		r.Format = openai.Schema(o, "format")
	default:
		o.Fail("invalid_value", "format", "got %s, want \"json\" or a JSON schema",
			wire.Describe(raw))
	}
	if raw := o.Raw("think"); !wire.IsEmpty(raw) {
		o.Lack("think", "%q does not support thinking", env.Model)
	}
	if raw := o.Raw("tools"); !wire.IsEmpty(raw) {
		o.Lack("tools", "%q does not support tools", env.Model)
	}
	o.Ignore("keep_alive")
	if r.Logprobs = o.Bool("logprobs"); o.Has("top_logprobs") {
		n, _ := o.Int("top_logprobs", 0, 20)
		if r.Top = int(n); n > 0 && !r.Logprobs {
			o.Fail("invalid_value", "top_logprobs",
				"got %d without logprobs, want logprobs: true too", n)
		}
	}
	openai.Extension(o, r, &env.Env)
	if x := o.Object("options"); x != nil {
		options(x, r, env)
	}
	return q
}

// end records the fields that were never read.
func (q *Request) end(o *wire.Object) error {
	openai.Note(q.Ask, o)
	return o.Err()
}

// options reads the sampling options.
func options(x *wire.Object, r *ask.Request, env *Env) {
	openai.Sampling(x, r)
	openai.Stops(x, r)
	if n, ok := x.Int("num_predict", -2, math.MaxInt64); ok {
		switch {
		case n == 0:
			x.Fail("integer_below_min_value", "num_predict",
				"got 0, want at least 1, or -1 or -2: no limit")
		case n < 0:
			r.MaxTokens = ask.Unlimited
		default:
			r.MaxTokens = int(min(n, math.MaxInt32))
		}
	}
	if n, ok := x.Int("num_ctx", 1, int64(env.Context)); ok {
		r.Context = int(n)
	}
	for _, f := range []struct {
		name string
		want float64
	}{{"repeat_penalty", 1}, {"presence_penalty", 0}, {"frequency_penalty", 0}, {"mirostat", 0}} {
		if v, ok := x.Float(f.name, math.Inf(-1), math.Inf(1), false); ok && v != f.want {
			x.Fail("unsupported_parameter", f.name, "got %v, want %v or nothing", v, f.want)
		}
	}
	x.Ignore("num_thread", "num_batch", "num_gpu", "main_gpu", "use_mmap", "use_mlock", "low_vram",
		"numa", "num_keep")
	openai.Note(r, x)
}

// messages reads a dialogue. A message's pictures come before its text.
func (q *Request) messages(o *wire.Object, l *wire.List, env *Env) {
	r := q.Ask
	if l.Len() > 1024 {
		o.Fail("invalid_value", "messages", "got %d messages, want 1 to 1024", l.Len())
		return
	}
	var system []string
	pictures := 0
	last, lastPath := ask.Role(""), ""
	for item := range l.Items() {
		m := item.Object()
		if !m.Require("role", "system, user or assistant") {
			return
		}
		last, lastPath = ask.Role(m.String("role")), m.Path("role")
		text := m.String("content")
		parts := q.images(m, env)
		pictures += len(parts)
		if !wire.IsEmpty(m.Raw("tool_calls")) {
			m.Lack("tool_calls", "%q does not support tools", env.Model)
		}
		m.Ignore("thinking", "tool_name")
		switch {
		case last != ask.System && last != ask.User && last != ask.Assistant:
			m.Fail("unsupported_value", "role", "got %s, want system, user or assistant",
				wire.Quote(string(last)))
		case last != ask.User && parts != nil:
			m.Fail("unsupported_value", "images",
				"got pictures of the %s, want them in a user's message", last)
		case last == ask.System && len(r.Messages) > 0:
			m.Fail("unsupported_value", "role",
				"got \"system\" after the first message of a user or the assistant, want it before")
		case last == ask.User && text == "" && parts == nil:
			m.Fail("invalid_value", "content",
				"got neither text nor a picture, want one of them in a user's message")
		}
		if last == ask.System {
			system = append(system, text)
			continue
		}
		if text != "" || parts == nil {
			parts = append(parts, ask.Part{Text: text})
		}
		r.Messages = append(r.Messages, ask.Message{Role: last, Parts: parts})
		openai.Note(r, m)
	}
	if pictures > env.MaxImages {
		tooMany(o, "messages", pictures, env)
	}
	if last != ask.User {
		o.Fail("unsupported_value", lastPath, "got %q in the last message, want a user's", last)
	}
	if text := strings.Join(system, "\n\n"); text != "" {
		r.Messages = append([]ask.Message{{Role: ask.System, Parts: []ask.Part{{Text: text}}}},
			r.Messages...)
	}
}

func tooMany(o *wire.Object, field string, n int, env *Env) {
	o.Fail("too_many_images", field, "got %d pictures, want at most %d (--max-images)", n,
		env.MaxImages)
}

// images reads pictures in base64 or as URLs.
func (q *Request) images(o *wire.Object, env *Env) []ask.Part {
	l := o.List("images")
	if l.Len() > env.MaxImages {
		tooMany(o, "images", l.Len(), env)
		return nil
	}
	var parts []ask.Part
	for item := range l.Items() {
		picture := &ask.Picture{URL: item.Bytes(), Path: item.Path()}
		parts = append(parts, ask.Part{Picture: picture})
	}
	return parts
}

// tokenLogprob is a token's log probability.
type tokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

type logprob struct {
	tokenLogprob
	Top []tokenLogprob `json:"top_logprobs,omitempty"`
}

func newTokenLogprob(t *ask.Token) tokenLogprob {
	out := tokenLogprob{
		strings.ToValidUTF8(string(t.Bytes), "\ufffd"),
		t.Logprob,
		make([]int, len(t.Bytes)),
	}
	for i, b := range t.Bytes {
		out.Bytes[i] = int(b)
	}
	return out
}

func newLogprobs(tokens []ask.Token) []logprob {
	var out []logprob
	for i := range tokens {
		l := logprob{tokenLogprob: newTokenLogprob(&tokens[i])}
		for j := range tokens[i].Top {
			l.Top = append(l.Top, newTokenLogprob(&tokens[i].Top[j]))
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
	Restore  *ask.Extension `json:"restore,omitempty"`
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

// Reply makes the replies to one request.
type Reply struct {
	Model    string
	Generate bool // /api/generate, else /api/chat
	Now      func() time.Time

	frame wire.Frame // of a piece without log probabilities; nil: not needed yet
}

func (p *Reply) line(at time.Time, text string) line {
	l := line{Model: p.Model, CreatedAt: at}
	if p.Generate {
		l.Response = &text
	} else {
		l.Message = &message{"assistant", text}
	}
	return l
}

func (p *Reply) now() time.Time { return p.Now().UTC() }

// Piece returns the line for a piece of an answer.
func (p *Reply) Piece(e *ask.Event) string {
	if len(e.Tokens) > 0 {
		l := p.line(p.now(), e.Text)
		l.Logprobs = newLogprobs(e.Tokens)
		return wire.String(l)
	}
	if p.frame == nil {
		p.frame = wire.NewFrame(p.line(time.Time{}, wire.Gap), time.Time{}, wire.Gap)
	}
	return p.frame.Fill(p.now().Format(`"`+time.RFC3339Nano+`"`), wire.Text(e.Text))
}

// Loaded returns the reply to a request without a question.
func (p *Reply) Loaded() any {
	l := p.line(p.now(), "")
	l.Done, l.Reason = true, "load"
	return l
}

// End returns the last line of a stream.
func (p *Reply) End(r *ask.Request, a *ask.Answer) any { return p.end("", r, a) }

// Whole returns a whole reply.
func (p *Reply) Whole(r *ask.Request, a *ask.Answer) any {
	l := p.end(a.Text, r, a)
	l.Logprobs = newLogprobs(a.Tokens)
	return l
}

func (p *Reply) end(text string, r *ask.Request, a *ask.Answer) line {
	l := p.line(p.now(), text)
	l.Done, l.Reason = true, string(a.Finish)
	l.totals = &totals{
		Total:         int64(a.Timings.FirstToken + a.Timings.Decode),
		PromptCount:   a.Prompt,
		PromptElapsed: int64(a.Timings.Prefill),
		Count:         a.Completion,
		Elapsed:       int64(a.Timings.Decode),
	}
	l.Restore = a.Extension(r)
	return l
}

// Error returns the reply for an error.
func Error(e *wire.Error) any {
	return struct {
		Error string `json:"error"`
	}{e.Message}
}
