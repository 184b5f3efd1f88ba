package jinja

import (
	"fmt"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/pytext"
)

// args are a call's evaluated arguments.
type args struct {
	pos   []value
	named []named
	line  int
}

type named struct {
	name string
	v    value
}

func (in *interp) args(e arguments, sc *scope, line int) args {
	a := args{line: line}
	for _, p := range e.pos {
		a.pos = append(a.pos, in.eval(p, sc))
	}
	if e.star != nil {
		a.pos = append(a.pos, in.items(in.eval(e.star, sc), line)...)
	}
	for i, name := range e.names {
		a.named = append(a.named, named{name, in.eval(e.values[i], sc)})
	}
	if e.stars != nil {
		d, ok := in.eval(e.stars, sc).(*Dict)
		if !ok {
			in.failf(line, "**: want a dict")
		}
		for i, k := range d.keys {
			a.named = append(a.named, named{in.text(k, line).s, d.values[i]})
		}
	}
	return a
}

// params reads the arguments of filters, tests and functions: by position or name, each with a
// default.
type params struct {
	in   *interp
	what string
	a    args
	used []bool
	at   int
}

func (in *interp) params(what string, a args) *params {
	return &params{in: in, what: what, a: a, used: make([]bool, len(a.named))}
}

// next returns the next parameter; ok is false if it was not given.
func (p *params) next(name string) (v value, ok bool) {
	if p.at < len(p.a.pos) {
		p.at++
		return p.a.pos[p.at-1], true
	}
	for i, n := range p.a.named {
		if n.name == name {
			p.used[i] = true
			return n.v, true
		}
	}
	return nil, false
}

func (p *params) value(name string, unset value) value {
	if v, ok := p.next(name); ok {
		return v
	}
	return unset
}

func (p *params) must(name string) value {
	v, ok := p.next(name)
	if !ok {
		p.in.failf(p.a.line, "%s: %s missing", p.what, name)
	}
	return v
}

func (p *params) bool(name string) bool { return truth(p.value(name, false)) }

// whole returns an integer. Those that are too large to count anything are cut to ±2⁴⁰.
func (p *params) whole(name string, unset int64) int64 {
	v, ok := p.next(name)
	if !ok || v == nil {
		return unset
	}
	i, _, isInt, _ := toNumber(v)
	if !isInt {
		p.in.failf(p.a.line, "%s: %s: got %s, want int", p.what, name, typeName(v))
	}
	const limit = 1 << 40
	return min(max(i, -limit), limit)
}

// int returns a count, a width or a base: beyond every limit is as good as unlimited.
func (p *params) int(name string, unset int) int {
	return int(min(max(p.whole(name, int64(unset)), -unlimited), unlimited))
}

func (p *params) str(name, unset string) Text {
	v, ok := p.next(name)
	if !ok || v == nil {
		return Plain(unset)
	}
	s, ok := v.(Text)
	if !ok {
		p.in.failf(p.a.line, "%s: %s: got %s, want a string", p.what, name, typeName(v))
	}
	return s
}

// trim removes the characters that the parameter chars names, white space without it, from the ends
// of s.
func (p *params) trim(s Text, left, right bool) Text {
	v, _ := p.next("chars")
	p.done()
	switch cut := v.(type) {
	case nil:
		return s.trim("", left, right)
	case Text:
		if cut.s == "" {
			return s
		}
		return s.trim(cut.s, left, right)
	}
	p.in.failf(p.a.line, "%s: chars: got %s, want a string", p.what, typeName(v))
	return s
}

// done fails if an argument has not been read.
func (p *params) done() {
	if p.at < len(p.a.pos) {
		p.in.failf(p.a.line, "%s: got %d arguments, want at most %d", p.what, len(p.a.pos), p.at)
	}
	if i := slices.Index(p.used, false); i >= 0 {
		p.in.failf(p.a.line, "%s: unknown argument %q", p.what, p.a.named[i].name)
	}
}

// call calls a macro, function or method.
func (in *interp) call(f value, a args) value {
	in.charge(1, a.line)
	switch f := f.(type) {
	case *builtin:
		return f.f(in, a)
	case *macro:
		return in.callMacro(f, a)
	case undefined:
		in.failf(a.line, "%s", f.what)
	}
	in.failf(a.line, "a value of type %s cannot be called", typeName(f))
	return nil
}

func (in *interp) callMacro(m *macro, a args) value {
	if in.calls++; in.calls > maxCalls {
		in.failf(a.line, "macros call each other deeper than %d, want less", maxCalls)
	}
	defer func() { in.calls-- }()
	sc := m.scope.inner()
	p := in.params("macro "+m.def.name, a)
	required := len(m.def.params) - len(m.def.defaults)
	for i, name := range m.def.params {
		v, ok := p.next(name)
		switch {
		case ok:
		case i >= required:
			v = in.eval(m.def.defaults[i-required], sc)
		default:
			v = undefined{fmt.Sprintf("parameter %q was not provided", name)}
		}
		sc.vars[name] = v
	}
	sc.vars["varargs"] = &List{items: a.pos[p.at:], kind: isTuple}
	kwargs := NewDict()
	for i, n := range a.named {
		switch {
		case p.used[i]:
		case n.name == "caller":
			sc.vars["caller"] = n.v
		default:
			kwargs.set(Plain(n.name), n.v)
		}
	}
	sc.vars["kwargs"] = kwargs
	var b builder
	in.exec(&b, m.def.body, sc)
	return b.str()
}

// globals are the functions that every template has.
func globals() map[string]value {
	fs := map[string]func(*interp, args) value{
		"raise_exception": func(in *interp, a args) value {
			message := in.text(in.params("raise_exception", a).must("message"), a.line).s
			panic(renderError{&RaisedError{Line: a.line, Text: message}})
		},
		"namespace": func(in *interp, a args) value { return &namespace{in.makeDict(a)} },
		"dict":      func(in *interp, a args) value { return in.makeDict(a) },
		"range":     rangeFunc,
		"strftime_now": func(in *interp, a args) value {
			format := in.params("strftime_now", a).str("format", "")
			in.checkText(20*len(format.s), a.line)
			return format.like(strftime(in.now(), format.s))
		},
		"joiner": func(in *interp, a args) value {
			sep := in.params("joiner", a).str("sep", ", ")
			first := true
			return &builtin{func(*interp, args) value {
				if first {
					first = false
					return Text{}
				}
				return sep
			}}
		},
		"cycler": func(in *interp, a args) value {
			if len(a.pos) == 0 {
				in.failf(a.line, "cycler: no items given")
			}
			at := 0
			d := NewDict()
			set := func() { d.set(Plain("current"), a.pos[at]) }
			d.set(Plain("next"), &builtin{func(*interp, args) value {
				v := a.pos[at]
				at = (at + 1) % len(a.pos)
				set()
				return v
			}})
			d.set(Plain("reset"), &builtin{func(*interp, args) value {
				at = 0
				set()
				return nil
			}})
			set()
			return &namespace{d}
		},
	}
	m := make(map[string]value, len(fs))
	for name, f := range fs {
		m[name] = &builtin{f}
	}
	return m
}

func (in *interp) makeDict(a args) *Dict {
	d := NewDict()
	for _, p := range a.pos {
		if from, ok := p.(*Dict); ok {
			for i, k := range from.keys {
				d.set(k, from.values[i])
			}
			continue
		}
		for _, item := range in.items(p, a.line) {
			pair := in.items(item, a.line)
			if len(pair) != 2 {
				in.failf(a.line, "dict: got %d values, want a key and a value", len(pair))
			}
			if _, ok := key(pair[0]); !ok {
				in.failf(a.line, "dict: a value of type %s cannot be a key", typeName(pair[0]))
			}
			d.set(pair[0], pair[1])
		}
	}
	for _, n := range a.named {
		d.set(Plain(n.name), n.v)
	}
	in.charge(len(d.keys), a.line)
	return d
}

func rangeFunc(in *interp, a args) value {
	p := in.params("range", a)
	from, to, step := int64(0), p.whole("stop", 0), int64(1)
	if len(a.pos) > 1 {
		from, to, step = to, p.whole("stop", 0), p.whole("step", 1)
	}
	p.done()
	if step == 0 {
		in.failf(a.line, "range: got step 0, want another")
	}
	l := &List{kind: isRange}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		in.charge(4, a.line)
		l.items = append(l.items, i)
	}
	return l
}

// member returns a method or field of a value; ok is false if it has none with that name.
func (in *interp) member(x value, name string, line int) (v value, ok bool) {
	switch x := x.(type) {
	case Text:
		if f := stringMethods[name]; f != nil {
			return &builtin{func(in *interp, a args) value {
				in.checkText(len(x.s), a.line)
				return f(in, x, in.params(name, a))
			}}, true
		}
	case *Dict:
		if f := dictMethods[name]; f != nil {
			return &builtin{func(in *interp, a args) value {
				in.charge(len(x.keys), a.line)
				return f(in, x, in.params(name, a))
			}}, true
		}
		switch name {
		case "clear", "pop", "popitem", "setdefault", "update":
			in.failf(line, "%s: a template cannot change a dict", name)
		}
	case *List:
		switch name {
		case "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort":
			if x.kind == isList {
				in.failf(line, "%s: a template cannot change a list", name)
			}
		case "index", "count":
			return &builtin{func(in *interp, a args) value {
				want := in.params(name, a).must("value")
				n := int64(0)
				for i, item := range in.items(x, a.line) {
					if in.equal(item, want, a.line) {
						if name == "index" {
							return int64(i)
						}
						n++
					}
				}
				if name == "index" {
					in.failf(a.line, "index: the value is not in the list")
				}
				return n
			}}, true
		}
	case *namespace:
		return x.vars.name(name)
	case *loop:
		return in.loopMember(x, name)
	case *macro:
		if name == "name" {
			return Plain(x.def.name), true
		}
	}
	return nil, false
}

func (in *interp) loopMember(l *loop, name string) (value, bool) {
	n, i := int64(len(l.items)), int64(l.at)
	switch name {
	case "index":
		return i + 1, true
	case "index0":
		return i, true
	case "revindex":
		return n - i, true
	case "revindex0":
		return n - i - 1, true
	case "first":
		return i == 0, true
	case "last":
		return i == n-1, true
	case "length":
		return n, true
	case "depth":
		return int64(1), true
	case "depth0":
		return int64(0), true
	case "previtem":
		if i == 0 {
			return undefined{"there is no previous item"}, true
		}
		return l.items[i-1], true
	case "nextitem":
		if i == n-1 {
			return undefined{"there is no next item"}, true
		}
		return l.items[i+1], true
	case "cycle":
		return &builtin{func(in *interp, a args) value {
			if len(a.pos) == 0 {
				in.failf(a.line, "cycle: no items given")
			}
			return a.pos[l.at%len(a.pos)]
		}}, true
	case "changed":
		return &builtin{func(in *interp, a args) value {
			same := l.called && in.equal(&List{items: l.changed}, &List{items: a.pos}, a.line)
			l.called, l.changed = true, a.pos
			return !same
		}}, true
	}
	return nil, false
}

var dictMethods = map[string]func(in *interp, d *Dict, p *params) value{
	"keys":   func(in *interp, d *Dict, p *params) value { return &List{d.keys, isKeys} },
	"values": func(in *interp, d *Dict, p *params) value { return &List{d.values, isValues} },
	"items":  func(in *interp, d *Dict, p *params) value { return dictItems(d, isItems) },
	"copy": func(in *interp, d *Dict, p *params) value {
		return in.makeDict(args{pos: []value{d}, line: p.a.line})
	},
	"get": func(in *interp, d *Dict, p *params) value {
		k := p.must("key")
		unset := p.value("default", nil)
		p.done()
		if v, ok := d.get(k); ok {
			return v
		}
		return unset
	},
}

func dictItems(d *Dict, kind listKind) *List {
	l := &List{make([]value, len(d.keys)), kind}
	for i, k := range d.keys {
		l.items[i] = &List{items: []value{k, d.values[i]}, kind: isTuple}
	}
	return l
}

// stringMethods are the methods of Python's str that templates use. Methods that change letters
// work on runs with equal marks.
var stringMethods map[string]func(in *interp, s Text, p *params) value

func init() {
	type method = func(in *interp, s Text, p *params) value
	test := func(f func(s string) bool) method {
		return func(_ *interp, s Text, p *params) value { p.done(); return f(s.s) }
	}
	runs := func(f func(s string) string) method {
		return func(_ *interp, s Text, p *params) value { p.done(); return s.mapRuns(f) }
	}
	trim := func(left, right bool) method {
		return func(_ *interp, s Text, p *params) value { return p.trim(s, left, right) }
	}
	affix := func(f func(s, affix string) bool) method {
		return func(in *interp, s Text, p *params) value {
			v := p.must("prefix")
			p.done()
			if l, ok := v.(*List); ok {
				return slices.ContainsFunc(l.items,
					func(v value) bool { t, ok := v.(Text); return ok && f(s.s, t.s) })
			}
			t, ok := v.(Text)
			if !ok {
				in.failf(p.a.line, "%s: got %s, want a string", p.what, typeName(v))
			}
			return f(s.s, t.s)
		}
	}
	split := func(fromRight bool) method {
		return func(in *interp, s Text, p *params) value {
			sep, given := p.next("sep")
			n := p.int("maxsplit", -1)
			p.done()
			t, _ := sep.(Text)
			if given && sep != nil && t.s == "" {
				in.failf(p.a.line, "split: got an empty separator, want a string")
			}
			return in.strings(s.split(t.s, n, fromRight), p.a.line)
		}
	}
	find := func(last, must bool) method {
		return func(in *interp, s Text, p *params) value {
			sub := p.str("sub", "").s
			p.done()
			i := strings.Index(s.s, sub)
			if last {
				i = strings.LastIndex(s.s, sub)
			}
			if i < 0 {
				if must {
					in.failf(p.a.line, "%s: substring not found", p.what)
				}
				return int64(-1)
			}
			return int64(s.Slice(0, i).runeCount())
		}
	}
	pad := func(left, right bool) method {
		return func(in *interp, s Text, p *params) value {
			width := p.int("width", 0)
			fill := p.str("fillchar", " ")
			p.done()
			return in.pad(s, width, fill, left, right, p.a.line)
		}
	}
	partition := func(fromRight bool) method {
		return func(in *interp, s Text, p *params) value {
			sep := p.str("sep", "")
			p.done()
			i := strings.Index(s.s, sep.s)
			if fromRight {
				i = strings.LastIndex(s.s, sep.s)
			}
			parts := []value{s, Text{}, Text{}}
			switch {
			case sep.s == "":
				in.failf(p.a.line, "%s: got an empty separator, want a string", p.what)
			case i >= 0:
				parts = []value{
					s.Slice(0, i),
					s.Slice(i, i+len(sep.s)),
					s.Slice(i+len(sep.s), len(s.s)),
				}
			case fromRight:
				parts = []value{Text{}, Text{}, s}
			}
			return &List{items: parts, kind: isTuple}
		}
	}
	stringMethods = map[string]method{
		"upper": runs(upper), "lower": runs(pytext.Lower), "casefold": runs(fold),
		"title": runs(titleWords), "swapcase": runs(swapCase),
		"capitalize": func(_ *interp, s Text, p *params) value { p.done(); return capitalize(s) },
		"strip":      trim(true, true), "lstrip": trim(true, false), "rstrip": trim(false, true),
		"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
		"split": split(false), "rsplit": split(true),
		"find": find(false, false), "rfind": find(true, false),
		"index": find(false, true), "rindex": find(true, true),
		"center": pad(true, true), "ljust": pad(false, true), "rjust": pad(true, false),
		"partition": partition(false), "rpartition": partition(true),
		"isalpha": test(isAlpha), "isalnum": test(isAlnum), "isspace": test(isAllSpace),
		"isdigit": test(isDigit), "isdecimal": test(isDigit), "isnumeric": test(isDigit),
		"isupper": test(isUpper), "islower": test(isLower),
		"isascii": test(func(s string) bool {
			return !strings.ContainsFunc(s, func(r rune) bool { return r > 127 })
		}),
		"removeprefix": func(_ *interp, s Text, p *params) value {
			t := p.str("prefix", "").s
			if strings.HasPrefix(s.s, t) {
				return s.Slice(len(t), len(s.s))
			}
			return s
		},
		"removesuffix": func(_ *interp, s Text, p *params) value {
			t := p.str("suffix", "").s
			if strings.HasSuffix(s.s, t) {
				return s.Slice(0, len(s.s)-len(t))
			}
			return s
		},
		"replace": func(in *interp, s Text, p *params) value {
			from, to, n := p.str("old", ""), p.str("new", ""), p.int("count", -1)
			p.done()
			return in.replace(s, from.s, to, n, p.a.line)
		},
		"count": func(in *interp, s Text, p *params) value {
			sub := p.str("sub", "").s
			p.done()
			return int64(strings.Count(s.s, sub))
		},
		"join": func(in *interp, s Text, p *params) value {
			items := in.items(p.must("iterable"), p.a.line)
			p.done()
			for _, item := range items {
				if _, ok := item.(Text); !ok {
					in.failf(p.a.line, "join: got %s, want strings", typeName(item))
				}
			}
			return in.join(items, s, p.a.line)
		},
		"splitlines": func(in *interp, s Text, p *params) value {
			keep := p.bool("keepends")
			p.done()
			return in.strings(s.lines(keep), p.a.line)
		},
		"zfill": func(in *interp, s Text, p *params) value {
			width := p.int("width", 0)
			p.done()
			sign := 0
			if strings.HasPrefix(s.s, "-") || strings.HasPrefix(s.s, "+") {
				sign = 1
			}
			rest := in.pad(s.Slice(sign, len(s.s)), width-sign, Plain("0"), true, false, p.a.line)
			return Concat(s.Slice(0, sign), rest)
		},
		"format": func(in *interp, s Text, p *params) value { return in.format(s, p.a) },
	}
}

// strings makes a list of pieces.
func (in *interp) strings(pieces []Text, line int) *List {
	in.charge(4*len(pieces), line)
	l := &List{items: make([]value, len(pieces))}
	for i, p := range pieces {
		l.items[i] = p
	}
	return l
}

// replace checks the size before it replaces.
func (in *interp) replace(s Text, from string, to Text, n, line int) Text {
	count := strings.Count(s.s, from)
	if n >= 0 {
		count = min(count, n)
	}
	in.charge(times(count, 1+len(to.user)), line)
	in.checkText(len(s.s)+times(count, len(to.s)), line)
	return s.replace(from, to, n)
}

// join is Python's sep.join; it first converts items to text.
func (in *interp) join(items []value, sep Text, line int) Text {
	var b builder
	for i, item := range items {
		if i > 0 {
			in.emit(&b, sep, line)
		}
		in.emit(&b, in.text(item, line), line)
	}
	return b.str()
}

// pad fills s up to width runes. With both sides, the right side gets more if the left side had an
// odd count, as in Python's center.
func (in *interp) pad(s Text, width int, fill Text, left, right bool, line int) Text {
	if fill.runeCount() != 1 {
		in.failf(line, "got fill %q, want one character", fill.s)
	}
	n := width - s.runeCount()
	if n <= 0 {
		return s
	}
	in.checkText(len(s.s)+times(n, len(fill.s)), line)
	before, after := 0, 0
	switch {
	case left && right:
		before = n/2 + n&width&1
		after = n - before
	case left:
		before = n
	default:
		after = n
	}
	f := func(k int) Text { return fill.like(strings.Repeat(fill.s, k)) }
	return Concat(f(before), s, f(after))
}

// format is Python's str.format for fields that are empty, a number or a name.
func (in *interp) format(s Text, a args) Text {
	var b builder
	at, auto := 0, 0
	for at < len(s.s) {
		i := strings.IndexAny(s.s[at:], "{}")
		if i < 0 {
			break
		}
		in.emit(&b, s.Slice(at, at+i), a.line)
		at += i
		c := s.s[at]
		if at+1 < len(s.s) && s.s[at+1] == c {
			in.emit(&b, s.Slice(at, at+1), a.line)
			at += 2
			continue
		}
		end := strings.IndexByte(s.s[at:], '}')
		if c == '}' || end < 0 {
			in.failf(a.line, "format: got a single %q, want it doubled", c)
		}
		field := s.s[at+1 : at+end]
		at += end + 1
		var v value
		found := false
		var n int
		if field == "" {
			n, auto = auto, auto+1
			found = n < len(a.pos)
		} else if _, err := fmt.Sscanf(field, "%d", &n); err == nil && fmt.Sprint(n) == field {
			found = n >= 0 && n < len(a.pos)
		} else {
			for _, k := range a.named {
				if k.name == field {
					v, found = k.v, true
				}
			}
			if !found {
				in.failf(a.line, "format: got field %q, want one of the arguments", field)
			}
			in.emit(&b, in.text(v, a.line), a.line)
			continue
		}
		if !found {
			in.failf(a.line, "format: got field %q, want one of the arguments", field)
		}
		in.emit(&b, in.text(a.pos[n], a.line), a.line)
	}
	in.emit(&b, s.Slice(at, len(s.s)), a.line)
	return b.str()
}
