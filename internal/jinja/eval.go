package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Limits of a template. A chat template needs a few thousand steps for a conversation; a hostile
// one reaches a limit within a second.
const (
	maxSteps     = 4 << 20 // evaluated nodes, created items, and bytesPerStep bytes of text each
	bytesPerStep = 16
	maxText      = 16 << 20 // bytes of one string, and of the output
	maxCalls     = 64       // macros inside macros
)

// unlimited is a number beyond all limits, and small enough for sums of it in 32 bits.
const unlimited = 1 << 29

// times returns x·y, at most unlimited. The product of two sizes that are within their limits need
// not fit in 32 bits.
func times(x, y int) int { return int(min(int64(x)*int64(y), unlimited)) }

// scope is a frame of variables. Names are looked up from the innermost frame outwards.
type scope struct {
	vars  map[string]value
	outer *scope
}

func (s *scope) inner() *scope { return &scope{map[string]value{}, s} }

func (s *scope) find(name string) (value, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

// interp runs one rendering.
type interp struct {
	steps int
	calls int
	now   func() time.Time
}

// renderError is raised in the interpreter as a panic and caught by run.
type renderError struct{ error }

// RaisedError is returned when a template refuses its values by raise_exception.
type RaisedError struct {
	Line int // 0: not known
	Text string
}

// Error is the template's text.
func (e *RaisedError) Error() string { return atLine(e.Line, "raised by the template: "+e.Text) }

func (in *interp) failf(line int, format string, args ...any) {
	panic(renderError{errors.New(atLine(line, fmt.Sprintf(format, args...)))})
}

func atLine(line int, text string) string {
	if line <= 0 { // not always known
		return text
	}
	return fmt.Sprintf("line %d: %s", line, text)
}

// charge counts n steps.
func (in *interp) charge(n, line int) {
	if in.steps += n; in.steps > maxSteps {
		in.failf(line, "the template takes more than %d steps", maxSteps)
	}
}

// checkText fails unless a string may have n bytes, and charges the steps for creating it.
func (in *interp) checkText(n, line int) {
	if n > maxText {
		in.failf(line, "text of more than %d bytes", maxText)
	}
	in.charge(n/bytesPerStep, line)
}

// run executes a template's statements and returns its output.
func (in *interp) run(body []stmt, globals map[string]value) (out Text, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(renderError)
			if !ok {
				panic(r)
			}
			err = e.error
		}
	}()
	var b builder
	in.exec(&b, body, (&scope{vars: globals}).inner())
	return b.str(), nil
}

// flow tells how a block ended.
type flow uint8

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

func (in *interp) exec(b *builder, body []stmt, sc *scope) flow {
	for _, s := range body {
		switch s := s.(type) {
		case dataStmt:
			in.emit(b, s.text, 0)
		case outStmt:
			in.emit(b, in.text(in.eval(s.e, sc), s.line), s.line)
		case ifStmt:
			branch := s.els
			in.charge(1, s.line)
			if truth(in.eval(s.cond, sc)) {
				branch = s.then
			}
			if f := in.exec(b, branch, sc); f != flowNext {
				return f
			}
		case forStmt:
			if f := in.execFor(b, s, sc); f != flowNext {
				return f
			}
		case setStmt:
			var v value
			if s.value != nil {
				v = in.eval(s.value, sc)
			} else {
				var text builder
				in.exec(&text, s.body, sc.inner())
				v = text.str()
				if s.filter != nil {
					v = in.filter(s.filter, sc, v)
				}
			}
			in.assign(s.target, v, sc, s.line)
		case macroStmt:
			sc.vars[s.m.name] = &macro{s.m, sc}
		case callStmt:
			f := in.eval(s.call.f, sc)
			a := in.args(s.call.args, sc, s.line)
			a.named = append(a.named, named{"caller", &macro{s.caller, sc}})
			in.emit(b, in.text(in.call(f, a), s.line), s.line)
		case filterStmt:
			var text builder
			in.exec(&text, s.body, sc.inner())
			in.emit(b, in.text(in.filter(s.filter, sc, text.str()), s.line), s.line)
		case withStmt:
			inner := sc.inner()
			values := make([]value, len(s.values))
			for i, e := range s.values {
				values[i] = in.eval(e, sc)
			}
			for i, t := range s.targets {
				in.assign(t, values[i], inner, s.line)
			}
			if f := in.exec(b, s.body, inner); f != flowNext {
				return f
			}
		case breakStmt:
			return flowBreak
		case continueStmt:
			return flowContinue
		}
	}
	return flowNext
}

func (in *interp) emit(b *builder, t Text, line int) {
	in.charge(1+len(t.s)/bytesPerStep, line)
	if len(b.b)+len(t.s) > maxText {
		in.failf(line, "output of more than %d bytes", maxText)
	}
	b.add(t)
}

// loop is the variable loop in a for body.
type loop struct {
	items   []value
	at      int
	changed []value
	called  bool
}

func (in *interp) execFor(b *builder, s forStmt, sc *scope) flow {
	items := in.items(in.eval(s.iter, sc), s.line)
	if s.cond != nil {
		var kept []value
		for _, item := range items {
			inner := sc.inner()
			in.assign(s.target, item, inner, s.line)
			if truth(in.eval(s.cond, inner)) {
				kept = append(kept, item)
			}
		}
		items = kept
	}
	l, ended := &loop{items: items}, false // whether any pass reached its end
	for i, item := range items {
		in.charge(1, s.line)
		l.at = i
		inner := sc.inner()
		inner.vars["loop"] = l
		in.assign(s.target, item, inner, s.line)
		f := in.exec(b, s.body, inner)
		if f == flowBreak {
			break
		}
		ended = ended || f == flowNext
	}
	if !ended {
		return in.exec(b, s.els, sc.inner())
	}
	return flowNext
}

func (in *interp) assign(t target, v value, sc *scope, line int) {
	switch {
	case t.many != nil:
		items := in.items(v, line)
		if len(items) != len(t.many) {
			in.failf(line, "got %d values to unpack, want %d", len(items), len(t.many))
		}
		for i := range items {
			in.assign(t.many[i], items[i], sc, line)
		}
	case t.attr != "":
		x, _ := sc.find(t.name)
		ns, ok := x.(*namespace)
		if !ok {
			in.failf(line, "cannot assign to an attribute of %q, want a namespace", t.name)
		}
		ns.vars.set(Plain(t.attr), v)
	default:
		sc.vars[t.name] = v
	}
}

// items returns the items of an iteration over v. A generator is empty afterwards.
func (in *interp) items(v value, line int) []value {
	switch v := v.(type) {
	case *List:
		items := v.items
		if v.kind == isGenerator {
			v.items = nil
		}
		in.charge(len(items), line)
		return items
	case *Dict:
		in.charge(len(v.keys), line)
		return v.keys
	case Text:
		at := v.runes()
		in.charge(4*len(at), line)
		items := make([]value, len(at)-1)
		for i := range items {
			items[i] = v.Slice(at[i], at[i+1])
		}
		return items
	case undefined:
		return nil
	}
	in.failf(line, "got a value of type %s, want one to iterate over", typeName(v))
	return nil
}

// eval returns the value of an expression.
func (in *interp) eval(e expr, sc *scope) value {
	in.charge(1, 0)
	switch e := e.(type) {
	case *literal:
		return e.v
	case *nameExpr:
		if v, ok := sc.find(e.name); ok {
			return v
		}
		return undefined{fmt.Sprintf("%q is undefined", e.name)}
	case *listExpr:
		l := &List{items: make([]value, len(e.items))}
		if e.tuple {
			l.kind = isTuple
		}
		for i, item := range e.items {
			l.items[i] = in.eval(item, sc)
		}
		return l
	case *dictExpr:
		d := NewDict()
		for i := range e.keys {
			k := in.eval(e.keys[i], sc)
			if _, ok := key(k); !ok {
				in.failf(0, "a value of type %s cannot be a key", typeName(k))
			}
			d.set(k, in.eval(e.values[i], sc))
		}
		return d
	case *attrExpr:
		return in.attr(in.eval(e.x, sc), e.name, e.line)
	case *indexExpr:
		return in.index(in.eval(e.x, sc), in.eval(e.index, sc), e.line)
	case *sliceExpr:
		return in.slice(e, sc)
	case *callExpr:
		f := in.eval(e.f, sc)
		return in.call(f, in.args(e.args, sc, e.line))
	case *filterExpr:
		return in.filter(e, sc, nil)
	case *testExpr:
		x := in.eval(e.x, sc)
		return in.test(e.name, x, in.args(e.args, sc, e.line))
	case *unaryExpr:
		return in.unary(e.op, in.eval(e.x, sc), e.line)
	case *binaryExpr:
		x := in.eval(e.x, sc)
		switch {
		case e.op == "and" && !truth(x), e.op == "or" && truth(x):
			return x
		case e.op == "and", e.op == "or":
			return in.eval(e.y, sc)
		}
		return in.binary(e.op, x, in.eval(e.y, sc), e.line)
	case *compareExpr:
		x := in.eval(e.x, sc)
		for i, op := range e.ops {
			y := in.eval(e.ys[i], sc)
			if !in.compare(op, x, y, e.line) {
				return false
			}
			x = y
		}
		return true
	case *condExpr:
		if truth(in.eval(e.cond, sc)) {
			return in.eval(e.then, sc)
		}
		if e.els == nil {
			return undefined{"the condition is false and there is no else"}
		}
		return in.eval(e.els, sc)
	}
	return nil
}

// attr is x.name: first a method or field, then a key.
func (in *interp) attr(x value, name string, line int) value {
	if v, ok := in.member(x, name, line); ok {
		return v
	}
	if d, ok := x.(*Dict); ok {
		if v, ok := d.name(name); ok {
			return v
		}
	}
	if u, ok := x.(undefined); ok {
		in.failf(line, "%s", u.what)
	}
	return undefined{fmt.Sprintf("%s object has no attribute %q", typeName(x), name)}
}

// index is x[i]: first an element, then an attribute.
func (in *interp) index(x, i value, line int) value {
	switch x := x.(type) {
	case undefined:
		in.failf(line, "%s", x.what)
	case *Dict:
		if v, ok := x.get(i); ok {
			return v
		}
	case *List, Text:
		n, _, isInt, _ := toNumber(i)
		if !isInt {
			break
		}
		var at []int
		var size int
		if s, ok := x.(Text); ok {
			at = s.runes()
			in.charge(len(at), line)
			size = len(at) - 1
		} else if l := x.(*List); l.kind < isKeys {
			size = len(l.items)
		}
		if n < 0 {
			n += int64(size)
		}
		if n >= 0 && n < int64(size) {
			if s, ok := x.(Text); ok {
				return s.Slice(at[n], at[n+1])
			}
			return x.(*List).items[n]
		}
	}
	if name, ok := i.(Text); ok {
		if v, ok := in.member(x, name.s, line); ok {
			return v
		}
	}
	return undefined{fmt.Sprintf("%s object has no element %s", typeName(x), in.short(i, line))}
}

// short returns the beginning of a value's repr, for messages.
func (in *interp) short(v value, line int) string {
	var b builder
	if s, ok := v.(Text); ok {
		v = Plain(s.s[:min(len(s.s), 60)])
	}
	in.repr(&b, v, line, 0)
	return string(b.b[:min(len(b.b), 80)])
}

// bounds resolves a slice over n elements: count indices from, from+step, ….
func (in *interp) bounds(parts [3]value, n, line int) (from, step, count int) {
	var v [3]int64
	for i, p := range parts {
		if p == nil {
			continue
		}
		k, _, isInt, ok := toNumber(p)
		if !ok || !isInt {
			in.failf(line, "slice: got an index of type %s, want int", typeName(p))
		}
		v[i] = min(max(k, -1<<40), 1<<40)
	}
	size := int64(n)
	s := int64(1)
	if parts[2] != nil {
		if s = v[2]; s == 0 {
			in.failf(line, "slice: got step 0, want another")
		}
	}
	lo, hi := int64(0), size // range of possible indices
	if s < 0 {
		lo, hi = -1, size-1
	}
	clamp := func(i int, unset int64) int64 {
		if parts[i] == nil {
			return unset
		}
		k := v[i]
		if k < 0 {
			k += size
		}
		return min(max(k, lo), hi)
	}
	a, b := clamp(0, lo), clamp(1, hi)
	if s < 0 {
		a, b = clamp(0, hi), clamp(1, lo)
	}
	switch {
	case s > 0 && a < b:
		count = int((b - a + s - 1) / s)
	case s < 0 && a > b:
		count = int((a - b - s - 1) / -s)
	}
	return int(a), int(s), count
}

func (in *interp) slice(e *sliceExpr, sc *scope) value {
	x := in.eval(e.x, sc)
	var parts [3]value
	for i, p := range []expr{e.from, e.to, e.step} {
		if p != nil {
			parts[i] = in.eval(p, sc)
		}
	}
	switch x := x.(type) {
	case Text:
		at := x.runes()
		in.charge(len(at), e.line)
		from, step, count := in.bounds(parts, len(at)-1, e.line)
		if step == 1 && count > 0 {
			return x.Slice(at[from], at[from+count])
		}
		in.charge(4*count, e.line)
		var b builder
		for i := range count {
			b.add(x.Slice(at[from+i*step], at[from+i*step+1]))
		}
		return b.str()
	case *List:
		if x.kind >= isKeys {
			break
		}
		from, step, count := in.bounds(parts, len(x.items), e.line)
		in.charge(count, e.line)
		out := &List{items: make([]value, count), kind: x.kind}
		for i := range out.items {
			out.items[i] = x.items[from+i*step]
		}
		return out
	case undefined:
		in.failf(e.line, "%s", x.what)
	}
	in.failf(e.line, "slice: got a value of type %s, want a string or list", typeName(x))
	return nil
}

func (in *interp) unary(op string, x value, line int) value {
	if op == "not" {
		return !truth(x)
	}
	i, f, isInt, ok := toNumber(x)
	switch {
	case !ok:
		in.failf(line, "%s: got a value of type %s, want a number", op, typeName(x))
	case op == "+" && isInt:
		return i
	case op == "+":
		return f
	case isInt && i == math.MinInt64:
		in.failf(line, "integer overflow")
	case isInt:
		return -i
	}
	return -f
}

func (in *interp) compare(op string, x, y value, line int) bool {
	switch op {
	case "==":
		return in.equal(x, y, line)
	case "!=":
		return !in.equal(x, y, line)
	case "<":
		return in.less(x, y, line)
	case ">":
		return in.less(y, x, line)
	case "<=":
		return in.less(x, y, line) || in.equal(x, y, line)
	case ">=":
		return in.less(y, x, line) || in.equal(x, y, line)
	case "in":
		return in.contains(y, x, line)
	}
	return !in.contains(y, x, line)
}

// contains is "x in y", with the container first.
func (in *interp) contains(y, x value, line int) bool {
	switch y := y.(type) {
	case Text:
		xs, ok := x.(Text)
		if !ok {
			in.failf(line, "in: got %s in a string, want a string", typeName(x))
		}
		in.charge(len(y.s)/bytesPerStep, line)
		return strings.Contains(y.s, xs.s)
	case *Dict:
		switch x := x.(type) { // possible keys in the reference, but not in a Dict here
		case undefined:
			return false
		case *List:
			if x.kind == isTuple {
				return false
			}
		}
		if _, ok := key(x); !ok {
			in.failf(line, "in: a value of type %s cannot be a key", typeName(x))
		}
		_, ok := y.get(x)
		return ok
	case *List, undefined:
		return slices.ContainsFunc(in.items(y, line), func(v value) bool {
			return in.equal(v, x, line)
		})
	}
	in.failf(line, "in: got a value of type %s, want a container", typeName(y))
	return false
}

func (in *interp) binary(op string, x, y value, line int) value {
	if op == "~" {
		xs, ys := in.text(x, line), in.text(y, line)
		in.checkText(len(xs.s)+len(ys.s), line)
		return Concat(xs, ys)
	}
	for _, v := range []value{x, y} {
		if u, ok := v.(undefined); ok {
			in.failf(line, "%s", u.what)
		}
	}
	switch xv := x.(type) {
	case Text:
		if ys, ok := y.(Text); ok && op == "+" {
			in.checkText(len(xv.s)+len(ys.s), line)
			return Concat(xv, ys)
		}
		if op == "%" {
			in.failf(line, "%%: strings are not formatted by %%, want ~ or the method format")
		}
	case *List:
		if yl, ok := y.(*List); ok && op == "+" && xv.kind == yl.kind && xv.kind <= isTuple {
			in.charge(len(xv.items)+len(yl.items), line)
			return &List{append(slices.Clone(xv.items), yl.items...), xv.kind}
		}
	}
	if op == "*" {
		if n, _, isInt, _ := toNumber(y); isInt {
			if v, ok := in.repeat(x, n, line); ok {
				return v
			}
		}
		if n, _, isInt, _ := toNumber(x); isInt {
			if v, ok := in.repeat(y, n, line); ok {
				return v
			}
		}
	}
	xi, xf, xIsInt, xOK := toNumber(x)
	yi, yf, yIsInt, yOK := toNumber(y)
	if !xOK || !yOK {
		in.failf(line, "%s: got %s and %s, want values it can join", op, typeName(x), typeName(y))
	}
	if xIsInt && yIsInt && op != "/" && !(op == "**" && yi < 0) {
		return in.intOp(op, xi, yi, line)
	}
	if yf == 0 && (op == "/" || op == "//" || op == "%") || xf == 0 && yf < 0 && op == "**" {
		in.failf(line, "division by zero")
	}
	switch op {
	case "+":
		return xf + yf
	case "-":
		return xf - yf
	case "*":
		return xf * yf
	case "/":
		return xf / yf
	case "//", "%":
		rest := math.Mod(xf, yf)
		whole := math.Round((xf - rest) / yf)
		if rest != 0 && (rest < 0) != (yf < 0) { // round to minus infinity
			whole, rest = whole-1, rest+yf
		}
		if op == "//" {
			return math.Copysign(whole, xf/yf)
		}
		return math.Copysign(rest, yf)
	}
	if xf < 0 && yf != math.Trunc(yf) {
		in.failf(line, "**: a complex number")
	}
	return math.Pow(xf, yf)
}

func (in *interp) intOp(op string, x, y int64, line int) value {
	over := func() { in.failf(line, "%s: integer overflow", op) }
	switch op {
	case "+":
		if s := x + y; (s > x) == (y > 0) {
			return s
		}
	case "-":
		if d := x - y; (d < x) == (y > 0) {
			return d
		}
	case "*":
		if p, ok := mul(x, y); ok {
			return p
		}
	case "**":
		p := int64(1)
		for ; y > 0; y-- {
			in.charge(1, line)
			var ok bool
			if p, ok = mul(p, x); !ok {
				over()
			}
			if p == 0 || p == 1 && x == 1 {
				break
			}
		}
		return p
	case "//", "%":
		if y == 0 {
			in.failf(line, "division by zero")
		}
		if x == math.MinInt64 && y == -1 {
			break
		}
		q, r := x/y, x%y
		if r != 0 && (r < 0) != (y < 0) { // round to minus infinity
			q, r = q-1, r+y
		}
		if op == "//" {
			return q
		}
		return r
	}
	over()
	return nil
}

func mul(x, y int64) (int64, bool) {
	if x == 0 || y == 0 {
		return 0, true
	}
	p := x * y
	return p, p/y == x && !(x == -1 && y == math.MinInt64) && !(y == -1 && x == math.MinInt64)
}

// repeat is x * n for strings and lists.
func (in *interp) repeat(x value, n int64, line int) (value, bool) {
	n = max(n, 0)
	switch x := x.(type) {
	case Text:
		if x.s == "" || n == 0 {
			return Text{}, true
		}
		count := int(min(n, unlimited))
		in.checkText(times(count, len(x.s)), line)
		in.charge(count, line)
		var b builder
		for range n {
			b.add(x)
		}
		return b.str(), true
	case *List:
		if x.kind > isTuple {
			return nil, false
		}
		if len(x.items) == 0 {
			return &List{kind: x.kind}, true
		}
		in.charge(times(int(min(n, unlimited)), len(x.items)), line)
		out := &List{kind: x.kind}
		for range n {
			out.items = append(out.items, x.items...)
		}
		return out, true
	}
	return nil, false
}
