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
		{`{"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991}`, `0|-9007199254740991|9007199254740991|1`, `9007199254740992|-9007199254740992|1.5|10000000000000000|01|1e3`},
		{`{"type":"integer","minimum":0}`, `0|7|12345678901234567`, `-1|-0|1.0`},
		{`{"type":"integer","exclusiveMinimum":0,"maximum":100}`, `1|99|100`, `0|-5|101|1000`},
		{`{"type":"integer","minimum":-20,"maximum":-3}`, `-3|-20|-9|-10`, `0|3|-2|-21|-30|20`},
		{`{"type":"integer","minimum":95,"maximum":1005}`, `95|99|100|999|1005`, `94|9|1006|2000|1`},
		{`{"type":"number","minimum":0,"maximum":1}`, `0|1|0.5|1.000|0.0001`, `1.001|-0.1|2|1e-3`},
		{`{"type":"number","exclusiveMinimum":0,"exclusiveMaximum":0.25}`, `0.2|0.249999|0.01`, `0|0.25|0.250|0.3|-0.1|0.0|1`},
		{`{"type":"number","minimum":-1.5,"maximum":2.25}`, `-1.5|-1.50|2.25|2.249|0|-0|-0.7|1`, `-1.51|2.251|2.3|3|-2`},
		{`{"type":"number","minimum":-1.7976931348623157e+308,"maximum":1.7976931348623157e+308}`, `1e5|-2.5e99|7`, `"1"`},
		{`{"type":"number","exclusiveMinimum":3,"maximum":4}`, `3.00000000000001|3.99999999999999|4`, `3|3.0000000000000001|3.0000000000000002|4.00000000000001`},
		{`{"type":"number","exclusiveMaximum":10}`, `9.99999999999999|-12345678901234567|0.12345678901234`, `10|9.9999999999999999|0.123456789012345`},
		{`{"type":"integer","multipleOf":7,"minimum":1,"maximum":700}`, `7|14|700|693`, `0|1|13|707|-7`},
		{`{"type":"number","multipleOf":5}`, `0|5|-15|100`, `2.5|6|5.0`},
		{`{"type":"string","pattern":"^[a-z]{2}-\\d+$"}`, `"ab-1"|"zz-123"`, `"ab-"|"abc-1"|"ab-1 "|"AB-1"|""`},
		{`{"type":"string","pattern":"b"}`, `"b"|"abc"|"\"b"|"éb日"`, `""|"a"|"é"`},
		{`{"type":"string","pattern":"^a|b$"}`, `"a"|"axx"|"xxb"`, `"xa"|"bx"`},
		{`{"type":"string","pattern":"\\bcat\\b"}`, `"cat"|"a cat!"|"cat "`, `"cats"|"concat"|"a_cat"`},
		{`{"type":"string","pattern":"^[^@\"]+@x$","maxLength":5}`, `"a@x"|"日é@x"|"\\\n@x"`, `"@x"|"abcd@x"|"\"@x"`},
		{`{"type":"string","pattern":"^(?!\\.)(?!.*\\.\\.)[a-z.]+$"}`, `"a.b"|"a."`, `".a"|"a..b"|""`},
		{`{"type":"string","pattern":"^[\\u4e00-\\u9fa5]+$"}`, `"中文"|"龥"`, `"a"|"中a"|"龦"|""`},
		{`{"type":"string","pattern":"^(?!\\u0061)[\\uD83D\\ude00b\\u00E9]$"}`, `"😀"|"b"|"é"`, `"a"|"😁"|"u"|"D"`},
		{`{"type":"string","pattern":"^[^\\ud800-\\udfff]$"}`, `"😀"|"a"`, `""|"aa"`},
		{`{"type":"string","pattern":"^\\\\u00e9$"}`, `"\\u00e9"`, `"é"`},
		{`{"type":"string","pattern":"a\\Qb."}`, `"ab."|"xab.y"`, `"abc"|"ab"|"b."`},
		{`{"type":"string","pattern":"(?i)^ß|k$"}`, `"ẞa"|"xK"|"K"`, `"é"|"x"`},
		{`{"type":"string","format":"date"}`, `"2024-02-29"|"2000-02-29"|"1999-12-31"`, `"2023-02-29"|"1900-02-29"|"2024-13-01"|"2024-04-31"|"0000-01-01"|"2024-1-1"`},
		{`{"type":"string","format":"date-time"}`, `"2024-02-29T23:59:59Z"|"2024-01-01T00:00:00.123+05:30"`, `"2024-02-29T24:00:00Z"|"2024-02-29"|"2024-02-29T23:59:59"`},
		{`{"type":"string","format":"time"}`, `"12:30:00Z"|"23:59:59.5-08:00"`, `"12:30"|"12:30:00"|"25:00:00Z"`},
		{`{"type":"string","format":"duration"}`, `"P1D"|"PT5M"|"P3W"|"P1Y2M3DT4H5M6S"`, `"P"|"PT"|"1D"|"P1Y2D"|"P1S"`},
		{`{"type":"string","format":"uuid"}`, `"123e4567-e89b-12d3-a456-426614174000"`, `"123e4567e89b12d3a456426614174000"|"x"`},
		{`{"type":"string","format":"lowercase","pattern":"^[^A-Z]*$"}`, `"ab"`, `"aB"`},
		{`{"type":"string","format":"ends_with","allOf":[{"pattern":"^a"},{"pattern":"z$"}]}`, `"az"|"abz"`, `"a"|"z"|"bz"`},
		{`{"type":"string","format":"ipv4"}`, `"0.0.0.0"|"255.1.20.3"`, `"256.1.1.1"|"1.1.1"|"01.1.1.1"`},
		{`{"type":"string","format":"ipv6"}`, `"::"|"::1"|"1:2:3:4:5:6:7:8"|"fe80::1:2"|"1::"`, `"1:2:3"|":::"|"1::2::3"|"12345::"`},
		{`{"type":"string","format":"email"}`, `"a@b.co"|"first.last+tag@x-y.example.org"`, `"a@b"|"@b.co"|"a..b@c.de"|"a@-b.co"`},
		{`{"type":"string","format":"hostname"}`, `"a"|"x-1.example.org"`, `""|"-a"|"a."|"a_b"`},
		{`{"type":"string","format":"uri"}`, `"https://example.org"|"http://a.bc:80/x/%20y?q=1#f"`, `"example.org"|"/x"|"https://"|"https://a.bc/%zz"`},
		{`{"type":"string","format":"password","writeOnly":true,"maxLength":1}`, `"a"|"é"`, `"ab"`},
		{`{"type":"integer","format":"int32"}`, `2147483647|-2147483648`, `2147483648`},
		{`{"type":"array","prefixItems":[{"type":"integer"},{"type":"boolean"}],"items":false}`, `[1,true]`, `[1]|[]|[true,1]|[1,true,2]`},
		{`{"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"null"},"minItems":0,"maxItems":3}`, `[]|[1]|[1,null]|[1,null,null]`, `[null]|[1,1]|[1,null,null,null]`},
		{`{"allOf":[{"$ref":"#/$defs/a"},{"properties":{"c":{"type":"null"}},"required":["c"]}],"$defs":{"a":{"type":"object","properties":{"b":{"const":1}},"required":["b"]}}}`, `{"b":1,"c":null}`, `{"b":1}|{"c":null,"b":1}|{}`},
		{`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]}`, `{"k":"a","x":1}|{"k":"b"}`, `{"k":"a"}|{"k":"b","x":1}|{}`},
		{`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"}}},{"type":"object","properties":{"k":{"const":"b"}}}],"discriminator":{"propertyName":"k"}}`, `{"k":"a"}|{"k":"b"}`, `{}`},
		{`{"type":"object","propertyNames":{"type":"string","enum":["a","b"]},"additionalProperties":{"type":"null"},"required":["a"]}`, `{"a":null}|{"a":null,"b":null}`, `{}|{"b":null}|{"a":null,"c":null}`},
		{`{"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"null"}}`, `{}|{"z":null}`, `{"z":1}`},
		{`{"type":"object","propertyNames":{"const":"b","enum":["a","b"]}}`, `{}|{"b":1}`, `{"a":1}`},
		{`{"allOf":[{"type":"object","properties":{"x":{}},"propertyNames":{"enum":["a"]}},{"properties":{"a":{},"x":{}}}]}`, `{}|{"a":1}`, `{"x":1}|{"a":1,"x":1}`},
		{`{"enum":[{"x":1},{"a":1}],"properties":{"x":{}},"propertyNames":{"enum":["a"]}}`, `{"a":1}`, `{"x":1}`},
		{`{"type":"integer","enum":[3,12345678901234567.5]}`, `3`, `12345678901234567.5`},
		{`{"enum":[1e16],"const":10000000000000000}`, `10000000000000000`, `1e16|1`},
		{`{"type":"integer","maximum":1e9223372036854775807}`, `7|-7`, `1.5`},
		{`{"enum":["aa","b",5,6,0.5],"pattern":"^a","multipleOf":3}`, `"aa"|6`, `"b"|5|0.5`},
		{`{"type":"string","minLength":2,"maxLength":3}`, `"ab"|"日本語"|"\"\n\\"`, `"a"|"abcd"|"日"`},
		{`{"enum":["a",1,null,{"b":[1,2]},"a\nb"]}`, `"a"|1|null|{"b":[1,2]}|"a\nb"`, `"b"|{"b":[1, 2]}|11`},
		{`{"enum":[1,12,123]}`, `1|12|123`, `2|1234|124`},
		{`{"const":"x"}`, `"x"`, `"y"|x`},
		{`{"enum":["a",1,2.5,3.0],"type":"integer"}`, `1|3`, `"a"|2.5|3.0`},
		{`{"enum":[1.0,1,-0.0,2.50,5e-1,1e2,1e-7,{"a":[10.0]},12345678901234567890.0]}`, `1|0|2.5|0.5|100|1e-7|{"a":[10]}|12345678901234567890.0`, `1.0|-0.0|-0|2.50|5e-1|1e2|0.0000001`},
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
		{`{"type":"object","properties":{"type":{"enum":["div","form"]},"children":{"type":"array","items":{"$ref":"#"}}},"required":["type","children"],"additionalProperties":false}`,
			`{"type":"div","children":[]}|{"type":"div","children":[{"type":"form","children":[]},{"type":"div","children":[{"type":"form","children":[]}]}]}`,
			`{"type":"div","children":[{}]}|{"type":"div","children":[1]}`},
		{`{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/$defs/l"}}],"$defs":{"l":{"allOf":[{"$ref":"#"}]}}}`, `null|[]|[null,[[]]]`, `1|[1]`},
		{`{"$ref":"#/definitions/a~1b","definitions":{"a/b":{"type":"null"}},"title":"x","description":"y"}`, `null`, `1`},
		{`{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"integer"}]}}}`, `1|null`, `"a"`},
		{`{}`, `1|"a"|{"x":[{}]}|[[[]]]|true`, `tru|{"x"}`},
		{`true`, `1|{}`, `x`},
		{`{"type":"object","properties":{"a":false,"b":{"type":"null"}}}`, `{}|{"b":null}`, `{"a":1}`},
		{`{"type":"object","properties":{"name":false,"b":{"type":"null"}},"additionalProperties":true}`,
			`{}|{"b":null}|{"nam":1}|{"b":null,"names":[]}`, `{"name":true}|{"b":null,"name":null}|{"x":1,"name":1}|{"x":1,"b":null}`},
		{`{"allOf":[{"type":"object","properties":{"a":{"type":"string"},"b":true},"required":["b"],"additionalProperties":true},{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":true}]}`,
			`{"b":1}|{"b":1,"aa":2}`, `{"a":"x"}|{"a":1,"b":1}|{"b":1,"a":null}|{"aa":2,"b":1}`},
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
		{`{"type":"string","patternProperties":{}}`, "/patternProperties", "patternProperties", "not supported"},
		{`{"properties":{"a":{"properties":{"b~/":{"minContains":1}}}}}`, "/properties/a/properties/b~0~1/minContains", "minContains", "not supported"},
		{`{"anyOf":[{"type":"null"},{"not":[]}]}`, "/anyOf/1/not", "not", "not supported"},
		{`{"$defs":{"x":{"if":{}}}}`, "/$defs/x/if", "if", "not supported"},
		{`{"type":"string","pattern":"a(?=b)"}`, "/pattern", "pattern", "RE2 syntax"},
		{`{"type":"string","pattern":"^(?=a)*b"}`, "/pattern", "pattern", "RE2 syntax"},
		{`{"type":"string","pattern":"^a{1000}$","maxLength":999}`, "/pattern", "pattern", "no string"},
		{`{"type":"string","pattern":"^(?:a|b)*a(?:a|b){30}$"}`, "", "", "too complex"},
		{`{"type":"string","pattern":"[ab]{1000}{1000}"}`, "/pattern", "pattern", "repetition"},
		{`{"type":"string","format":"iri"}`, "/format", "format", "want one of date, date-time, duration, email"},
		{`{"type":"string","format":"date","maxLength":9}`, "/format", "format", "no string"},
		{`{"type":"integer","minimum":5,"maximum":4}`, "/minimum", "minimum", "more than maximum"},
		{`{"type":"integer","exclusiveMinimum":4,"exclusiveMaximum":5}`, "/minimum", "minimum", "no number"},
		{`{"type":"integer","minimum":1e400}`, "/minimum", "minimum", "17 digits"},
		{`{"type":"number","multipleOf":0.01}`, "/multipleOf", "multipleOf", "want a whole number from 1"},
		{`{"type":"array","uniqueItems":true}`, "/uniqueItems", "uniqueItems", "got true, want false, or items with enum or const"},
		{`{"type":"array","uniqueItems":1}`, "/uniqueItems", "uniqueItems", "got 1, want true or false"},
		{`{"uniqueItems":true,"items":{"anyOf":[{"const":1},{"type":"null"}]}}`, "/uniqueItems", "uniqueItems", "or items with enum"},
		{`{"uniqueItems":true,"prefixItems":[{"const":1}],"items":{"const":1},"maxItems":2}`, "/uniqueItems", "uniqueItems", "together with prefixItems"},
		{`{"uniqueItems":true,"items":{"enum":[` + strings.Join(alts[:32], ",") + `]}}`, "/uniqueItems", "uniqueItems", "32 values, want at most 31"},
		{`{"uniqueItems":true,"items":{"enum":[1,2]},"minItems":3}`, "/uniqueItems", "uniqueItems", "minItems is 3, but the items have 2 values"},
		{`{"oneOf":[{"type":"integer"},{"type":"number"}]}`, "/oneOf", "oneOf", "alternatives 0 and 1 may both hold"},
		{`{"oneOf":[{"const":1e16},{"const":10000000000000000}]}`, "/oneOf", "oneOf", "alternatives 0 and 1 may both hold"},
		{`{"propertyNames":{"pattern":"a"}}`, "/propertyNames", "propertyNames", "want {"},
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
		{`{"$ref":"#"}`, "/$ref", "$ref", "refers to itself"},
		{`{"anyOf":[{"type":"object","properties":{"a":{"$ref":"#/properties/b"}}}]}`, "/anyOf/0/properties/a/$ref", "$ref", "want #, #/$defs/NAME"},
		{`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, "", "", "no value of finite length"},
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
		},
		map[string]any{"type": "integer", "minimum": r.IntN(99) - 50, "maximum": 49 + r.IntN(999)},
		map[string]any{"type": "number", "exclusiveMinimum": -0.25, "maximum": 1 + r.IntN(3)},
		map[string]any{"multipleOf": 1 + r.IntN(12)},
		map[string]any{"pattern": "^[a-c]+é?\\.$", "maxLength": 3 + r.IntN(4)},
		map[string]any{"format": "date"},
		map[string]any{
			"prefixItems": []any{map[string]any{"type": "null"}, map[string]any{"const": 1}},
			"items":       false,
		},
		map[string]any{"allOf": []any{
			map[string]any{"minimum": 3}, map[string]any{"type": "integer", "maximum": 30},
		}}, map[string]any{"enum": []any{"x", 12, 1.5, nil, "é\"\n"}},
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
