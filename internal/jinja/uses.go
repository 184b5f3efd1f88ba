package jinja

// Use tells how a template uses the values of one name, as far as its code shows.
type Use struct {
	Tested bool // it tests whether the value is a string
	Parts  bool // it iterates over the value, filters it or indexes it
	Text   bool // it prints or joins the value
}

// Uses reports how the template uses an attribute or item with the given name.
func (t *Template) Uses(name string) Use {
	u := &usage{name: name, alias: map[string]bool{}}
	// Twice, to find a use that stands before the assignment in the text, as in macros.
	u.block(t.body)
	u.block(t.body)
	return Use{u.tested, u.parts, u.text}
}

// usage collects how a template uses the values of a name.
type usage struct {
	name                string
	alias               map[string]bool // names with such a value
	tested, parts, text bool
}

func (u *usage) is(e expr) bool {
	switch e := e.(type) {
	case *attrExpr:
		return e.name == u.name
	case *indexExpr:
		l, ok := e.index.(*literal)
		if !ok {
			return false
		}
		s, ok := l.v.(Text)
		return ok && s.s == u.name
	case *nameExpr:
		return u.alias[e.name]
	}
	return false
}

func (u *usage) block(body []stmt) {
	for _, s := range body {
		switch s := s.(type) {
		case outStmt:
			u.asText(s.e)
			u.expr(s.e)
		case ifStmt:
			u.expr(s.cond)
			u.block(s.then)
			u.block(s.els)
		case forStmt:
			u.parts = u.parts || u.is(s.iter)
			u.expr(s.iter)
			u.expr(s.cond)
			u.block(s.body)
			u.block(s.els)
		case setStmt:
			if s.value != nil && s.target.many == nil && s.target.attr == "" && u.is(s.value) {
				u.alias[s.target.name] = true
			}
			u.expr(s.value)
			u.block(s.body)
		case macroStmt:
			u.block(s.m.body)
		case callStmt:
			u.expr(s.call)
			u.block(s.caller.body)
		case filterStmt:
			u.block(s.body)
		case withStmt:
			for _, v := range s.values {
				u.expr(v)
			}
			u.block(s.body)
		}
	}
}

func (u *usage) asText(e expr) { u.text = u.text || u.is(e) }

func (u *usage) expr(e expr) {
	switch e := e.(type) {
	case *attrExpr: // a method of it, such as strip
		u.asText(e.x)
		u.expr(e.x)
	case *indexExpr:
		u.parts = u.parts || u.is(e.x)
		u.expr(e.x)
		u.expr(e.index)
	case *sliceExpr:
		u.expr(e.x)
	case *callExpr:
		u.expr(e.f)
		u.args(e.args)
	case *filterExpr:
		if u.is(e.x) {
			switch e.name {
			case "selectattr", "rejectattr", "select", "reject", "map", "list", "first", "last":
				u.parts = true
			case "trim", "upper", "lower", "replace", "string", "indent", "safe", "e", "escape":
				u.text = true
			}
		}
		u.expr(e.x)
		u.args(e.args)
	case *testExpr:
		u.tested = u.tested || e.name == "string" && u.is(e.x)
		u.expr(e.x)
		u.args(e.args)
	case *unaryExpr:
		u.expr(e.x)
	case *binaryExpr:
		if e.op == "+" || e.op == "~" {
			u.asText(e.x)
			u.asText(e.y)
		}
		u.expr(e.x)
		u.expr(e.y)
	case *compareExpr:
		u.expr(e.x)
		for _, y := range e.ys {
			u.expr(y)
		}
	case *condExpr:
		u.expr(e.cond)
		u.expr(e.then)
		u.expr(e.els)
	case *listExpr:
		for _, item := range e.items {
			u.expr(item)
		}
	case *dictExpr:
		for i := range e.keys {
			u.expr(e.keys[i])
			u.expr(e.values[i])
		}
	}
}

func (u *usage) args(a arguments) {
	for _, p := range a.pos {
		u.expr(p)
	}
	for _, v := range a.values {
		u.expr(v)
	}
}
