package jinja

import (
	"fmt"
	"strconv"
)

// maxNesting is how deep tags and expressions may nest.
const maxNesting = 100

// Statements.
type (
	stmt     interface{}
	dataStmt struct{ text Text }
	outStmt  struct {
		e    expr
		line int
	}
	ifStmt struct {
		cond      expr
		then, els []stmt
		line      int
	}
	forStmt struct {
		target     target
		iter, cond expr // cond is nil without an if
		body, els  []stmt
		line       int
	}
	setStmt struct {
		target target
		value  expr // nil: the rendered body
		body   []stmt
		filter *filterExpr // applied to the body, or nil
		line   int
	}
	macroStmt struct{ m *macroDef }
	callStmt  struct {
		call   *callExpr
		caller *macroDef
		line   int
	}
	filterStmt struct {
		filter *filterExpr // innermost operand is the body
		body   []stmt
		line   int
	}
	withStmt struct {
		targets []target
		values  []expr
		body    []stmt
		line    int
	}
	breakStmt    struct{}
	continueStmt struct{}
)

// target is the target of an assignment: a name, an attribute of a namespace, or several targets.
type target struct {
	name, attr string
	many       []target
}

// macroDef is a macro's signature and body. The last len(defaults) parameters
// have defaults.
type macroDef struct {
	name     string
	params   []string
	defaults []expr
	body     []stmt
}

// Expressions.
type (
	expr     interface{}
	literal  struct{ v value }
	nameExpr struct{ name string }
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct{ keys, values []expr }
	attrExpr struct {
		x    expr
		name string
		line int
	}
	indexExpr struct {
		x, index expr
		line     int
	}
	sliceExpr struct {
		x, from, to, step expr // nil if left out
		line              int
	}
	callExpr struct {
		f    expr
		args arguments
		line int
	}
	filterExpr struct {
		x    expr // nil: the body of a block
		name string
		args arguments
		line int
	}
	testExpr struct {
		x    expr
		name string
		args arguments
		line int
	}
	unaryExpr struct {
		op   string
		x    expr
		line int
	}
	binaryExpr struct {
		op   string
		x, y expr
		line int
	}
	compareExpr struct { // x op0 y0 op1 y1 …, each pair compared
		x    expr
		ops  []string
		ys   []expr
		line int
	}
	condExpr struct {
		cond, then, els expr // els is nil if left out
	}
)

// arguments of a call: positional, *spread, named, **spread.
type arguments struct {
	pos    []expr
	star   expr
	names  []string
	values []expr
	stars  expr
}

type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // number of enclosing loops, for break and continue
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) take() token {
	t := p.tokens[p.at]
	if t.kind != tokEOF {
		p.at++
	}
	return t
}

func (p *parser) isOp(op string) bool {
	t := p.peek()
	return t.kind == tokOp && t.text == op
}

func (p *parser) isName(name string) bool {
	t := p.peek()
	return t.kind == tokName && t.text == name
}

func (p *parser) takeOp(op string) bool {
	if p.isOp(op) {
		p.at++
		return true
	}
	return false
}

func (p *parser) takeName(name string) bool {
	if p.isName(name) {
		p.at++
		return true
	}
	return false
}

// syntaxError is raised in the parser as a panic and caught by parse.
type syntaxError struct{ error }

func (p *parser) failf(format string, args ...any) {
	panic(syntaxError{fmt.Errorf("line %d: %s", p.peek().line, fmt.Sprintf(format, args...))})
}

func (p *parser) wantOp(op string) {
	if !p.takeOp(op) {
		p.failf("got %v, want %q", p.peek(), op)
	}
}

func (p *parser) wantName() string {
	t := p.peek()
	if t.kind != tokName {
		p.failf("got %v, want a name", t)
	}
	p.at++
	return t.text
}

func (p *parser) wantKind(k tokenKind) {
	if t := p.peek(); t.kind != k {
		p.failf("got %v, want %v", t, token{kind: k})
	}
	p.at++
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxNesting {
		p.failf("nested deeper than %d, want less", maxNesting)
	}
}

func (p *parser) leave() { p.depth-- }

// parse returns the statements of a template.
func parse(src string) (body []stmt, err error) {
	tokens, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(syntaxError)
			if !ok {
				panic(r)
			}
			err = s.error
		}
	}()
	body, _ = p.block()
	return body, nil
}

// block parses statements up to a tag whose name is one of ends, which it consumes and returns;
// without ends, up to the end of the template.
func (p *parser) block(ends ...string) ([]stmt, string) {
	p.enter()
	defer p.leave()
	var body []stmt
	for {
		t := p.take()
		switch t.kind {
		case tokEOF:
			if len(ends) > 0 {
				p.failf("got the end of the template, want %s", ends[len(ends)-1])
			}
			return body, ""
		case tokData:
			body = append(body, dataStmt{Plain(t.text)})
		case tokVarBegin:
			body = append(body, outStmt{p.tuple(), t.line})
			p.wantKind(tokVarEnd)
		default: // tokTagBegin
			name := p.wantName()
			for _, end := range ends {
				if name == end {
					return body, name
				}
			}
			body = append(body, p.statement(name, t.line))
		}
	}
}

// end parses the rest of an end tag.
func (p *parser) end() { p.wantKind(tokTagEnd) }

func (p *parser) statement(name string, line int) stmt {
	switch name {
	case "if":
		return p.ifTag(line)
	case "for":
		return p.forTag(line)
	case "set":
		return p.setTag(line)
	case "macro":
		m := p.signature(p.wantName())
		p.end()
		m.body = p.inner("endmacro")
		return macroStmt{m}
	case "call":
		caller := &macroDef{name: "caller"}
		if p.isOp("(") {
			caller = p.signature("caller")
		}
		call, ok := p.expression().(*callExpr)
		if !ok {
			p.failf("call: want a call")
		}
		p.end()
		caller.body = p.inner("endcall")
		return callStmt{call, caller, line}
	case "filter":
		f := p.filters(nil)
		if f == nil {
			p.failf("got %v, want a filter", p.peek())
		}
		p.end()
		body, _ := p.block("endfilter")
		p.end()
		return filterStmt{f.(*filterExpr), body, line}
	case "with":
		s := withStmt{line: line}
		for p.peek().kind != tokTagEnd {
			if len(s.targets) > 0 {
				p.wantOp(",")
			}
			s.targets = append(s.targets, p.target(false))
			p.wantOp("=")
			s.values = append(s.values, p.expression())
		}
		p.end()
		s.body, _ = p.block("endwith")
		p.end()
		return s
	case "generation": // marks the text that a model is trained on; the text does not change
		p.end()
		s := withStmt{line: line}
		s.body, _ = p.block("endgeneration")
		p.end()
		return s
	case "break", "continue":
		if p.loops == 0 {
			p.failf("%s outside of a loop", name)
		}
		p.end()
		if name == "break" {
			return breakStmt{}
		}
		return continueStmt{}
	}
	p.at--
	p.failf("unknown tag %q", name)
	return nil
}

// inner parses a body that is a function: enclosing loops do not count.
func (p *parser) inner(end string) []stmt {
	loops := p.loops
	p.loops = 0
	body, _ := p.block(end)
	p.loops = loops
	p.end()
	return body
}

func (p *parser) ifTag(line int) stmt {
	// elif chains are nested ifs; counting them limits long chains.
	p.enter()
	defer p.leave()
	s := ifStmt{cond: p.tuple(), line: line}
	p.end()
	var end string
	s.then, end = p.block("elif", "else", "endif")
	switch end {
	case "elif":
		s.els = []stmt{p.ifTag(line)}
		return s
	case "else":
		p.end()
		s.els, _ = p.block("endif")
	}
	p.end()
	return s
}

func (p *parser) forTag(line int) stmt {
	s := forStmt{target: p.target(true), line: line}
	if !p.takeName("in") {
		p.failf("got %v, want \"in\"", p.peek())
	}
	s.iter = p.tupleOf(p.exprNoCond, false)
	if p.takeName("if") {
		s.cond = p.expression()
	}
	if p.isName("recursive") {
		p.failf("recursive loops are not supported")
	}
	p.end()
	p.loops++
	body, end := p.block("else", "endfor")
	p.loops--
	s.body = body
	if end == "else" {
		p.end()
		s.els, _ = p.block("endfor")
	}
	p.end()
	return s
}

func (p *parser) setTag(line int) stmt {
	s := setStmt{target: p.target(true), line: line}
	if p.takeOp("=") {
		s.value = p.tuple()
		p.end()
		return s
	}
	if f := p.filters(nil); f != nil {
		s.filter = f.(*filterExpr)
	}
	p.end()
	s.body, _ = p.block("endset")
	p.end()
	return s
}

// target parses a name, a namespace's attribute, or, if many is set, a tuple of them.
func (p *parser) target(many bool) target {
	p.enter()
	defer p.leave()
	var t target
	var targets []target
	for {
		if p.takeOp("(") {
			t = p.target(true)
			p.wantOp(")")
		} else {
			t = target{name: p.wantName()}
			if keyword(t.name) {
				p.failf("cannot assign to %q", t.name)
			}
			if p.takeOp(".") {
				t.attr = p.wantName()
			}
		}
		targets = append(targets, t)
		if !many || !p.takeOp(",") {
			break
		}
		if p.isName("in") || p.isOp("=") || p.isOp(")") { // a comma at the end
			return target{many: targets}
		}
	}
	if len(targets) == 1 {
		return targets[0]
	}
	return target{many: targets}
}

func keyword(name string) bool {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}

func (p *parser) signature(name string) *macroDef {
	m := &macroDef{name: name}
	p.wantOp("(")
	for !p.takeOp(")") {
		if len(m.params) > 0 {
			p.wantOp(",")
		}
		m.params = append(m.params, p.wantName())
		if p.takeOp("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if len(m.defaults) > 0 {
			p.failf("parameter without a default after one with a default")
		}
	}
	return m
}

// tuple parses an expression, or several separated by commas.
func (p *parser) tuple() expr {
	return p.tupleOf(p.expression, false)
}

func (p *parser) tupleOf(item func() expr, explicit bool) expr {
	var items []expr
	comma := false
	for {
		t := p.peek()
		if t.kind == tokVarEnd || t.kind == tokTagEnd || p.isOp(")") || len(items) > 0 && !comma ||
			p.isName("in") && len(items) > 0 {
			break
		}
		items = append(items, item())
		comma = p.takeOp(",")
	}
	if len(items) == 1 && !comma {
		return items[0]
	}
	if len(items) == 0 && !explicit {
		p.failf("got %v, want an expression", p.peek())
	}
	return &listExpr{items, true}
}

func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	e := p.or()
	for p.takeName("if") {
		c := &condExpr{cond: p.or(), then: e}
		if p.takeName("else") {
			c.els = p.expression()
		}
		e = c
	}
	return e
}

// exprNoCond parses an expression that ends at "if", as in a loop's head.
func (p *parser) exprNoCond() expr {
	p.enter()
	defer p.leave()
	return p.or()
}

// infix parses operands with left-associative operators between them, which take reads.
func (p *parser) infix(take func(string) bool, operand func() expr, ops ...string) expr {
	x := operand()
next:
	for n := 0; ; n++ {
		if n > 10*maxNesting {
			p.failf("more than %d operators in a row, want fewer", 10*maxNesting)
		}
		for _, op := range ops {
			line := p.peek().line
			if take(op) {
				x = &binaryExpr{op, x, operand(), line}
				continue next
			}
		}
		return x
	}
}

func (p *parser) or() expr  { return p.infix(p.takeName, p.and, "or") }
func (p *parser) and() expr { return p.infix(p.takeName, p.not, "and") }

func (p *parser) not() expr {
	if line := p.peek().line; p.takeName("not") {
		p.enter()
		defer p.leave()
		return &unaryExpr{"not", p.not(), line}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	x := p.sum()
	c := &compareExpr{x: x, line: p.peek().line}
	for {
		t := p.peek()
		op := ""
		switch {
		case t.kind == tokOp &&
			(t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" ||
				t.text == ">="):
			op = t.text
			p.at++
		case p.takeName("in"):
			op = "in"
		case p.isName("not") && p.tokens[p.at+1].kind == tokName && p.tokens[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		}
		if op == "" {
			break
		}
		c.ops = append(c.ops, op)
		c.ys = append(c.ys, p.sum())
	}
	if len(c.ops) == 0 {
		return x
	}
	return c
}

func (p *parser) sum() expr     { return p.infix(p.takeOp, p.joined, "+", "-") }
func (p *parser) joined() expr  { return p.infix(p.takeOp, p.product, "~") }
func (p *parser) product() expr { return p.infix(p.takeOp, p.power, "*", "//", "/", "%") }
func (p *parser) power() expr {
	return p.infix(p.takeOp, func() expr { return p.unary(true) }, "**")
}

func (p *parser) unary(withFilter bool) expr {
	p.enter()
	defer p.leave()
	t := p.peek()
	var x expr
	if p.takeOp("-") || p.takeOp("+") {
		x = &unaryExpr{t.text, p.unary(false), t.line}
	} else {
		x = p.primary()
	}
	x = p.postfix(x)
	if withFilter {
		x = p.filtersAndTests(x)
	}
	return x
}

func (p *parser) primary() expr {
	t := p.take()
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &literal{true}
		case "false", "False":
			return &literal{false}
		case "none", "None":
			return &literal{nil}
		}
		return &nameExpr{t.text}
	case tokString:
		s := t.text
		for p.peek().kind == tokString {
			s += p.take().text
		}
		return &literal{Plain(s)}
	case tokInt:
		v, err := strconv.ParseInt(t.text, 0, 64)
		if err != nil {
			// Numbers with leading zeros are decimal in the reference.
			if v, err = strconv.ParseInt(t.text, 10, 64); err != nil {
				p.failf("integer: got %s, want 64 bits", t.text)
			}
		}
		return &literal{v}
	case tokFloat:
		v, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			p.failf("number: got %s: %v", t.text, err)
		}
		return &literal{v}
	case tokOp:
		switch t.text {
		case "(":
			e := p.tupleOf(p.expression, true)
			p.wantOp(")")
			return e
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	if t.kind != tokEOF {
		p.at--
	}
	p.failf("got %v, want an expression", t)
	return nil
}

func (p *parser) list() expr {
	l := &listExpr{}
	for !p.takeOp("]") {
		if len(l.items) > 0 {
			p.wantOp(",")
			if p.takeOp("]") {
				break
			}
		}
		l.items = append(l.items, p.expression())
	}
	return l
}

func (p *parser) dict() expr {
	d := &dictExpr{}
	for !p.takeOp("}") {
		if len(d.keys) > 0 {
			p.wantOp(",")
			if p.takeOp("}") {
				break
			}
		}
		d.keys = append(d.keys, p.expression())
		p.wantOp(":")
		d.values = append(d.values, p.expression())
	}
	return d
}

func (p *parser) postfix(x expr) expr {
	for n := 0; ; n++ {
		if n > maxNesting {
			p.failf("nested deeper than %d, want less", maxNesting)
		}
		line := p.peek().line
		switch {
		case p.takeOp("."):
			if t := p.peek(); t.kind == tokInt {
				x = &indexExpr{x, p.primary(), line}
			} else {
				x = &attrExpr{x, p.wantName(), line}
			}
		case p.takeOp("["):
			x = p.subscript(x, line)
		case p.isOp("("):
			x = &callExpr{x, p.arguments(), line}
		default:
			return x
		}
	}
}

func (p *parser) subscript(x expr, line int) expr {
	var parts [3]expr
	n := 0
	colons := 0
	for !p.takeOp("]") {
		if p.takeOp(":") {
			if colons++; colons > 2 {
				p.failf("slice: got more than two colons")
			}
			n = colons
			continue
		}
		if parts[n] != nil {
			p.failf("got %v, want \"]\"", p.peek())
		}
		parts[n] = p.expression()
	}
	if colons > 0 {
		return &sliceExpr{x, parts[0], parts[1], parts[2], line}
	}
	if parts[0] == nil {
		p.failf("got [], want an index")
	}
	return &indexExpr{x, parts[0], line}
}

func (p *parser) arguments() arguments {
	var a arguments
	p.wantOp("(")
	for first := true; !p.takeOp(")"); first = false {
		if !first {
			p.wantOp(",")
			if p.takeOp(")") {
				break
			}
		}
		switch {
		case p.takeOp("**"):
			a.stars = p.expression()
		case p.takeOp("*"):
			a.star = p.expression()
		case p.peek().kind == tokName && p.tokens[p.at+1].kind == tokOp &&
			p.tokens[p.at+1].text == "=":
			a.names = append(a.names, p.wantName())
			p.wantOp("=")
			a.values = append(a.values, p.expression())
		default:
			if len(a.names) > 0 {
				p.failf("positional argument after a named one")
			}
			a.pos = append(a.pos, p.expression())
		}
	}
	return a
}

// filtersAndTests parses the filters and tests after an operand.
func (p *parser) filtersAndTests(x expr) expr {
	for n := 0; ; n++ {
		if n > maxNesting {
			p.failf("nested deeper than %d, want less", maxNesting)
		}
		line := p.peek().line
		switch {
		case p.isOp("|"):
			x = p.filters(x)
		case p.takeName("is"):
			x = p.test(x, line)
		case p.isOp("("):
			x = &callExpr{x, p.arguments(), line}
		default:
			return x
		}
	}
}

// filters parses filters that apply to x. In a tag (x is nil), the first one has no bar before it
// unless it follows a target.
func (p *parser) filters(x expr) expr {
	for n := 0; ; n++ {
		if n > maxNesting {
			p.failf("nested deeper than %d, want less", maxNesting)
		}
		if !p.takeOp("|") && (n > 0 || x != nil || p.peek().kind != tokName) {
			return x
		}
		f := &filterExpr{x: x, line: p.peek().line, name: p.dotted()}
		if p.isOp("(") {
			f.args = p.arguments()
		}
		x = f
	}
}

func (p *parser) dotted() string {
	name := p.wantName()
	for p.takeOp(".") {
		name += "." + p.wantName()
	}
	return name
}

func (p *parser) test(x expr, line int) expr {
	negate := p.takeName("not")
	t := &testExpr{x: x, line: line, name: p.dotted()}
	next := p.peek()
	switch {
	case p.isOp("("):
		t.args = p.arguments()
	case next.kind == tokString || next.kind == tokInt || next.kind == tokFloat || p.isOp("[") ||
		p.isOp("{"),
		next.kind == tokName && next.text != "else" && next.text != "or" && next.text != "and":
		if next.text == "is" && next.kind == tokName {
			p.failf("tests cannot be chained with \"is\"")
		}
		t.args.pos = []expr{p.postfix(p.primary())}
	}
	if negate {
		return &unaryExpr{"not", t, line}
	}
	return t
}
