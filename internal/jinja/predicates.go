package jinja

import "strings"

// test evaluates "x is name(args)".
func (in *interp) test(name string, x value, a args) bool {
	in.charge(1, a.line)
	switch name {
	case "defined", "undefined":
		_, undef := x.(undefined)
		return undef == (name == "undefined")
	case "none":
		return x == nil
	case "string":
		_, ok := x.(Text)
		return ok
	case "mapping":
		_, ok := x.(*Dict)
		return ok
	case "sequence":
		switch x := x.(type) {
		case Text, *Dict, undefined:
			return true
		case *List:
			return x.kind < isKeys
		}
		return false
	case "iterable":
		switch x.(type) {
		case Text, *Dict, undefined, *List:
			return true
		}
		return false
	case "callable":
		switch x.(type) {
		case *macro, *builtin, undefined:
			return true
		}
		return false
	case "boolean":
		_, ok := x.(bool)
		return ok
	case "true", "false":
		b, ok := x.(bool)
		return ok && b == (name == "true")
	case "integer":
		_, ok := x.(int64)
		return ok
	case "float":
		_, ok := x.(float64)
		return ok
	case "number":
		_, _, _, ok := toNumber(x)
		return ok
	case "lower", "upper":
		s := in.text(x, a.line).s
		if name == "lower" {
			return isLower(s)
		}
		return isUpper(s)
	case "odd", "even", "divisibleby":
		by := int64(2)
		if name == "divisibleby" {
			by = in.params(name, a).whole("num", 0)
		}
		want := int64(0)
		if name == "odd" {
			want = 1
		}
		return in.equal(in.binary("%", x, by, a.line), want, a.line)
	case "escaped":
		return false
	case "filter", "test":
		s := in.text(x, a.line).s
		if name == "filter" {
			return filters[s] != nil
		}
		return testNames[s]
	case "sameas":
		y := in.params(name, a).must("other")
		return typeName(x) == typeName(y) && in.equal(x, y, a.line)
	}
	if op, ok := testOperators[name]; ok {
		return in.compare(op, x, in.params(name, a).must("other"), a.line)
	}
	in.failf(a.line, "no test %q", name)
	return false
}

// testOperators are the tests that compare two values.
var testOperators = map[string]string{
	"==": "==", "eq": "==", "equalto": "==", "!=": "!=", "ne": "!=",
	"<": "<", "lt": "<", "lessthan": "<", "<=": "<=", "le": "<=",
	">": ">", "gt": ">", "greaterthan": ">", ">=": ">=", "ge": ">=", "in": "in",
}

// testNames lists all tests, for the test called test.
var testNames = func() map[string]bool {
	m := map[string]bool{}
	for _, name := range strings.Fields(
		"defined undefined none string mapping sequence iterable callable boolean true false " +
			"integer float number lower upper odd even divisibleby escaped filter test sameas") {
		m[name] = true
	}
	for name := range testOperators {
		m[name] = true
	}
	return m
}()
