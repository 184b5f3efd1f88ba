package gguf

import (
	"fmt"
	"math"
)

// kind is the required type of a key's value. Writers use different widths of numbers, so any width
// is accepted, and whole numbers are floating-point numbers, too.
type kind uint8

const (
	aNumber kind = iota + 1 // a whole number of at least 0
	aFloat                  // a finite number
	aBool                   //
	aString                 //
	floats                  // an array of finite numbers
	strs                    // an array of strings
	wholes                  // a whole number, or an array of them
	bools                   // an array of bools
)

// kindNames are the names of the kinds in errors.
var kindNames = map[kind]string{
	aNumber: "a whole number", aFloat: "a floating-point number", aBool: "a bool",
	aString: "a string",
	floats:  "an array of floating-point numbers",
	strs:    "an array of strings",
	wholes:  "a whole number or an array of them",
	bools:   "an array of bools",
}

// is checks that v is of the given kind.
func (v value) is(want kind) error {
	e, list := v.element(), v.typ == typeArray
	ok := false
	switch want {
	case aNumber, wholes:
		ok = e.isInt() && (want == wholes || !list)
		for i := 0; ok && i < v.count; i++ {
			if n := int64(v.int(i)); n > math.MaxInt32 || n < 0 && want != wholes {
				return fmt.Errorf("got %d, want 0 to %d", n, math.MaxInt32)
			}
		}
	case aFloat, floats:
		ok = (e == typeFloat32 || e == typeFloat64 || e.isInt()) && list == (want == floats)
		for i := 0; ok && i < v.count; i++ {
			if x := v.float(i); math.IsNaN(x) || math.IsInf(x, 0) {
				return fmt.Errorf("got %v, want a finite number", x)
			}
		}
	case aBool, bools:
		ok = e == typeBool && list == (want == bools)
	case aString, strs:
		ok = e == typeString && list == (want == strs)
	}
	if ok {
		return nil
	}
	got := e.String()
	if list {
		got = "an array, each element " + got
	}
	return fmt.Errorf("got %s, want %s", got, kindNames[want])
}

// key returns the value of a key, false if there is none or one of another kind, which is kept in
// f.wrong.
func (f *file) key(name string, want kind) (value, bool) {
	v, ok := f.keys[name]
	if !ok {
		return value{}, false
	}
	if err := v.is(want); err != nil {
		if f.wrong == nil {
			f.wrong = fmt.Errorf("key %q: %w", name, err)
		}
		return value{}, false
	}
	return v, true
}

func (f *file) has(name string) bool { _, ok := f.keys[name]; return ok }

// Text implements checkpoint.Metadata.
func (f *file) Text(name, def string) string {
	if v, ok := f.key(name, aString); ok {
		return v.text()
	}
	return def
}

// Number implements checkpoint.Metadata.
func (f *file) Number(name string, def int) int {
	if v, ok := f.key(name, aNumber); ok {
		return int(v.int(0))
	}
	return def
}

// Float implements checkpoint.Metadata.
func (f *file) Float(name string, def float64) float64 {
	if v, ok := f.key(name, aFloat); ok {
		return v.float(0)
	}
	return def
}

// Flag implements checkpoint.Metadata.
func (f *file) Flag(name string, def bool) bool {
	if v, ok := f.key(name, aBool); ok {
		return v.data[0] != 0
	}
	return def
}

// Flags implements checkpoint.Metadata.
func (f *file) Flags(name string) []bool {
	return listOf(f, name, bools, func(v value, i int) bool { return v.data[i] != 0 })
}

// Numbers implements checkpoint.Metadata.
func (f *file) Numbers(name string) []int {
	return listOf(f, name, wholes, func(v value, i int) int { return int(int64(v.int(i))) })
}

func (f *file) floats(name string) []float64 { return listOf(f, name, floats, value.float) }

// listOf returns the items of a list, nil if the key has none of that kind.
func listOf[T any](f *file, name string, want kind, item func(v value, i int) T) []T {
	v, ok := f.key(name, want)
	if !ok {
		return nil
	}
	out := make([]T, v.count)
	for i := range out {
		out[i] = item(v, i)
	}
	return out
}

func (f *file) strings(name string) []string {
	v, ok := f.key(name, strs)
	if !ok {
		return nil
	}
	list := make([]string, v.count)
	v.strings(func(i int, s []byte) { list[i] = string(s) })
	return list
}
