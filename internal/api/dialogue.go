package api

import (
	"slices"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/wire"
)

// Dialogue collects messages in an order that templates accept.
type Dialogue struct {
	Call  *Call
	Front *Front
	// Join makes consecutive messages of one role one message.
	Join bool

	out      []restore.Message
	system   []string
	parts    int
	last     restore.Role
	lastPath string // of the last message's role
}

// Each calls read for each message of a list, and reports whether their number is allowed.
func (d *Dialogue) Each(o *wire.Object, read func(m *wire.Object)) bool {
	l := o.List(d.Call.Field)
	if l == nil {
		return false
	}
	if n := l.Len(); n < 1 || n > maxMessages {
		o.Fail("invalid_value", d.Call.Field, "got %d messages, want 1 to %d", n, maxMessages)
		return false
	}
	for item := range l.Items() {
		read(item.Object())
	}
	return true
}

// Say appends a user's text.
func (d *Dialogue) Say(text string) {
	d.last = restore.User
	d.out = append(d.out, restore.Message{Role: d.last, Parts: []restore.Part{{Text: text}}})
}

// System appends a system prompt.
func (d *Dialogue) System(text string) {
	if text != "" {
		d.system = append(d.system, text)
	}
}

// Role reads the role of a message.
func (d *Dialogue) Role(m *wire.Object) restore.Role {
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

// PartReader reads a part by one API's names. It returns false for an unknown type.
type PartReader func(
	d *Dialogue, p *wire.Object, kind string, role restore.Role,
) (restore.Part, bool)

// Content reads a field with a message's text or parts.
func (d *Dialogue) Content(
	m *wire.Object, field string, role restore.Role, read PartReader,
) []restore.Part {
	raw := m.Raw(field)
	switch wire.Kind(raw) {
	case "a string":
		return []restore.Part{{Text: m.String(field)}}
	case "a list":
	default:
		m.Fail("invalid_type", field, "got %s, want a string or a list of parts",
			wire.Describe(raw))
		return nil
	}
	var parts []restore.Part
	for item := range m.List(field).Items() {
		if d.parts++; d.parts > maxParts+d.Front.MaxImages {
			m.Fail("invalid_value", field, "got more than %d parts in all messages, "+
				"want at most that", maxParts+d.Front.MaxImages)
			return nil
		}
		p := item.Object()
		if !p.Require("type", "the part's type") {
			continue
		}
		if part, ok := read(d, p, p.String("type"), role); ok {
			parts = append(parts, part)
		}
		Note(d.Call, p)
	}
	return parts
}

// Picture reads a picture whose URL is in the field of o. with holds detail and restore; nil if
// absent.
func (d *Dialogue) Picture(o *wire.Object, field string, with *wire.Object) restore.Part {
	pic, part := d.Call.Picture(o.Bytes(field), o.Path(field))
	if with != nil {
		d.Call.Detail(pic, with, d.Front)
		if x := with.Object("restore"); x != nil {
			pic.Layer(x)
		}
	}
	return part
}

// Add appends the message m.
func (d *Dialogue) Add(role restore.Role, parts []restore.Part, m *wire.Object) {
	d.last, d.lastPath = role, m.Path("role")
	switch role {
	case restore.System:
		d.System(Joined(parts))
		return
	case restore.User:
		if !slices.ContainsFunc(parts, func(p restore.Part) bool {
			return p.Text != "" || p.Picture != nil
		}) {
			m.Fail("invalid_value", "content",
				"got neither text nor a picture, want one of them in a user's message")
		}
	}
	if n := len(d.out); d.Join && n > 0 && d.out[n-1].Role == role {
		d.out[n-1].Parts = append(d.out[n-1].Parts, parts...)
		return
	}
	d.out = append(d.out, restore.Message{Role: role, Parts: parts})
}

// Joined returns the text of parts.
func Joined(parts []restore.Part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// End checks the whole dialogue and makes it the call's, with all system texts in one message.
func (d *Dialogue) End(o *wire.Object) {
	if n := len(d.Call.Shown); n > d.Front.MaxImages {
		o.Fail("too_many_images", d.Call.Field, "got %d pictures, want at most %d (--max-images)",
			n, d.Front.MaxImages)
	}
	if d.last != restore.User {
		o.Fail("unsupported_value", d.lastPath, "got %q in the last message, want a user's", d.last)
	}
	if text := strings.Join(d.system, "\n\n"); text != "" {
		d.out = slices.Insert(d.out, 0, SystemMessage(text))
	}
	d.Call.Messages = d.out
}
