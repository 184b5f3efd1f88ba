package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// value is the value of an expression: nil (none), bool, int64, float64, Text, undefined, *List,
// *Dict, *namespace, *loop, *macro or *builtin.
type value any

// undefined is a missing name, key or attribute. It prints as nothing and is false; most other uses
// are an error, which what explains.
type undefined struct{ what string }

// List is any sequence. The views of a dict have no indices; a generator, which filters return, can
// be read once and has no length either.
type List struct {
	items []value
	kind  listKind
}

type listKind uint8

const (
	isList listKind = iota
	isTuple
	isRange
	isKeys
	isValues
	isItems
	isGenerator
)

var listNames = [...]string{
	"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator",
}

// Dict is a mapping that keeps the order of insertion.
type Dict struct {
	keys, values []value
	index        map[any]int
}

// namespace is the only object that a template can change.
type namespace struct{ vars *Dict }

// macro is a macro with the scope in which it was defined.
type macro struct {
	def   *macroDef
	scope *scope
}

// builtin is a built-in function or method.
type builtin struct {
	f func(in *interp, a args) value
}

// NewDict returns an empty dict, which keeps the order in which keys are set.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// key returns the map key for a value; ok is false for values that cannot be keys.
func key(v value) (k any, ok bool) {
	switch v := v.(type) {
	case Text:
		return v.s, true
	case bool:
		if v {
			return int64(1), true
		}
		return int64(0), true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return int64(v), true
		}
		return v, true
	case int64, nil:
		return v, true
	}
	return nil, false
}

func (d *Dict) get(v value) (value, bool) {
	k, ok := key(v)
	if !ok {
		return nil, false
	}
	i, ok := d.index[k]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

func (d *Dict) name(name string) (value, bool) { return d.get(Plain(name)) }

// set stores v under k, which must be a possible key.
func (d *Dict) set(k, v value) {
	id, _ := key(k)
	if i, ok := d.index[id]; ok {
		d.values[i] = v
		return
	}
	d.index[id] = len(d.keys)
	d.keys = append(d.keys, k)
	d.values = append(d.values, v)
}

// typeName returns the type's name for error messages.
func typeName(v value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64:
		return "int"
	case float64:
		return "float"
	case Text:
		return "str"
	case undefined:
		return "undefined"
	case *List:
		return listNames[v.kind]
	case *Dict:
		return "dict"
	case *namespace:
		return "namespace"
	case *loop:
		return "loop"
	}
	return "function"
}

// truth is Python's bool().
func truth(v value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case Text:
		return v.s != ""
	case *List:
		return v.kind == isGenerator || len(v.items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// toNumber returns v as a number: i when isInt, f always.
func toNumber(v value) (i int64, f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, true, true
		}
		return 0, 0, true, true
	case int64:
		return v, float64(v), true, true
	case float64:
		return 0, v, false, true
	}
	return 0, 0, false, false
}

// equal is Python's ==.
func (in *interp) equal(x, y value, line int) bool {
	in.charge(1, line)
	if xi, xf, xIsInt, ok := toNumber(x); ok {
		yi, yf, yIsInt, ok := toNumber(y)
		if xIsInt && yIsInt {
			return ok && xi == yi
		}
		return ok && xf == yf
	}
	switch x := x.(type) {
	case nil:
		return y == nil
	case Text:
		y, ok := y.(Text)
		if !ok || len(x.s) != len(y.s) {
			return false
		}
		in.charge(len(x.s)/bytesPerStep, line)
		return x.s == y.s
	case undefined:
		_, ok := y.(undefined)
		return ok
	case *List:
		y, ok := y.(*List)
		if ok &&
			(x == y || x.kind != isGenerator && x.kind == y.kind && len(x.items) == len(y.items)) {
			for i := range x.items {
				if !in.equal(x.items[i], y.items[i], line) {
					return false
				}
			}
			return true
		}
		return false
	case *Dict:
		y, ok := y.(*Dict)
		if !ok || len(x.keys) != len(y.keys) {
			return false
		}
		for i, k := range x.keys {
			if v, ok := y.get(k); !ok || !in.equal(x.values[i], v, line) {
				return false
			}
		}
		return true
	}
	return x == y
}

// less is Python's <; it fails for types that have no order.
func (in *interp) less(x, y value, line int) bool {
	in.charge(1, line)
	xi, xf, xIsInt, xOK := toNumber(x)
	yi, yf, yIsInt, yOK := toNumber(y)
	if xOK && yOK {
		if xIsInt && yIsInt {
			return xi < yi
		}
		return xf < yf
	}
	if xs, ok := x.(Text); ok {
		if ys, ok := y.(Text); ok {
			in.charge(min(len(xs.s), len(ys.s))/bytesPerStep, line)
			return xs.s < ys.s // UTF-8 sorts in the order of code points
		}
	}
	if xl, ok := x.(*List); ok {
		if yl, ok := y.(*List); ok && xl.kind == yl.kind && xl.kind <= isTuple {
			for i := range min(len(xl.items), len(yl.items)) {
				if !in.equal(xl.items[i], yl.items[i], line) {
					return in.less(xl.items[i], yl.items[i], line)
				}
			}
			return len(xl.items) < len(yl.items)
		}
	}
	in.failf(line, "cannot order %s and %s", typeName(x), typeName(y))
	return false
}

// text is Python's str().
func (in *interp) text(v value, line int) Text {
	switch v := v.(type) {
	case Text:
		return v
	case undefined:
		return Text{}
	}
	var b builder
	in.repr(&b, v, line, 0)
	return b.str()
}

// repr is Python's repr(), with the marks of the strings in it.
func (in *interp) repr(b *builder, v value, line, depth int) {
	in.charge(1, line)
	if depth > maxNesting {
		in.failf(line, "value nested deeper than %d, want less", maxNesting)
	}
	switch v := v.(type) {
	case nil:
		b.write("None", false)
	case bool:
		if v {
			b.write("True", false)
		} else {
			b.write("False", false)
		}
	case int64:
		b.write(strconv.FormatInt(v, 10), false)
	case float64:
		b.write(formatFloat(v), false)
	case undefined:
		b.write("Undefined", false)
	case Text:
		in.charge(len(v.s)/bytesPerStep, line)
		reprString(b, v)
	case *List:
		open, end := "[", "]"
		switch v.kind {
		case isTuple:
			open, end = "(", ")"
		case isGenerator:
			b.write("<generator object>", false)
			return
		case isRange:
			in.reprRange(b, v)
			return
		case isKeys, isValues, isItems:
			open, end = listNames[v.kind]+"([", "])"
		}
		b.write(open, false)
		for i, item := range v.items {
			if i > 0 {
				b.write(", ", false)
			}
			in.repr(b, item, line, depth+1)
		}
		if v.kind == isTuple && len(v.items) == 1 {
			b.write(",", false)
		}
		b.write(end, false)
	case *Dict:
		b.write("{", false)
		for i, k := range v.keys {
			if i > 0 {
				b.write(", ", false)
			}
			in.repr(b, k, line, depth+1)
			b.write(": ", false)
			in.repr(b, v.values[i], line, depth+1)
		}
		b.write("}", false)
	case *namespace:
		b.write("<Namespace ", false)
		in.repr(b, v.vars, line, depth+1)
		b.write(">", false)
	case *macro:
		fmt.Fprintf(discardMarks{b}, "<Macro '%s'>", v.def.name)
	default:
		b.write("<"+typeName(v)+">", false)
	}
}

// discardMarks writes to a builder as text of the template.
type discardMarks struct{ b *builder }

func (d discardMarks) Write(p []byte) (int, error) {
	d.b.write(string(p), false)
	return len(p), nil
}

func (in *interp) reprRange(b *builder, v *List) {
	from, step := int64(0), int64(1)
	if len(v.items) > 0 {
		from = v.items[0].(int64)
	}
	if len(v.items) > 1 {
		step = v.items[1].(int64) - from
	}
	fmt.Fprintf(discardMarks{b}, "range(%d, %d", from, from+step*int64(len(v.items)))
	if step != 1 {
		fmt.Fprintf(discardMarks{b}, ", %d", step)
	}
	b.write(")", false)
}

// reprString writes a string literal with Python's choice of quotes and escapes.
func reprString(b *builder, v Text) {
	quote := "'"
	if strings.Contains(v.s, "'") && !strings.Contains(v.s, `"`) {
		quote = `"`
	}
	escape := func(s string) string {
		var e strings.Builder
		for _, r := range s {
			switch {
			case r == '\n':
				e.WriteString(`\n`)
			case r == '\r':
				e.WriteString(`\r`)
			case r == '\t':
				e.WriteString(`\t`)
			case r == '\\' || string(r) == quote:
				e.WriteByte('\\')
				e.WriteRune(r)
			case unicode.IsPrint(r):
				e.WriteRune(r)
			case r < 0x100:
				fmt.Fprintf(&e, `\x%02x`, r)
			case r < 0x10000:
				fmt.Fprintf(&e, `\u%04x`, r)
			default:
				fmt.Fprintf(&e, `\U%08x`, r)
			}
		}
		return e.String()
	}
	b.write(quote, false)
	b.add(v.mapRuns(escape))
	b.write(quote, false)
}

// formatFloat is Python's repr of a float: the shortest digits that give the same value, with an
// exponent below 1e-4 and from 1e16.
func formatFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// FromJSON returns the value of JSON text. Its strings are marked as the caller's, objects keep
// their order, and integers beyond 64 bits become floats.
func FromJSON(raw json.RawMessage) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err == nil {
		return nil, fmt.Errorf("got more than one JSON value, want one")
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (value, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("got JSON nested deeper than %d, want less", maxNesting)
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case string:
		return FromUser(t), nil
	case json.Number:
		if i, err := strconv.ParseInt(string(t), 10, 64); err == nil {
			return i, nil
		}
		f, err := t.Float64()
		if err != nil {
			return nil, fmt.Errorf("got number %s, want one that fits 64 bits", t)
		}
		return f, nil
	case bool:
		return t, nil
	case json.Delim:
		if t == '[' {
			l := &List{}
			for d.More() {
				v, err := decodeValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.items = append(l.items, v)
			}
			_, err := d.Token()
			return l, err
		}
		m := NewDict()
		for d.More() {
			k, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			m.set(k, v)
		}
		_, err := d.Token()
		return m, err
	}
	return nil, nil // null
}

// jsonWriter is json.dumps with ensure_ascii off, with the separators item and colon, and with a
// newline and indent per level if multiline is set.
type jsonWriter struct {
	in          *interp
	b           builder
	indent      string // of one level; newlines only when multiline
	multiline   bool
	item, colon string
	sortKeys    bool
	line        int
}

func (w *jsonWriter) write(v value, depth int) {
	w.in.charge(1, w.line)
	if depth > maxNesting {
		w.in.failf(w.line, "tojson: value nested deeper than %d, want less", maxNesting)
	}
	switch v := v.(type) {
	case nil:
		w.b.write("null", false)
	case bool:
		w.b.write(strconv.FormatBool(v), false)
	case int64:
		w.b.write(strconv.FormatInt(v, 10), false)
	case float64:
		s := formatFloat(v)
		if t, ok := map[string]string{"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}[s]; ok {
			s = t
		}
		w.b.write(s, false)
	case Text:
		w.in.charge(len(v.s)/bytesPerStep, w.line)
		w.quote(v)
	case *List:
		if v.kind > isTuple {
			w.in.failf(w.line, "tojson: got a %s, want a value that JSON has", typeName(v))
		}
		w.b.write("[", false)
		for i, item := range v.items {
			w.next(i, depth+1)
			w.write(item, depth+1)
		}
		w.last(len(v.items), depth)
		w.b.write("]", false)
	case *Dict:
		order := make([]int, len(v.keys))
		for i := range order {
			order[i] = i
		}
		if w.sortKeys {
			w.in.sortBy(order, func(i int) value { return v.keys[i] }, w.line)
		}
		w.b.write("{", false)
		for n, i := range order {
			w.next(n, depth+1)
			switch k := v.keys[i].(type) {
			case Text:
				w.quote(k)
			case bool, int64, float64, nil:
				inner := jsonWriter{in: w.in, line: w.line}
				inner.write(k, depth)
				w.quote(inner.b.str())
			}
			w.b.write(w.colon, false)
			w.write(v.values[i], depth+1)
		}
		w.last(len(v.keys), depth)
		w.b.write("}", false)
	default:
		w.in.failf(w.line, "tojson: got a value of type %s, want one that JSON has", typeName(v))
	}
}

func (w *jsonWriter) next(i, depth int) {
	if i > 0 {
		w.b.write(w.item, false)
	}
	w.newline(depth)
}

func (w *jsonWriter) last(n, depth int) {
	if n > 0 {
		w.newline(depth)
	}
}

func (w *jsonWriter) newline(depth int) {
	if w.multiline {
		w.in.charge(times(depth, len(w.indent))/bytesPerStep, w.line)
		w.b.write("\n"+strings.Repeat(w.indent, depth), false)
	}
}

func (w *jsonWriter) quote(v Text) {
	w.b.write(`"`, false)
	w.b.add(v.mapRuns(escapeJSON))
	w.b.write(`"`, false)
}

func escapeJSON(s string) string {
	var e strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if j := strings.IndexByte("\"\\\n\r\t\b\f", c); j >= 0 {
			e.WriteByte('\\')
			e.WriteByte(`"\nrtbf`[j])
		} else if c < ' ' {
			fmt.Fprintf(&e, `\u%04x`, c)
		} else {
			e.WriteByte(c)
		}
	}
	return e.String()
}
