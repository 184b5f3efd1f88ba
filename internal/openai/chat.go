package openai

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/wire"
)

// Request is a body except for the question itself.
type Request struct {
	Model        string // "" if the body names none
	Stream       bool
	IncludeUsage bool
	Ask          *ask.Request
}

// ParseChat reads the body of /v1/chat/completions. The error is a *[wire.Error].
func ParseChat(body []byte, env *Env) (*Request, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	q := &Request{Ask: new(ask.Request)}
	r := q.Ask
	q.common(o, env)
	limit(o, r, "max_completion_tokens", "max_tokens")
	if r.Logprobs = o.Bool("logprobs"); o.Has("top_logprobs") {
		n, _ := o.Int("top_logprobs", 0, maxTop)
		r.Top = int(n)
		if !r.Logprobs {
			o.Fail("invalid_value", "top_logprobs",
				"got %d without logprobs, want logprobs: true too", n)
		}
	}
	if o.Require("messages", "a list of messages") {
		r.Messages = messages(o, r, env)
	}
	Note(r, o)
	return q, o.Err()
}

// ParseMessages reads the messages of /tokenize, which have the format of a chat.
func ParseMessages(o *wire.Object, env *Env) *ask.Request {
	r := new(ask.Request)
	r.Messages = messages(o, r, env)
	Extension(o, r, env)
	return r
}

// common reads the fields that all routes share.
func (q *Request) common(o *wire.Object, env *Env) {
	r := q.Ask
	q.Model = o.String("model")
	q.Stream = o.Bool("stream")
	if s := o.Object("stream_options"); s != nil {
		q.IncludeUsage = s.Bool("include_usage")
		s.Bool("include_obfuscation")
		if s.Has("include_usage") && !q.Stream {
			s.Fail("invalid_value", "include_usage",
				"got %t without stream, want stream: true too", q.IncludeUsage)
		}
		Note(r, s)
	}
	Sampling(o, r)
	Stops(o, r)
	if n, ok := o.Int("n", math.MinInt64, math.MaxInt64); ok && n != 1 {
		o.Fail("unsupported_value", "n", "got %d, want 1", n)
	}
	format(o.Object("response_format"), r, false)
	Extension(o, r, env)
	unsupported(o, env)
}

// messages reads a dialogue.
func messages(o *wire.Object, r *ask.Request, env *Env) []ask.Message {
	l := o.List("messages")
	if l == nil {
		return nil
	}
	if n := l.Len(); n < 1 || n > maxMessages {
		o.Fail("invalid_value", "messages", "got %d messages, want 1 to %d", n, maxMessages)
		return nil
	}
	d := &dialogue{r: r, env: env, field: "messages"}
	for item := range l.Items() {
		m := item.Object()
		role := d.role(m)
		for _, name := range []string{"tool_calls", "function_call"} {
			if raw := m.Raw(name); !wire.IsEmpty(raw) {
				m.Lack(name, "%q does not support tools", env.Model)
			}
		}
		m.Ignore("name", "annotations", "refusal", "audio")
		if m.Require("content", "a string or a list of parts") {
			d.add(role, d.content(m, role, chatPart), m)
		}
		Note(r, m)
	}
	return d.end(o)
}

// dialogue collects messages in an order that templates accept.
type dialogue struct {
	r     *ask.Request
	env   *Env
	field string

	out      []ask.Message
	system   []string
	parts    int
	pictures int
	last     ask.Role
	lastPath string // of the last message's role
}

// role reads the role of a message.
func (d *dialogue) role(m *wire.Object) ask.Role {
	if !m.Require("role", "system, developer, user or assistant") {
		return ""
	}
	role := m.String("role")
	switch role {
	case "system", "developer":
		if len(d.out) > 0 {
			m.Fail("unsupported_value", "role",
				"got %q after the first message of a user or the assistant, want it before", role)
		}
		return ask.System
	case "user", "assistant":
		return ask.Role(role)
	}
	m.Fail("unsupported_value", "role", "got %s, want system, developer, user or assistant",
		wire.Quote(role))
	return ""
}

// partReader reads a part by one API's names. It returns false for an unknown type.
type partReader func(d *dialogue, p *wire.Object, kind string, role ask.Role) (ask.Part, bool)

// content reads a message's text or parts.
func (d *dialogue) content(m *wire.Object, role ask.Role, read partReader) []ask.Part {
	raw := m.Raw("content")
	switch wire.Kind(raw) {
	case "a string":
		return []ask.Part{{Text: m.String("content")}}
	case "a list":
	default:
		m.Fail("invalid_type", "content", "got %s, want a string or a list of parts",
			wire.Describe(raw))
		return nil
	}
	var parts []ask.Part
	for item := range m.List("content").Items() {
		if d.parts++; d.parts > maxParts+d.env.MaxImages {
			m.Fail("invalid_value", "content", "got more than %d parts in all messages, "+
				"want at most that", maxParts+d.env.MaxImages)
			return nil
		}
		p := item.Object()
		if !p.Require("type", "the part's type") {
			continue
		}
		if part, ok := read(d, p, p.String("type"), role); ok {
			parts = append(parts, part)
		}
		Note(d.r, p)
	}
	return parts
}

// chatPart reads a part of /v1/chat/completions.
func chatPart(d *dialogue, p *wire.Object, kind string, role ask.Role) (ask.Part, bool) {
	switch {
	case kind == "text":
		p.Require("text", "a string")
		return ask.Part{Text: p.String("text")}, true
	case kind == "image_url" && role == ask.User:
		return d.imageURL(p)
	}
	want := "text"
	if role == ask.User {
		want = "text or image_url"
	}
	p.Fail("unsupported_content_part", "type", "got %s, want %s", wire.Quote(kind), want)
	return ask.Part{}, false
}

// imageURL reads {"url", "detail", "restore"}, or a plain URL.
func (d *dialogue) imageURL(p *wire.Object) (ask.Part, bool) {
	if !p.Require("image_url", "an object with url") {
		return ask.Part{}, false
	}
	if raw := p.Raw("image_url"); wire.Kind(raw) == "a string" {
		return d.picture(p, "image_url", nil), true
	}
	u := p.Object("image_url")
	if !u.Require("url", "a data, http, https or file URL") {
		return ask.Part{}, false
	}
	part := d.picture(u, "url", u)
	Note(d.r, u)
	return part, true
}

// picture reads a picture whose URL is in the field of o. with holds detail and restore; nil if
// absent.
func (d *dialogue) picture(o *wire.Object, field string, with *wire.Object) ask.Part {
	pic := &ask.Picture{URL: o.Bytes(field), Path: o.Path(field)}
	if with != nil {
		pic.Detail, pic.DetailPath = with.String("detail"), with.Path("detail")
		switch pic.Detail {
		case "", "auto", "low", "high", "original":
		default:
			with.Fail("invalid_value", "detail", "got %s, want auto, low, high or original",
				wire.Quote(pic.Detail))
		}
		if x := with.Object("restore"); x != nil {
			Known(x, d.env.Parameters)
			pic.Reduction = layer(x, nil)
		}
	}
	d.pictures++
	return ask.Part{Picture: pic}
}

// add appends the message m.
func (d *dialogue) add(role ask.Role, parts []ask.Part, m *wire.Object) {
	d.last, d.lastPath = role, m.Path("role")
	switch role {
	case ask.System:
		d.system = append(d.system, joined(parts))
		return
	case ask.User:
		if !slices.ContainsFunc(parts, func(p ask.Part) bool {
			return p.Text != "" || p.Picture != nil
		}) {
			m.Fail("invalid_value", "content",
				"got neither text nor a picture, want one of them in a user's message")
		}
	}
	d.out = append(d.out, ask.Message{Role: role, Parts: parts})
}

func joined(parts []ask.Part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// end checks the whole dialogue and returns it, with all system texts in one message.
func (d *dialogue) end(o *wire.Object) []ask.Message {
	if d.pictures > d.env.MaxImages {
		o.Fail("too_many_images", d.field, "got %d pictures, want at most %d (--max-images)",
			d.pictures, d.env.MaxImages)
	}
	if d.last != ask.User {
		o.Fail("unsupported_value", d.lastPath, "got %q in the last message, want a user's", d.last)
	}
	if text := strings.Join(d.system, "\n\n"); text != "" {
		d.out = append([]ask.Message{{Role: ask.System, Parts: []ask.Part{{Text: text}}}}, d.out...)
	}
	return d.out
}

// rawOr returns raw, or absent if there is none.
func rawOr(raw json.RawMessage, absent string) json.RawMessage {
	if raw == nil {
		return json.RawMessage(absent)
	}
	return raw
}
