package openai

import (
	"encoding/json"

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
	api.Limit(o, r, "max_completion_tokens", "max_tokens")
	api.Logprobs(o, r)
	if o.Require("messages", "a list of messages") {
		messages(o, r, f)
	}
	m := newMeta(f, "chatcmpl-")
	r.Whole = func(a *restore.Answer) any { return chatReply(m, r, a) }
	r.Events = newChatChunks(m, r)
	return r, r.End(o, f)
}

// ParseMessages reads the messages of /tokenize, which have the format of a chat. The caller calls
// End.
func ParseMessages(o *wire.Object, f *api.Front) *api.Call {
	r := api.NewCall(f, "messages")
	messages(o, r, f)
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
	api.Stops(o, q, "stop")
	format(o.Object("response_format"), q, false)
	api.ReadExtension(o, q)
	unsupported(o, f)
}

// messages reads a dialogue.
func messages(o *wire.Object, r *api.Call, f *api.Front) {
	d := &api.Dialogue{Call: r, Front: f}
	if d.Each(o, func(m *wire.Object) {
		role := d.Role(m)
		f.Lacks(m, "tools", "tool_calls", "function_call")
		m.Ignore("name", "annotations", "refusal", "audio")
		if m.Require("content", "a string or a list of parts") {
			d.Add(role, d.Content(m, "content", role, chatPart), m)
		}
		api.Note(r, m)
	}) {
		d.End(o)
	}
}

// chatPart reads a part of /v1/chat/completions.
func chatPart(
	d *api.Dialogue, p *wire.Object, kind string, role restore.Role,
) (restore.Part, bool) {
	switch {
	case kind == "text":
		p.Require("text", "a string")
		return restore.Part{Text: p.String("text")}, true
	case kind == "image_url" && role == restore.User:
		return imageURL(d, p)
	}
	want := "text"
	if role == restore.User {
		want = "text or image_url"
	}
	p.Fail("unsupported_content_part", "type", "got %s, want %s", wire.Quote(kind), want)
	return restore.Part{}, false
}

// imageURL reads {"url", "detail", "restore"}, or a plain URL.
func imageURL(d *api.Dialogue, p *wire.Object) (restore.Part, bool) {
	if !p.Require("image_url", "an object with url") {
		return restore.Part{}, false
	}
	if raw := p.Raw("image_url"); wire.Kind(raw) == "a string" {
		return d.Picture(p, "image_url", nil), true
	}
	u := p.Object("image_url")
	if !u.Require("url", "a data, http, https or file URL") {
		return restore.Part{}, false
	}
	part := d.Picture(u, "url", u)
	api.Note(d.Call, u)
	return part, true
}

// rawOr returns raw, or absent if there is none.
func rawOr(raw json.RawMessage, absent string) json.RawMessage {
	if raw == nil {
		return json.RawMessage(absent)
	}
	return raw
}
