package chat

// contentReads is the form of content that a template can read.
type contentReads uint8

const (
	readsBoth  contentReads = iota // content goes in as it was written
	readsParts                     // a string becomes a list of one text part
	readsText                      // a list of text parts becomes a string, a line each
)

// reads finds out what a template reads, judging by what it does with content:
// one that asks "content is string" takes both; one that iterates over content,
// filters or indexes it reads parts; one that only prints or joins it reads text.
// When nothing can be seen the answer is parts, the modern form.
func reads(body []stmt) contentReads {
	u := &contentUse{alias: map[string]bool{}}
	// Twice, so that a use before the assignment in the text is seen: macros.
	u.block(body)
	u.block(body)
	switch {
	case u.tested:
		return readsBoth
	case u.text && !u.parts:
		return readsText
	}
	return readsParts
}

// contentUse collects how a template uses the content of messages.
type contentUse struct {
	alias               map[string]bool // names that hold a content
	tested, parts, text bool
}

func (u *contentUse) isContent(e expr) bool {
	switch e := e.(type) {
	case *attrExpr:
		return e.name == "content"
	case *indexExpr:
		l, ok := e.index.(*literal)
		if !ok {
			return false
		}
		s, ok := l.v.(str)
		return ok && s.s == "content"
	case *nameExpr:
		return u.alias[e.name]
	}
	return false
}

func (u *contentUse) block(body []stmt) {
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
			u.parts = u.parts || u.isContent(s.iter)
			u.expr(s.iter)
			u.expr(s.cond)
			u.block(s.body)
			u.block(s.els)
		case setStmt:
			if s.value != nil && s.target.many == nil && s.target.attr == "" && u.isContent(s.value) {
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

func (u *contentUse) asText(e expr) { u.text = u.text || u.isContent(e) }

func (u *contentUse) expr(e expr) {
	switch e := e.(type) {
	case *attrExpr: // content.strip and the like
		u.asText(e.x)
		u.expr(e.x)
	case *indexExpr:
		u.parts = u.parts || u.isContent(e.x)
		u.expr(e.x)
		u.expr(e.index)
	case *sliceExpr:
		u.expr(e.x)
	case *callExpr:
		u.expr(e.f)
		u.args(e.args)
	case *filterExpr:
		if u.isContent(e.x) {
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
		u.tested = u.tested || e.name == "string" && u.isContent(e.x)
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

func (u *contentUse) args(a arguments) {
	for _, p := range a.pos {
		u.expr(p)
	}
	for _, v := range a.values {
		u.expr(v)
	}
}
