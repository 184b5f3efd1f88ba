package openai

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// ParseChat reads the body of /v1/chat/completions. The error is a *[wire.Error].
func ParseChat(body []byte, f *api.Front) (*api.Call, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	f = f.Named(o.String("model"))
	r := api.NewCall(f, "messages")
	common(o, r, f)
	api.Choices(o, r)
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
		r.Messages = messages(o, r, f)
	}
	m := newMeta(f, "chatcmpl-")
	r.Whole = func(a *restore.Answer) any { return chatReply(m, r, a) }
	r.Kind, r.Events = api.EventStream, newChatChunks(m, r)
	return r, r.End(o, f)
}

// ParseMessages reads the messages of /tokenize, which have the format of a chat. The caller calls
// End.
func ParseMessages(o *wire.Object, f *api.Front) *api.Call {
	r := api.NewCall(f, "messages")
	r.Messages = messages(o, r, f)
	api.ReadExtension(o, r)
	return r
}

// common reads the fields that all routes share.
func common(o *wire.Object, q *api.Call, f *api.Front) {
	q.Model = o.String("model")
	q.Stream = o.Bool("stream")
	if s := o.Object("stream_options"); s != nil {
		q.IncludeUsage = s.Bool("include_usage")
		s.Bool("include_obfuscation")
		if s.Has("include_usage") && !q.Stream {
			s.Fail("invalid_value", "include_usage",
				"got %t without stream, want stream: true too", q.IncludeUsage)
		}
		api.Note(q, s)
	}
	api.Sampling(o, q)
	api.Penalties(o, q, f)
	api.Stops(o, q)
	format(o.Object("response_format"), q, false)
	api.ReadExtension(o, q)
	unsupported(o, f)
}

// messages reads a dialogue.
func messages(o *wire.Object, r *api.Call, f *api.Front) []restore.Message {
	l := o.List("messages")
	if l == nil {
		return nil
	}
	if n := l.Len(); n < 1 || n > maxMessages {
		o.Fail("invalid_value", "messages", "got %d messages, want 1 to %d", n, maxMessages)
		return nil
	}
	d := &dialogue{r: r, f: f, field: "messages"}
	for item := range l.Items() {
		m := item.Object()
		role := d.role(m)
		for _, name := range []string{"tool_calls", "function_call"} {
			if raw := m.Raw(name); !wire.IsEmpty(raw) {
				m.Lack(name, "%q does not support tools", f.About.ID)
			}
		}
		m.Ignore("name", "annotations", "refusal", "audio")
		if m.Require("content", "a string or a list of parts") {
			d.add(role, d.content(m, role, chatPart), m)
		}
		api.Note(r, m)
	}
	return d.end(o)
}

// dialogue collects messages in an order that templates accept.
type dialogue struct {
	r     *api.Call
	f     *api.Front
	field string

	out      []restore.Message
	system   []string
	parts    int
	pictures int
	last     restore.Role
	lastPath string // of the last message's role
}

// role reads the role of a message.
func (d *dialogue) role(m *wire.Object) restore.Role {
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
		return restore.System
	case "user", "assistant":
		return restore.Role(role)
	}
	m.Fail("unsupported_value", "role", "got %s, want system, developer, user or assistant",
		wire.Quote(role))
	return ""
}

// partReader reads a part by one API's names. It returns false for an unknown type.
type partReader func(
	d *dialogue, p *wire.Object, kind string, role restore.Role,
) (restore.Part, bool)

// content reads a message's text or parts.
func (d *dialogue) content(m *wire.Object, role restore.Role, read partReader) []restore.Part {
	raw := m.Raw("content")
	switch wire.Kind(raw) {
	case "a string":
		return []restore.Part{{Text: m.String("content")}}
	case "a list":
	default:
		m.Fail("invalid_type", "content", "got %s, want a string or a list of parts",
			wire.Describe(raw))
		return nil
	}
	var parts []restore.Part
	for item := range m.List("content").Items() {
		if d.parts++; d.parts > maxParts+d.f.MaxImages {
			m.Fail("invalid_value", "content", "got more than %d parts in all messages, "+
				"want at most that", maxParts+d.f.MaxImages)
			return nil
		}
		p := item.Object()
		if !p.Require("type", "the part's type") {
			continue
		}
		if part, ok := read(d, p, p.String("type"), role); ok {
			parts = append(parts, part)
		}
		api.Note(d.r, p)
	}
	return parts
}

// chatPart reads a part of /v1/chat/completions.
func chatPart(d *dialogue, p *wire.Object, kind string, role restore.Role) (restore.Part, bool) {
	switch {
	case kind == "text":
		p.Require("text", "a string")
		return restore.Part{Text: p.String("text")}, true
	case kind == "image_url" && role == restore.User:
		return d.imageURL(p)
	}
	want := "text"
	if role == restore.User {
		want = "text or image_url"
	}
	p.Fail("unsupported_content_part", "type", "got %s, want %s", wire.Quote(kind), want)
	return restore.Part{}, false
}

// imageURL reads {"url", "detail", "restore"}, or a plain URL.
func (d *dialogue) imageURL(p *wire.Object) (restore.Part, bool) {
	if !p.Require("image_url", "an object with url") {
		return restore.Part{}, false
	}
	if raw := p.Raw("image_url"); wire.Kind(raw) == "a string" {
		return d.picture(p, "image_url", nil), true
	}
	u := p.Object("image_url")
	if !u.Require("url", "a data, http, https or file URL") {
		return restore.Part{}, false
	}
	part := d.picture(u, "url", u)
	api.Note(d.r, u)
	return part, true
}

// picture reads a picture whose URL is in the field of o. with holds detail and restore; nil if
// absent.
func (d *dialogue) picture(o *wire.Object, field string, with *wire.Object) restore.Part {
	pic, part := d.r.Picture(o.Bytes(field), o.Path(field))
	if with != nil {
		d.r.Detail(pic, with, d.f)
		if x := with.Object("restore"); x != nil {
			pic.Layer(x)
		}
	}
	d.pictures++
	return part
}

// add appends the message m.
func (d *dialogue) add(role restore.Role, parts []restore.Part, m *wire.Object) {
	d.last, d.lastPath = role, m.Path("role")
	switch role {
	case restore.System:
		d.system = append(d.system, joined(parts))
		return
	case restore.User:
		if !slices.ContainsFunc(parts, func(p restore.Part) bool {
			return p.Text != "" || p.Picture != nil
		}) {
			m.Fail("invalid_value", "content",
				"got neither text nor a picture, want one of them in a user's message")
		}
	}
	d.out = append(d.out, restore.Message{Role: role, Parts: parts})
}

func joined(parts []restore.Part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// end checks the whole dialogue and returns it, with all system texts in one message.
func (d *dialogue) end(o *wire.Object) []restore.Message {
	if d.pictures > d.f.MaxImages {
		o.Fail("too_many_images", d.field, "got %d pictures, want at most %d (--max-images)",
			d.pictures, d.f.MaxImages)
	}
	if d.last != restore.User {
		o.Fail("unsupported_value", d.lastPath, "got %q in the last message, want a user's", d.last)
	}
	if text := strings.Join(d.system, "\n\n"); text != "" {
		d.out = slices.Insert(d.out, 0, api.SystemMessage(text))
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
