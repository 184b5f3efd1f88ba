package reduce

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
)

// Kind is the type of a parameter's value.
type Kind uint8

// The kinds, and the Go type of a value that [Parameter.Parse] returns.
const (
	Int    Kind = iota // int64
	Float              // float64
	Bool               // bool
	Choice             // string, one of Values
	Text               // string
	File               // []byte, the content of a file; has no form in JSON
)

// String returns the kind in words, as in "want a whole number".
func (k Kind) String() string {
	names := [...]string{
		"a whole number", "a number", "true or false", "one of its values", "text", "a file",
	}
	if int(k) >= len(names) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return names[k]
}

// Parameter describes one parameter of a method or of all methods. Its flag, its environment
// variable, its JSON field and its line of help are derived from it.
type Parameter struct {
	Name    string   // lower-case words joined by hyphens, as in "anchor-pool"
	Kind    Kind     // set by the function of Declaration that declares it
	Default string   // value if it is not given, in words
	Values  []string // of a Choice
	Want    string   // accepted values, if Kind and limits do not say it
	Unit    string   // name of a value in help, as in "N" or "share"
	Help    string   // one line
	Methods []string // names of the methods that have it; nil: all

	// Least and Most are the limits of a number; nil is no limit. With Above and Least the number
	// must be more than Least.
	Least, Most *float64
	Above       bool

	// Auto says that a text "auto:N" is accepted too, where N is a whole number.
	Auto bool

	// Budget says that the parameter sets the number of tokens. A request gives one of these.
	Budget bool
}

// JSONName is the parameter's field in JSON: its name with underscores.
func (p *Parameter) JSONName() string { return strings.ReplaceAll(p.Name, "-", "_") }

// Range returns the accepted values: "1 to 64", "at least 1", "one of paper, released".
func (p *Parameter) Range() string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	switch {
	case p.Want != "":
		return p.Want
	case p.Kind == Choice:
		return "one of " + strings.Join(p.Values, ", ")
	case p.Least != nil && p.Above && p.Most != nil:
		return "more than " + number(*p.Least) + " and at most " + number(*p.Most)
	case p.Least != nil && p.Most != nil:
		return number(*p.Least) + " to " + number(*p.Most)
	case p.Least != nil && p.Above:
		return "more than " + number(*p.Least)
	case p.Least != nil:
		return "at least " + number(*p.Least)
	case p.Most != nil:
		return "at most " + number(*p.Most)
	}
	return p.Kind.String()
}

// AutoPrefix begins the text of a value that the picture's content decides.
const AutoPrefix = "auto:"

// auto parses the text "auto:N", where Parse would accept N.
func (p *Parameter) auto(text string) (any, error) {
	q := *p
	q.Auto, q.Least, q.Want = false, new(1.), "a whole number of at least 1 after the colon"
	n, err := q.Parse(strings.TrimPrefix(text, AutoPrefix))
	if err != nil {
		return nil, q.refuse(errs.Invalid, strconv.Quote(text))
	}
	return AutoPrefix + strconv.FormatInt(n.(int64), 10), nil
}

// Parse checks a value and returns it in the type of the parameter's Kind. A text is read as on a
// command line. Any other value must already have the right type, as in JSON; a whole number may
// have any integer type. The error is an [errs.OptionError].
func (p *Parameter) Parse(value any) (any, error) {
	if text, ok := value.(string); ok && p.Auto && strings.HasPrefix(text, AutoPrefix) {
		return p.auto(text)
	}
	v, got, ok := p.convert(value)
	if !ok {
		q := *p
		if p.Kind == Int || p.Kind == Float {
			q.Want = p.Kind.String()
		}
		return nil, q.refuse(errs.Invalid, got)
	}
	var n float64
	switch v := v.(type) {
	case int64:
		n = float64(v)
	case float64:
		n = v
	case string:
		if p.Kind == Choice && !slices.Contains(p.Values, v) {
			return nil, p.refuse(errs.Invalid, got)
		}
		return v, nil
	default:
		return v, nil
	}
	switch {
	case math.IsNaN(n):
		return nil, p.refuse(errs.Invalid, got)
	case p.Least != nil && (n < *p.Least || p.Above && n == *p.Least):
		return nil, p.refuse(errs.TooSmall, got)
	case p.Most != nil && n > *p.Most:
		return nil, p.refuse(errs.TooLarge, got)
	case math.IsInf(n, 0):
		q := *p
		q.Want = "a finite number"
		return nil, q.refuse(errs.Invalid, got)
	}
	return v, nil
}

// refuse returns the error for a value that is not accepted.
func (p *Parameter) refuse(fault errs.Fault, got string) error {
	return fmt.Errorf("reduce: %w",
		&errs.OptionError{Name: p.Name, Got: got, Want: p.Range(), Fault: fault})
}

// convert returns value in the type of the parameter's Kind, and its form in errors.
func (p *Parameter) convert(value any) (v any, got string, ok bool) {
	got = fmt.Sprint(value)
	text, isText := value.(string)
	if isText {
		got = strconv.Quote(text)
	}
	switch p.Kind {
	case Int:
		if isText {
			n, err := strconv.ParseInt(text, 10, 64)
			if err == nil {
				got = strconv.FormatInt(n, 10)
			}
			return n, got, err == nil
		}
		n, ok := whole(value)
		return n, got, ok
	case Float:
		if isText {
			n, err := strconv.ParseFloat(text, 64)
			if err == nil {
				got = text
			}
			return n, got, err == nil
		}
		n, ok := number(value)
		return n, got, ok
	case Bool:
		if isText {
			return text == "true", got, text == "true" || text == "false"
		}
		b, ok := value.(bool)
		return b, got, ok
	case File:
		b, ok := value.([]byte)
		return b, "a file", ok
	}
	return text, got, isText
}

// whole returns a whole number of any Go type, or from JSON.
func whole(value any) (int64, bool) {
	if text, ok := value.(json.Number); ok {
		n, err := strconv.ParseInt(text.String(), 10, 64)
		return n, err == nil
	}
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), v.Uint() <= math.MaxInt64
	}
	return 0, false
}

// number returns a number of any Go type, or from JSON.
func number(value any) (float64, bool) {
	switch v := value.(type) {
	case float64:
		return v, true
	case float32:
		return float64(v), true
	case json.Number:
		n, err := v.Float64()
		return n, err == nil
	}
	n, ok := whole(value)
	return float64(n), ok
}

// Declarer is a [Criterion] with parameters: fields of its struct, each with a name.
//
//	type longest struct{ power float64 }
//
//	func (l *longest) Declare(d *reduce.Declaration) {
//		l.power = 2
//		d.Float(&l.power, reduce.Parameter{Name: "longest-power", Help: "power of a length"})
//	}
//
// A field's value at the time of the declaration is the default.
type Declarer interface {
	Declare(d *Declaration)
}

// Declaration collects the parameters of one method. Its zero value is ready.
type Declaration struct {
	list []*declared
}

// declared is one parameter with functions for its value.
type declared struct {
	Parameter
	set   func(v any) error // takes a value that Parse returned
	get   func() any
	given bool
}

// Int declares a whole number.
func (d *Declaration) Int(v *int, p Parameter) {
	p.Kind = Int
	d.Func(p, func(x any) error {
		n := x.(int64)
		if n < math.MinInt || n > math.MaxInt {
			return fmt.Errorf("this machine has numbers up to %d", math.MaxInt)
		}
		*v = int(n)
		return nil
	}, func() any { return *v })
}

// Float declares a number.
func (d *Declaration) Float(v *float64, p Parameter) {
	p.Kind = Float
	d.Func(p, func(x any) error { *v = x.(float64); return nil }, func() any { return *v })
}

// Bool declares a switch.
func (d *Declaration) Bool(v *bool, p Parameter) {
	p.Kind = Bool
	d.Func(p, func(x any) error { *v = x.(bool); return nil }, func() any { return *v })
}

// Choice declares one of p.Values.
func (d *Declaration) Choice(v *string, p Parameter) {
	p.Kind = Choice
	d.Func(p, func(x any) error { *v = x.(string); return nil }, func() any { return *v })
}

// Func declares a parameter of p.Kind. set stores its value and get returns it. If set
// returns an error, the parameter is refused with p.Range as the accepted values.
func (d *Declaration) Func(p Parameter, set func(v any) error, get func() any) {
	if p.Default == "" {
		p.Default = fmt.Sprint(get())
	}
	d.list = append(d.list, &declared{Parameter: p, set: set, get: get})
}

// Parameters returns the declared parameters in order.
func (d *Declaration) Parameters() []Parameter {
	out := make([]Parameter, len(d.list))
	for i, p := range d.list {
		out[i] = p.Parameter
	}
	return out
}

// find returns the parameter with that name, or nil.
func (d *Declaration) find(name string) *declared {
	for _, p := range d.list {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Set sets the parameter with that name to a value that [Parameter.Parse] accepts. The error is an
// [errs.OptionError].
func (d *Declaration) Set(name string, value any) error {
	p := d.find(name)
	if p == nil {
		return fmt.Errorf("reduce: %w", &errs.OptionError{
			Name: name, Got: fmt.Sprint(value), Want: "a parameter of the method",
			Fault: errs.Unknown,
		})
	}
	v, err := p.Parse(value)
	if err != nil {
		return err
	}
	if err := p.set(v); err != nil {
		_, got, _ := p.convert(value)
		return fmt.Errorf("reduce: %w", &errs.OptionError{
			Name: name, Got: got, Want: p.Range(), Why: err.Error(), Fault: errs.Invalid,
		})
	}
	p.given = true
	return nil
}

// Given reports whether the parameter with that name was set.
func (d *Declaration) Given(name string) bool {
	p := d.find(name)
	return p != nil && p.given
}

// Values returns all parameters with their values, except files.
func (d *Declaration) Values() []Value {
	var out []Value
	for _, p := range d.list {
		if p.Kind != File {
			out = append(out, Value{Name: p.Name, Value: p.get(), Default: !p.given})
		}
	}
	return out
}
