package grammar

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// value is a JSON value that keeps the order of its members.
type value struct {
	kind  types    // one of the types but typeInteger
	text  string   // of a string its content; null, booleans and numbers as written
	keys  []string // of an object
	elems []*value // of an object or array

	// of a value in enum or const: the same number for equal values; 0: not known
	id     int32
	byName map[string]*value // of an object with an id
}

// member returns the member of an object, nil if there is none.
func (v *value) member(key string) *value {
	if v.byName != nil {
		return v.byName[key]
	}
	if i := slices.Index(v.keys, key); i >= 0 {
		return v.elems[i]
	}
	return nil
}

// describe describes the value for an error.
func (v *value) describe() string {
	switch v.kind {
	case typeArray:
		if len(v.elems) == 0 {
			return "an empty list"
		}
		return "a list"
	case typeObject:
		return "an object"
	}
	text := string(v.append(nil))
	if r := []rune(text); len(r) > 40 {
		return string(r[:37]) + "..."
	}
	return text
}

// identify gives v and all values in it their ids, and numbers their shortest text. Values are
// equal as JSON Schema defines it: numbers by value, objects in any order.
func (p *parser) identify(v *value) {
	for _, e := range v.elems {
		p.identify(e)
	}
	key := []byte{byte(v.kind)}
	switch v.kind {
	case typeNumber:
		v.text = shortest(v.text)
		neg, digits, point := significant(v.text)
		key = fmt.Appendf(key, "%t %s %d", neg, digits, point)
	case typeArray:
		for _, e := range v.elems {
			key = binary.AppendUvarint(key, uint64(e.id))
		}
	case typeObject:
		v.byName = make(map[string]*value, len(v.keys))
		for i, name := range v.keys {
			v.byName[name] = v.elems[i]
		}
		sorted := slices.Clone(v.keys)
		slices.Sort(sorted)
		for _, name := range sorted {
			key = append(binary.AppendUvarint(key, uint64(len(name))), name...)
			key = binary.AppendUvarint(key, uint64(v.byName[name].id))
		}
	default:
		key = append(key, v.text...)
	}
	id, ok := p.ids[string(key)]
	if !ok {
		id = int32(len(p.ids) + 1)
		p.ids[string(key)] = id
	}
	v.id = id
}

// shortest returns a number without exponent and needless zeros, unless it is shorter as written.
func shortest(number string) string {
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || math.Abs(f) >= 1<<53 {
		return number
	}
	if text := strconv.FormatFloat(f+0, 'f', -1, 64); len(text) <= len(number) {
		return text // of -0 it is 0
	}
	return number
}

// whole reports whether a number is an integer as JSON Schema defines it.
func (v *value) whole() bool {
	_, digits, point := significant(v.text)
	return len(digits) <= point
}

// append appends the value as generated text writes it.
func (v *value) append(b []byte) []byte {
	switch v.kind {
	case typeString:
		return appendString(b, v.text)
	case typeArray:
		b = append(b, '[')
		for i, e := range v.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.append(b)
		}
		return append(b, ']')
	case typeObject:
		b = append(b, '{')
		for i, e := range v.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, v.keys[i]), ':')
			b = e.append(b)
		}
		return append(b, '}')
	}
	return append(b, v.text...)
}

// appendString writes s as a JSON string with the shortest escapes.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		default:
			if c < 0x20 {
				b = fmt.Appendf(b, `\u%04x`, c)
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}

// valueDepth limits the nesting of JSON in a schema: each schema takes at most two levels.
const valueDepth = 4 * MaxDepth

// parseValue reads one JSON value.
func parseValue(data []byte) (*value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return v, nil
}

func readValue(d *json.Decoder, depth int) (*value, error) {
	if depth > valueDepth {
		return nil, fmt.Errorf("nested more than %d deep", valueDepth)
	}
	tok, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case nil:
		return &value{kind: typeNull, text: "null"}, nil
	case bool:
		return &value{kind: typeBoolean, text: strconv.FormatBool(t)}, nil
	case json.Number:
		return &value{kind: typeNumber, text: t.String()}, nil
	case string:
		return &value{kind: typeString, text: t}, nil
	}
	v := &value{kind: typeArray}
	if tok == json.Delim('{') {
		v.kind = typeObject
	}
	err = v.readMembers(d, depth)
	return v, err
}

// readMembers reads the members of an object or array, and its end.
func (v *value) readMembers(d *json.Decoder, depth int) error {
	var names map[string]bool
	if v.kind == typeObject {
		names = map[string]bool{}
	}
	for d.More() {
		if v.kind == typeObject {
			key, err := d.Token()
			if err != nil {
				return err
			}
			name := key.(string) // the decoder returns nothing else here
			if names[name] {
				return fmt.Errorf("name %q appears twice in one object", name)
			}
			names[name] = true
			v.keys = append(v.keys, name)
		}
		e, err := readValue(d, depth+1)
		if err != nil {
			return err
		}
		v.elems = append(v.elems, e)
	}
	_, err := d.Token()
	return err
}
