package wire

import (
	"encoding/json"
	"iter"
	"strconv"
)

// List is a list of a body. Its items are read one after another and not kept.
type List struct {
	o    *Object
	path string
	raw  json.RawMessage
	n    int
}

// List reads a list; nil where it is absent.
func (o *Object) List(name string) *List {
	raw := o.Raw(name)
	if raw == nil {
		return nil
	}
	return o.list(raw, o.Path(name))
}

func (o *Object) list(raw json.RawMessage, path string) *List {
	if Kind(raw) != "a list" {
		o.fail("invalid_type", path, "got %s, want a list", Describe(raw))
		return nil
	}
	l := &List{o: o, path: path, raw: raw}
	for range l.Items() {
		l.n++
	}
	return l
}

// Len returns the number of items, 0 of a list that is absent.
func (l *List) Len() int {
	if l == nil {
		return 0
	}
	return l.n
}

// Items returns the items, none of a list that is absent.
func (l *List) Items() iter.Seq[Item] {
	return func(yield func(Item) bool) {
		if l == nil {
			return
		}
		s := l.o.body.scanner(l.raw)
		s.space()
		i := 0
		s.members(']', func() bool {
			item := Item{list: l, i: i, raw: s.next()}
			i++
			return yield(item)
		})
	}
}

// First returns the first item of a list that has one.
func (l *List) First() (first Item) {
	for first = range l.Items() {
		break
	}
	return first
}

// Item is an item of a list.
type Item struct {
	list *List
	i    int
	raw  json.RawMessage
}

// Path returns the path of the item.
func (t Item) Path() string { return t.list.path + "[" + strconv.Itoa(t.i) + "]" }

// Raw returns the item as it was written.
func (t Item) Raw() json.RawMessage { return t.raw }

// Object reads an item that is an object.
func (t Item) Object() *Object { return t.list.o.child(t.raw, t.Path()) }

// List reads an item that is a list.
func (t Item) List() *List { return t.list.o.list(t.raw, t.Path()) }

// Text reads an item that is a string.
func (t Item) Text() string { return string(t.Bytes()) }

// Bytes reads an item like Text. The bytes may be part of the body.
func (t Item) Bytes() []byte {
	s, ok := t.list.o.body.bytes(t.raw)
	if !ok {
		t.Fail("invalid_type", "got %s, want a string", Describe(t.raw))
	}
	return s
}

// Int reads an item that is a whole number between least and most.
func (t Item) Int(least, most int64) int64 {
	n, _ := integer(t.raw, least, most, t.Fail)
	return n
}

// Float reads an item that is a number between least and most.
func (t Item) Float(least, most float64) float64 {
	v, _ := float(t.raw, least, most, false, t.Fail)
	return v
}

// Fail records an error about the item.
func (t Item) Fail(code, format string, args ...any) {
	t.list.o.fail(code, t.Path(), format, args...)
}
