package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"

	"github.com/restore-vlm/restore/internal/pytext"
)

// filter applies a filter to its operand; body is the operand of a filter block.
func (in *interp) filter(e *filterExpr, sc *scope, body value) value {
	x := body
	switch inner := e.x.(type) {
	case nil:
	case *filterExpr:
		x = in.filter(inner, sc, body)
	default:
		x = in.eval(inner, sc)
	}
	return in.applyFilter(e.name, x, in.args(e.args, sc, e.line))
}

func (in *interp) applyFilter(name string, x value, a args) value {
	f := filters[name]
	if f == nil {
		in.failf(a.line, "no filter %q", name)
	}
	in.charge(1, a.line)
	if s, ok := x.(Text); ok {
		in.charge(len(s.s)/bytesPerStep, a.line)
	}
	return f(in, x, in.params(name, a))
}

// filters are the supported filters. Those on text accept any value and use its text.
var filters map[string]func(in *interp, x value, p *params) value

func init() {
	type filter = func(in *interp, x value, p *params) value
	text := func(f func(in *interp, s Text, p *params) value) filter {
		return func(in *interp, x value, p *params) value { return f(in, in.text(x, p.a.line), p) }
	}
	runs := func(f func(string) string) filter {
		return text(func(_ *interp, s Text, p *params) value { p.done(); return s.mapRuns(f) })
	}
	choose := func(want, attribute bool) filter {
		return func(in *interp, x value, p *params) value {
			return in.choose(x, p, want, attribute)
		}
	}
	filters = map[string]filter{
		"upper": runs(upper), "lower": runs(pytext.Lower),
		"capitalize": text(func(_ *interp, s Text, p *params) value { return capitalize(s) }),
		"title":      text(func(_ *interp, s Text, p *params) value { return titleFilter(s) }),
		"string":     text(func(_ *interp, s Text, p *params) value { return s }),
		"safe":       text(func(_ *interp, s Text, p *params) value { return s }),
		"trim": text(func(_ *interp, s Text, p *params) value {
			return p.trim(s, true, true)
		}),
		"replace": text(func(in *interp, s Text, p *params) value {
			from, to := in.text(p.must("old"), p.a.line), in.text(p.must("new"), p.a.line)
			n := p.int("count", -1)
			p.done()
			return in.replace(s, from.s, to, n, p.a.line)
		}),
		"indent": func(in *interp, x value, p *params) value {
			s, ok := x.(Text)
			if !ok {
				in.failf(p.a.line, "indent: got %s, want a string", typeName(x))
			}
			return indentFilter(in, s, p)
		},
		"length": lengthFilter, "count": lengthFilter,
		"list": func(in *interp, x value, p *params) value {
			return &List{items: slices.Clone(in.items(x, p.a.line))}
		},
		"default": defaultFilter, "d": defaultFilter,
		"first": func(in *interp, x value, p *params) value {
			if g, ok := x.(*List); ok && g.kind == isGenerator && len(g.items) > 0 {
				v := g.items[0]
				g.items = g.items[1:]
				return v
			}
			if items := in.items(x, p.a.line); len(items) > 0 {
				return items[0]
			}
			return undefined{"no first item"}
		},
		"last": func(in *interp, x value, p *params) value {
			if items := in.items(x, p.a.line); len(items) > 0 {
				return items[len(items)-1]
			}
			return undefined{"no last item"}
		},
		"join": func(in *interp, x value, p *params) value {
			sep := in.text(p.value("d", Text{}), p.a.line)
			attribute, given := p.next("attribute")
			p.done()
			items := in.items(x, p.a.line)
			if given && attribute != nil {
				items = slices.Clone(items)
				for i := range items {
					items[i] = in.path(items[i], attribute, p.a.line)
				}
			}
			return in.join(items, sep, p.a.line)
		},
		"items": func(in *interp, x value, p *params) value {
			switch x := x.(type) {
			case undefined:
				return &List{kind: isGenerator}
			case *Dict:
				in.charge(4*len(x.keys), p.a.line)
				return dictItems(x, isGenerator)
			}
			in.failf(p.a.line, "items: got %s, want a dict", typeName(x))
			return nil
		},
		"dictsort": dictsortFilter,
		"reverse": func(in *interp, x value, p *params) value {
			if s, ok := x.(Text); ok {
				at := s.runes()
				in.charge(4*len(at), p.a.line)
				var b builder
				for i := len(at) - 2; i >= 0; i-- {
					b.add(s.Slice(at[i], at[i+1]))
				}
				return b.str()
			}
			items := slices.Clone(in.items(x, p.a.line))
			slices.Reverse(items)
			return &List{items: items, kind: isGenerator}
		},
		"select": choose(true, false), "reject": choose(false, false),
		"selectattr": choose(true, true), "rejectattr": choose(false, true),
		"map": mapFilter,
		"sort": func(in *interp, x value, p *params) value {
			descending, fold := p.bool("reverse"), !p.bool("case_sensitive")
			attribute, _ := p.next("attribute")
			p.done()
			items := slices.Clone(in.items(x, p.a.line))
			order := make([]int, len(items))
			keys := make([]value, len(items))
			for i, item := range items {
				order[i], keys[i] = i, in.sortKey(item, attribute, fold, p.a.line)
			}
			if descending { // stable in both directions
				slices.Reverse(order)
			}
			in.sortBy(order, func(i int) value { return keys[i] }, p.a.line)
			if descending {
				slices.Reverse(order)
			}
			out := make([]value, len(items))
			for i, j := range order {
				out[i] = items[j]
			}
			return &List{items: out}
		},
		"int": func(in *interp, x value, p *params) value {
			unset := p.value("default", int64(0))
			base := p.int("base", 10)
			p.done()
			in.wantDefined(x, p.a.line)
			return in.toInt(x, unset, base, p.a.line)
		},
		"float": func(in *interp, x value, p *params) value {
			unset := p.value("default", 0.0)
			p.done()
			in.wantDefined(x, p.a.line)
			return toFloat(x, unset)
		},
		"abs": func(in *interp, x value, p *params) value {
			p.done()
			switch v := x.(type) {
			case float64:
				return math.Abs(v)
			case bool:
				return in.unary("+", v, p.a.line)
			}
			if in.less(x, int64(0), p.a.line) {
				return in.unary("-", x, p.a.line)
			}
			return x
		},
		"min": extreme(func(in *interp, x, y value, line int) bool { return in.less(x, y, line) }),
		"max": extreme(func(in *interp, x, y value, line int) bool { return in.less(y, x, line) }),
		"sum": func(in *interp, x value, p *params) value {
			attribute, _ := p.next("attribute")
			sum := p.value("start", int64(0))
			p.done()
			for _, item := range in.items(x, p.a.line) {
				sum = in.binary("+", sum, in.sortKey(item, attribute, false, p.a.line), p.a.line)
			}
			return sum
		},
		"unique": func(in *interp, x value, p *params) value {
			fold := !p.bool("case_sensitive")
			attribute, _ := p.next("attribute")
			p.done()
			out, seen := &List{kind: isGenerator}, &List{}
			for _, item := range in.items(x, p.a.line) {
				key := in.sortKey(item, attribute, fold, p.a.line)
				if !in.contains(seen, key, p.a.line) {
					seen.items, out.items = append(seen.items, key), append(out.items, item)
				}
			}
			return out
		},
		"tojson": tojsonFilter,
	}
}

// extreme is min or max: the first item that no other comes before.
func extreme(
	before func(in *interp, x, y value, line int) bool,
) func(*interp, value, *params) value {
	return func(in *interp, x value, p *params) value {
		fold := !p.bool("case_sensitive")
		attribute, _ := p.next("attribute")
		p.done()
		var best, bestKey value = undefined{"no item, the list is empty"}, nil
		for i, item := range in.items(x, p.a.line) {
			key := in.sortKey(item, attribute, fold, p.a.line)
			if i == 0 || before(in, key, bestKey, p.a.line) {
				best, bestKey = item, key
			}
		}
		return best
	}
}

func toFloat(x, unset value) value {
	switch v := x.(type) {
	case bool, int64, float64:
		i, f, isInt, _ := toNumber(v)
		if isInt {
			return float64(i)
		}
		return f
	case Text:
		if f, ok := parseFloat(v.s); ok {
			return f
		}
	}
	return unset
}

// parseFloat is Python's float of a string, which has no hexadecimal.
func parseFloat(s string) (f float64, ok bool) {
	s, ok = numeral(s, "0123456789")
	f, err := strconv.ParseFloat(s, 64)
	if errors.Is(err, strconv.ErrRange) { // an infinity
		err = nil
	}
	return f, ok && err == nil && !strings.ContainsAny(s, "xXpP")
}

// numeral returns the text of a number without the white space around it and the underscores in it,
// its digits as ASCII. ok is false where Python allows no underscore: each is between two digits.
func numeral(s, digits string) (out string, ok bool) {
	s = strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII && pytext.IsDigit(r) {
			zero := r
			for zero > r-9 && pytext.IsDigit(zero-1) { // digits stand ten by ten
				zero--
			}
			return '0' + (r-zero)%10
		}
		return r
	}, strings.ToLower(strings.TrimFunc(s, pytext.IsSpace)))
	isDigit := func(i int) bool {
		return i >= 0 && i < len(s) && strings.IndexByte(digits, s[i]) >= 0
	}
	for i := range len(s) {
		if s[i] == '_' && (!isDigit(i-1) || !isDigit(i+1)) {
			return s, false
		}
	}
	return strings.ReplaceAll(s, "_", ""), true
}

// wantDefined fails if x is undefined.
func (in *interp) wantDefined(x value, line int) {
	if u, ok := x.(undefined); ok {
		in.failf(line, "%s", u.what)
	}
}

func lengthFilter(in *interp, x value, p *params) value {
	switch x := x.(type) {
	case Text:
		return int64(x.runeCount())
	case *Dict:
		return int64(len(x.keys))
	case undefined:
		return int64(0)
	case *List:
		if x.kind != isGenerator {
			return int64(len(x.items))
		}
	}
	in.failf(p.a.line, "length: got a value of type %s, want one with a length", typeName(x))
	return nil
}

func defaultFilter(in *interp, x value, p *params) value {
	unset := p.value("default_value", Text{})
	falsy := p.bool("boolean")
	p.done()
	if _, ok := x.(undefined); ok || falsy && !truth(x) {
		return unset
	}
	return x
}

func indentFilter(in *interp, s Text, p *params) value {
	width := p.value("width", int64(4))
	first, blank := p.bool("first"), p.bool("blank")
	p.done()
	pad, ok := width.(Text)
	if !ok {
		n, _, isInt, _ := toNumber(width)
		if !isInt || n < 0 || n > 1000 {
			in.failf(p.a.line, "indent: width: got %s, want an integer from 0 to 1000",
				in.short(width, p.a.line))
		}
		pad = Plain(strings.Repeat(" ", int(n)))
	}
	lines := Concat(s, Plain("\n")).lines(false)
	in.checkText(len(s.s)+times(len(lines), len(pad.s)), p.a.line)
	var b builder
	for i, line := range lines {
		if i > 0 {
			b.write("\n", false)
		}
		if i == 0 && first || i > 0 && (blank || line.s != "") {
			b.add(pad)
		}
		b.add(line)
	}
	return b.str()
}

// path looks up a dotted attribute, in which numbers are indices.
func (in *interp) path(x, attribute value, line int) value {
	s, ok := attribute.(Text)
	if !ok {
		return in.index(x, attribute, line)
	}
	for _, part := range strings.Split(s.s, ".") {
		if u, ok := x.(undefined); ok {
			in.failf(line, "%s", u.what)
		}
		if n, err := strconv.Atoi(part); err == nil && isDigit(part) {
			x = in.index(x, int64(n), line)
		} else {
			x = in.index(x, Plain(part), line)
		}
	}
	return x
}

// choose is select, reject, selectattr and rejectattr.
func (in *interp) choose(x value, p *params, want, attribute bool) value {
	var attr value
	if attribute {
		attr = p.must("attribute")
	}
	a := args{line: p.a.line}
	test := ""
	if v, ok := p.next("test"); ok {
		test = in.text(v, p.a.line).s
		a.pos = p.a.pos[p.at:]
		a.named = p.a.named
	}
	out := &List{kind: isGenerator}
	if !truth(x) { // none is empty here, as in the reference
		return out
	}
	for _, item := range in.items(x, p.a.line) {
		v := item
		if attribute {
			v = in.path(item, attr, p.a.line)
		}
		ok := truth(v)
		if test != "" {
			ok = in.test(test, v, a)
		}
		if ok == want {
			out.items = append(out.items, item)
		}
	}
	return out
}

func mapFilter(in *interp, x value, p *params) value {
	out := &List{kind: isGenerator}
	if !truth(x) { // none is empty here, as in the reference
		return out
	}
	items := in.items(x, p.a.line)
	if len(p.a.pos) == 0 {
		attribute := p.must("attribute")
		unset, hasDefault := p.next("default")
		p.done()
		for _, item := range items {
			v := in.path(item, attribute, p.a.line)
			if _, ok := v.(undefined); ok && hasDefault {
				v = unset
			}
			out.items = append(out.items, v)
		}
		return out
	}
	name := in.text(p.must("filter"), p.a.line).s
	for _, item := range items {
		out.items = append(out.items,
			in.applyFilter(name, item, args{p.a.pos[1:], p.a.named, p.a.line}))
	}
	return out
}

// sortKey returns the value by which x is sorted: the attribute if one is given, in lower case if
// fold is set.
func (in *interp) sortKey(x, attribute value, fold bool, line int) value {
	if attribute != nil {
		x = in.path(x, attribute, line)
	}
	if s, ok := x.(Text); ok && fold {
		in.charge(len(s.s)/bytesPerStep, line)
		return Plain(pytext.Lower(s.s))
	}
	return x
}

func (in *interp) sortBy(order []int, key func(i int) value, line int) {
	sort.SliceStable(order,
		func(i, j int) bool { return in.less(key(order[i]), key(order[j]), line) })
}

func dictsortFilter(in *interp, x value, p *params) value {
	fold := !p.bool("case_sensitive")
	by := p.str("by", "key").s
	descending := p.bool("reverse")
	p.done()
	d, ok := x.(*Dict)
	if !ok || by != "key" && by != "value" {
		in.failf(p.a.line, "dictsort: got %s by %q, want a Dict by key or value", typeName(x), by)
	}
	in.charge(4*len(d.keys), p.a.line)
	items := dictItems(d, isItems)
	attribute := int64(0)
	if by == "value" {
		attribute = 1
	}
	return filters["sort"](in, items, in.params("dictsort", args{
		pos: []value{descending, !fold, attribute}, line: p.a.line,
	}))
}

func (in *interp) toInt(x, unset value, base, line int) value {
	over := func() { in.failf(line, "int: integer overflow") }
	switch v := x.(type) {
	case bool, int64:
		i, _, _, _ := toNumber(v)
		return i
	case float64:
		switch {
		case math.Abs(v) < 1<<63:
			return int64(v)
		case !math.IsNaN(v):
			over()
		}
	case Text:
		// an underscore may also follow the base
		if s, ok := numeral(v.s, "0123456789abcdefghijklmnopqrstuvwxyz"); ok {
			i, err := parseInt(s, base)
			if err == nil {
				return i
			}
			if errors.Is(err, strconv.ErrRange) {
				over()
			}
		}
		if f, ok := parseFloat(v.s); ok && math.Abs(f) < 1<<63 {
			return int64(f)
		} else if ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
			over()
		}
	}
	return unset
}

// parseInt is Python's int of a string in lower case.
func parseInt(s string, base int) (int64, error) {
	sign, digits := "", s
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		sign, digits = s[:1], s[1:]
	}
	if base == 0 && strings.HasPrefix(digits, "0") && !strings.ContainsAny(digits, "xob") {
		if strings.Trim(digits, "0") != "" { // octal in Go
			return 0, strconv.ErrSyntax
		}
		base = 10
	}
	if base != 0 && (base < 2 || base > 36) {
		return 0, strconv.ErrSyntax
	}
	if prefix, ok := map[int]string{16: "0x", 8: "0o", 2: "0b"}[base]; ok {
		digits = strings.TrimPrefix(digits, prefix)
	}
	if strings.HasPrefix(digits, "-") || strings.HasPrefix(digits, "+") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(sign+digits, base, 64)
}

func tojsonFilter(in *interp, x value, p *params) value {
	// in the order of the reference's parameters
	ascii := p.bool("ensure_ascii")
	indent, _ := p.next("indent")
	separators, _ := p.next("separators")
	w := jsonWriter{
		in:       in,
		item:     ", ",
		colon:    ": ",
		sortKeys: p.bool("sort_keys"),
		line:     p.a.line,
	}
	p.done()
	switch v := indent.(type) {
	case nil:
	case Text:
		w.multiline, w.indent = true, v.s
	default:
		n, _, isInt, _ := toNumber(v)
		if !isInt || n > 100 {
			in.failf(p.a.line, "tojson: indent: got %s, want an integer up to 100",
				in.short(v, p.a.line))
		}
		w.multiline, w.indent = true, strings.Repeat(" ", int(max(n, 0)))
	}
	if w.multiline {
		w.item = ","
	}
	if separators != nil {
		pair := in.items(separators, p.a.line)
		if len(pair) != 2 {
			in.failf(p.a.line, "tojson: separators: got %d, want 2", len(pair))
		}
		w.item, w.colon = in.text(pair[0], p.a.line).s, in.text(pair[1], p.a.line).s
	}
	w.write(x, 0)
	out := w.b.str()
	in.checkText(len(out.s), p.a.line)
	if ascii {
		return out.mapRuns(escapeASCII)
	}
	return out
}

// escapeASCII writes characters outside ASCII as JSON escapes of UTF-16 units.
func escapeASCII(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return b.String()
}
