package grammar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// byteVocabulary has a token for each byte, and 256 ends a text.
func byteVocabulary(tb testing.TB) *Vocabulary {
	tb.Helper()
	v, err := NewVocabulary(257, func(id int32, _ bool) []byte {
		if id == 256 {
			return nil
		}
		return []byte{byte(id)}
	}, []int32{256})
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

func compileText(tb testing.TB, text string) *Grammar {
	tb.Helper()
	s, err := Parse([]byte(text))
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	g, err := Compile(context.Background(), s, byteVocabulary(tb))
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return g
}

// whole reports whether a grammar accepts text as a whole value.
func whole(g *Grammar, text string) bool {
	s := g.read(g.start(), []byte(text))
	return s.complete()
}

// Ensure that a grammar accepts exactly the texts that the schema describes.
func TestSchema(t *testing.T) {
	for _, c := range []struct{ schema, good, bad string }{
		{`{"type":"null"}`, `null`, `nul|"null"|0`},
		{`{"type":"boolean"}`, `true|false`, `True|t|truefalse`},
		{`{"type":"integer"}`, `0|-0|7|-12|12345678901234567`, `01|1.0|1e3|123456789012345678|--1|-`},
		{`{"type":"number"}`, `0|1.50|-2e-9|1e+99|1.5e7|0.1`, `1.|.5|1e|1e999|00|1.2345678901234567890|1E5`},
		{`{"type":["integer","null"]}`, `1|null`, `1.5|"1"`},
		{`{"type":["integer","number"]}`, `1|1.5`, `"1"`},
		{`{"type":"string"}`, `""|"a\n\"\\"|"é日😀"|"</s>"`, "\"\n\"|\"\\u0041\"|\"\xff\"|\"\xed\xa0\x80\"|\"\xc2\x80\"|\"\x7f\"|a"},
		{`{"type":"string","minLength":2,"maxLength":3}`, `"ab"|"日本語"|"\"\n\\"`, `"a"|"abcd"|"日"`},
		{`{"enum":["a",1,null,{"b":[1,2]},"a\nb"]}`, `"a"|1|null|{"b":[1,2]}|"a\nb"`, `"b"|{"b":[1, 2]}|11`},
		{`{"enum":[1,12,123]}`, `1|12|123`, `2|1234|124`},
		{`{"const":"x"}`, `"x"`, `"y"|x`},
		{`{"enum":["a",1,2.5,3.0],"type":"integer"}`, `1|3.0`, `"a"|2.5`},
		{`{"type":"string","enum":["a","bbb"],"minLength":2}`, `"bbb"`, `"a"`},
		{`{"type":"array","items":{"type":"integer"}}`, `[]|[1]|[1,2,3]`, `[1,]|[,1]|["a"]|[1 ]`},
		{`{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2}`, `[1]|[1,2]`, `[]|[1,2,3]`},
		{`{"type":"array","maxItems":0}`, `[]`, `[1]`},
		{`{"type":"array"}`, `[]|[1,"a",[{"x":null}]]`, `[1,2`},
		{`{"type":"object"}`, `{}`, `{"a":1}|{ }`},
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"null"}},"required":["b"]}`,
			`{"b":""}|{"a":1,"b":""}|{"b":"","c":null}|{"a":1,"b":"","c":null}`,
			`{}|{"a":1}|{"b":"","a":1}|{"b":"",}|{,"b":""}|{"b":"","b":""}|{"d":1,"b":""}`},
		{`{"properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}}`,
			`{}|{"a":1}|{"a":1,"x":true}|{"ab":true}|{"":true}|{"é":false,"y":true}`,
			`{"a":true}|{"x":1}|{"x":true,"a":1}|{"x\"":true}`},
		{`{"type":"object","properties":{"ab":true,"abc":{"type":"null"}},"required":["abc"],"additionalProperties":true}`,
			`{"abc":null}|{"ab":[],"abc":null,"abcd":1,"a":2}`, `{"abcd":1,"abc":null}|{"abc":null,"ab":1}|{"ab":1}`},
		{`{"type":"object","properties":{},"required":["x"],"additionalProperties":{"type":"integer"}}`, `{"x":1}|{"x":1,"y":2}`, `{}|{"y":2}`},
		{`{"properties":{"a\"b":{"type":"null"},"\u0001":{"type":"null"},"\u007f":{"type":"null"}},"additionalProperties":{"type":"integer"}}`,
			`{"a\"b":null}|{"\u0001":null}|{"a":1}` + "|{\"\x7f\":null}", `{"a\"b":1}|{"a\"":1}|{"\u0002":1}` + "|{\"\x7f\":1}"},
		{`{"anyOf":[{"type":"integer"},{"type":"string"}]}`, `1|"a"`, `null`},
		{`{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`,
			`{"a":1}|{"b":1}|{"a":1,"b":2}`, `{}|{"b":1,"a":2}`},
		{`{"type":["object","null"],"properties":{"k":{"const":1}},"required":["k"],"anyOf":[{"properties":{"a":{"type":"null"}},"required":["a"]},{"type":"null"}]}`,
			`{"k":1,"a":null}|null`, `{"k":1}|{"a":null}`},
		{`{"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"v":{"type":"integer"},"n":{"$ref":"#/$defs/t"}},"required":["v"]}}}`,
			`{"v":1}|{"v":1,"n":{"v":2,"n":{"v":3}}}`, `{"n":{"v":1}}|{"v":1,"n":{}}`},
		{`{"$ref":"#/definitions/a~1b","definitions":{"a/b":{"type":"null"}},"title":"x","description":"y"}`, `null`, `1`},
		{`{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"integer"}]}}}`, `1|null`, `"a"`},
		{`{}`, `1|"a"|{"x":[{}]}|[[[]]]|true`, `tru|{"x"}`},
		{`true`, `1|{}`, `x`},
		{`{"type":"object","properties":{"a":false,"b":{"type":"null"}}}`, `{}|{"b":null}`, `{"a":1}`},
		{`{"type":"array","items":{"$ref":"#/$defs/l"},"$defs":{"l":{"type":"array","minItems":1,"items":{"$ref":"#/$defs/l"}}}}`, `[]`, `[[]]`},
		{`{"minLength":3}`, `"abc"`, `1|"a"`},
		{`{"items":{"type":"integer"},"minLength":1}`, `"a"|[1]`, `""|{}`},
	} {
		g := compileText(t, c.schema)
		for _, text := range strings.Split(c.good, "|") {
			if !whole(g, text) {
				t.Errorf("%s: %s is refused", c.schema, text)
			}
		}
		for _, text := range strings.Split(c.bad, "|") {
			if whole(g, text) {
				t.Errorf("%s: %s is admitted", c.schema, text)
			}
		}
	}
}

// Ensure that refusals name the JSON pointer.
func TestRefusals(t *testing.T) {
	deep := strings.Repeat(`{"items":`, 40) + "{}" + strings.Repeat("}", 40)
	var alts []string
	for i := range MaxAlternatives + 1 {
		alts = append(alts, fmt.Sprint(i))
	}
	for _, c := range []struct{ schema, pointer, keyword, text string }{
		{`{"type":"string","pattern":"a+"}`, "/pattern", "pattern", "not supported"},
		{`{"properties":{"a":{"properties":{"b~/":{"minimum":1}}}}}`, "/properties/a/properties/b~0~1/minimum", "minimum", "not supported"},
		{`{"anyOf":[{"type":"null"},{"oneOf":[]}]}`, "/anyOf/1/oneOf", "oneOf", "not supported"},
		{`{"$defs":{"x":{"format":"date"}}}`, "/$defs/x/format", "format", "not supported"},
		{`{"type":"text"}`, "/type", "type", `got "text"`},
		{`{"type":[]}`, "/type", "type", "at least one"},
		{`{"enum":[]}`, "/enum", "enum", "empty list"},
		{`{"anyOf":[]}`, "/anyOf", "anyOf", "empty list"},
		{`{"minLength":3,"maxLength":2}`, "/minLength", "minLength", "got 3, want at most maxLength, which is 2"},
		{`{"items":{"minItems":3,"maxItems":2}}`, "/items/minItems", "minItems", "got 3"},
		{`{"minLength":-1}`, "/minLength", "minLength", "got -1"},
		{`{"maxItems":1.5}`, "/maxItems", "maxItems", "got 1.5"},
		{`{"items":[{}]}`, "/items", "items", "one schema"},
		{`{"type":"object","properties":{"a":{}},"required":["a","b"]}`, "/required", "required", `got "b", which is no property`},
		{`{"type":"string","const":1}`, "/enum", "enum", "none of the values"},
		{`{"$ref":"#"}`, "/$ref", "$ref", "want #/$defs/NAME"},
		{`{"$ref":"#/$defs/x"}`, "/$ref", "$ref", "is not there"},
		{`{"$ref":"#/$defs/x","$defs":{"x":{"$ref":"#/$defs/x"}}}`, "/$defs/x/$ref", "$ref", "refers to itself"},
		{`{"$ref":"#/$defs/x","$defs":{"x":{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"required":["a"]}}}`, "", "", "no value of finite length"},
		{`false`, "", "", "no value of finite length"},
		{`5`, "", "", "want a schema"},
		{`{"a":1`, "", "", "invalid JSON"},
		{`{"type":"null","type":"null"}`, "", "", "twice"},
		{deep, strings.Repeat("/items", 32), "", "depth"},
		{`{"enum":[` + strings.Join(alts, ",") + `]}`, "/enum", "", "alternatives"},
		{`{"title":"` + strings.Repeat("x", MaxBytes) + `"}`, "", "", "65536"},
	} {
		s, err := Parse([]byte(c.schema))
		if err == nil {
			_, err = Compile(context.Background(), s, byteVocabulary(t))
		}
		var e *Error
		if !errors.As(err, &e) || e.Pointer != c.pointer || e.Keyword != c.keyword ||
			!strings.Contains(e.Problem, c.text) {
			t.Errorf("%.80s: got %v, want %q at %q: %s", c.schema, err, c.keyword, c.pointer,
				c.text)
		}
	}
	ok := strings.Repeat(`{"items":`, MaxDepth-1) + "{}" + strings.Repeat("}", MaxDepth-1)
	compileText(t, ok)
	compileText(t, `{"enum":[`+strings.Join(alts[:MaxAlternatives], ",")+`]}`)
}

// randomSchema returns a schema of the subset.
func randomSchema(r *rand.Rand, depth int) any {
	leaf := []any{
		map[string]any{
			"type": "null",
		}, map[string]any{"type": "boolean"}, map[string]any{"type": "integer"},
		map[string]any{
			"type": "number",
		}, map[string]any{"type": "string", "maxLength": 1 + r.IntN(4)},
		map[string]any{
			"type":      "string",
			"minLength": r.IntN(3),
		}, map[string]any{"enum": []any{"x", 12, 1.5, nil, "é\"\n"}},
		map[string]any{
			"const": map[string]any{"k": []any{1, "v"}},
		}, map[string]any{"type": []any{"integer", "null"}}, map[string]any{},
		map[string]any{"$ref": "#/$defs/d"},
	}
	if depth == 0 || r.IntN(4) == 0 {
		return leaf[r.IntN(len(leaf))]
	}
	switch r.IntN(4) {
	case 0:
		s := map[string]any{"type": "array", "items": randomSchema(r, depth-1)}
		if r.IntN(2) == 0 {
			s["minItems"] = r.IntN(3)
			s["maxItems"] = 3
		}
		return s
	case 1:
		return map[string]any{"anyOf": []any{randomSchema(r, depth-1), randomSchema(r, depth-1)}}
	}
	props := map[string]any{}
	var required []string
	for _, name := range []string{"a", "ab", "b", "é", "q\"\\"} {
		if r.IntN(2) == 0 {
			props[name] = randomSchema(r, depth-1)
			if r.IntN(2) == 0 {
				required = append(required, name)
			}
		}
	}
	s := map[string]any{"type": "object", "properties": props}
	if required != nil {
		s["required"] = required
	}
	switch r.IntN(4) {
	case 0:
		s["additionalProperties"] = randomSchema(r, depth-1)
	case 1:
		s["additionalProperties"] = false
	case 2:
		if len(required) > 0 {
			s["anyOf"] = []any{
				map[string]any{"required": required[:1]},
				map[string]any{"properties": map[string]any{"z": leaf[r.IntN(len(leaf))]}},
			}
		}
	}
	return s
}

// generate draws a text token by token; after soft tokens it ends as soon as possible.
func generate(
	tb testing.TB,
	g *Grammar,
	v *Vocabulary,
	r *rand.Rand,
	soft, hard int,
) (string, bool) {
	tb.Helper()
	m := g.NewMatcher(context.Background())
	var text []byte
	for n := range hard {
		mask := m.Mask()
		var ids []int32
		for id := range int32(len(v.tokens)) {
			if Allowed(mask, id) {
				ids = append(ids, id)
			}
		}
		if len(ids) == 0 {
			tb.Fatalf("after %q no token may come next", text)
		}
		if m.Complete() != Allowed(mask, v.end[0]) {
			tb.Fatalf("after %q: complete is %t, the end token says otherwise", text, m.Complete())
		}
		id := ids[r.IntN(len(ids))]
		if n > soft {
			id = ids[0]
			rank := func(id int32) int {
				if id == v.end[0] {
					return -1
				}
				if at := bytes.IndexAny(v.tokens[id], `}]"0ntf-x,:`); at == 0 {
					return strings.IndexByte(`}]"0ntf-x,:`, v.tokens[id][0])
				}
				return 99
			}
			for _, other := range ids {
				if rank(other) < rank(id) {
					id = other
				}
			}
		}
		if id == v.end[0] {
			return string(text), true
		}
		begun := m.begun
		if err := m.Accept(id); err != nil {
			tb.Fatal(err)
		}
		piece := v.tokens[id]
		if !begun {
			for _, f := range v.first {
				if f.id == id {
					piece = f.text
				}
			}
		}
		text = append(text, piece...)
	}
	return string(text), false
}

// validator compiles a schema with an independent implementation.
func validator(tb testing.TB, schema []byte) *jsonschema.Schema {
	tb.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		tb.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		tb.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		tb.Fatalf("%s: %v", schema, err)
	}
	return s
}

// Ensure that every text that a grammar accepts is valid for an independent validator.
func TestGeneratedIsValid(t *testing.T) {
	v := byteVocabulary(t)
	ended := 0
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		root := map[string]any{
			"$defs": map[string]any{"d": randomSchema(r, 1)},
			"anyOf": []any{randomSchema(r, 3)},
		}
		data, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		var g *Grammar
		s, err := Parse(data)
		if err == nil {
			g, err = Compile(context.Background(), s, v)
		}
		if err != nil {
			if !strings.Contains(err.Error(), "finite") &&
				!strings.Contains(err.Error(), "refers to itself") {
				t.Fatalf("%s: %v", data, err)
			}
			continue
		}
		valid := validator(t, data)
		for range 3 {
			text, end := generate(t, g, v, r, 60, 600)
			if !end {
				continue
			}
			ended++
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if err != nil {
				t.Fatalf("%s: %s: %v", data, text, err)
			}
			if err := valid.Validate(value); err != nil {
				t.Fatalf("%s: %s: %v", data, text, err)
			}
		}
	}
	if ended < 500 {
		t.Errorf("only %d texts came to an end", ended)
	}
}

// Allowed reports whether a mask holds a token.
func Allowed(mask []uint64, id int32) bool {
	return int(id>>6) < len(mask) && mask[id>>6]>>(id&63)&1 != 0
}
