package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/files"
)

// at returns the i-th item of a list.
func at(l *List, i int) Item { return slices.Collect(l.Items())[i] }

// Ensure that an error names the wrong byte of a body.
func TestInvalidJSON(t *testing.T) {
	for body, message := range map[string]string{
		``:                        `invalid JSON at byte 0: unexpected end, want a value`,
		` `:                       `invalid JSON at byte 1: unexpected end, want a value`,
		`{`:                       `invalid JSON at byte 1: unexpected end, want a name in quotes`,
		`{"a":x}`:                 `invalid JSON at byte 6: got 'x', want a value`,
		`{"a":1,}`:                `invalid JSON at byte 8: got '}', want a name in quotes`,
		`{"a" 1}`:                 `invalid JSON at byte 6: got '1', want a colon`,
		`{"a":1 "b":2}`:           `invalid JSON at byte 8: got '"', want a comma or }`,
		`{"a":tru}`:               `invalid JSON at byte 9: got '}', want true`,
		`{"a":"x`:                 `invalid JSON at byte 7: unexpected end, want the end of a string`,
		"{\"a\":\"x\ny\"}":        `invalid JSON at byte 8: got '\n' in a string, want it escaped`,
		`{"a":"\x"}`:              `invalid JSON at byte 8: got 'x', want an escape`,
		`{"a":"\u00g0"}`:          `invalid JSON at byte 11: got 'g', want four hexadecimal digits`,
		`{"a":01}`:                `invalid JSON at byte 7: got '1', want a comma or }`,
		`{"a":1.}`:                `invalid JSON at byte 8: got '}', want a digit`,
		`{} {}`:                   `invalid JSON at byte 4: data after the first value`,
		"{\"a\":\"\xff\"}":        `invalid JSON at byte 7: not UTF-8`,
		`[1,2`:                    `invalid JSON at byte 4: unexpected end, want a comma or ]`,
		strings.Repeat("[", 2000): `invalid JSON at byte 1002: nested more than 1000 deep`,
	} {
		_, err := Parse([]byte(body))
		var e *Error
		if !errors.As(err, &e) || e.Code != "invalid_json" || e.Message != message ||
			e.Status != 400 {
			t.Errorf("%.60q: got %v, want %s", body, err, message)
		}
	}
	for _, body := range []string{`[]`, `1`, `"a"`, `null`, `true`} {
		_, err := Parse([]byte(body))
		var e *Error
		if !errors.As(err, &e) || e.Code != "invalid_type" {
			t.Errorf("%q: got %v, want invalid_type", body, err)
		}
	}
}

// Ensure that fields are read with their type and range, and that errors contain the path.
func TestFields(t *testing.T) {
	o, err := Parse(
		[]byte(
			`{"s":"a\u00e9\"","n":null,"i":3,"f":1.5,"t":true,"o":{"deep":["x",{"y":7}]},"big":99999999999999999999,"unused":1,"é":[]}`,
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	if got := o.String("s"); got != `aé"` {
		t.Errorf("got %q", got)
	}
	i, ok := o.Int("i", 1, 5)
	f, _ := o.Float("f", 0, 2, false)
	if i != 3 || !ok || f != 1.5 || !o.Bool("t") || o.Has("n") || o.String("n") != "" ||
		o.String("none") != "" {
		t.Error("a field is not what the body says")
	}
	if n, _ := o.Int("big", 1, math.MaxInt64); n != math.MaxInt64 {
		t.Errorf("got %d", n)
	}
	deep := o.Object("o").List("deep")
	y, _ := at(deep, 1).Object().Int("y", 0, 9)
	if deep.Len() != 2 || deep.First().Text() != "x" || y != 7 {
		t.Error("a nested field is not what the body says")
	}
	if err := o.Err(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(o.Unread(), " "); got != "unused é" {
		t.Errorf("unread: got %q", got)
	}
	for field, want := range map[string]struct {
		code, message string
		read          func(o *Object)
	}{
		`"a":1`:                     {"invalid_type", "a: got 1, want a string", func(o *Object) { o.String("a") }},
		`"a":"yes"`:                 {"invalid_type", `a: got "yes", want true or false`, func(o *Object) { o.Bool("a") }},
		`"a":1.5`:                   {"invalid_type", "a: got 1.5, want an integer", func(o *Object) { o.Int("a", 0, 9) }},
		`"a":"1"`:                   {"invalid_type", `a: got "1", want an integer`, func(o *Object) { o.Int("a", 0, 9) }},
		`"a":0`:                     {"integer_below_min_value", "a: got 0, want at least 1", func(o *Object) { o.Int("a", 1, 9) }},
		`"a":10`:                    {"integer_above_max_value", "a: got 10, want at most 9", func(o *Object) { o.Int("a", 1, 9) }},
		`"a":-99999999999999999999`: {"integer_below_min_value", "a: got -99999999999999999999, want at least 1", func(o *Object) { o.Int("a", 1, 9) }},
		`"a":99999999999999999999`: {"integer_above_max_value", "a: got 99999999999999999999, want at most 9223372036854775807",
			func(o *Object) { o.Int("a", math.MinInt64, math.MaxInt64); o.Exact("a") }},
		`"a":{}`:                      {"invalid_type", "a: got an object, want a number", func(o *Object) { o.Float("a", 0, 1, false) }},
		`"a":2.5`:                     {"decimal_above_max_value", "a: got 2.5, want at most 2", func(o *Object) { o.Float("a", 0, 2, false) }},
		`"a":-0.1`:                    {"decimal_below_min_value", "a: got -0.1, want at least 0", func(o *Object) { o.Float("a", 0, 2, false) }},
		`"a":0` + " ":                 {"decimal_below_min_value", "a: got 0, want more than 0", func(o *Object) { o.Float("a", 0, 1, true) }},
		`"a":1e999`:                   {"decimal_above_max_value", "a: got 1e999, want at most 2", func(o *Object) { o.Float("a", 0, 2, false) }},
		`"a":[1]`:                     {"invalid_type", "a: got a list, want an object", func(o *Object) { o.Object("a") }},
		`"a":{"b":[1]}`:               {"invalid_type", "a.b[0]: got 1, want a string", func(o *Object) { o.Object("a").List("b").First().Text() }},
		`"a":[{"b":1}]`:               {"invalid_type", "a[0].b: got 1, want a string", func(o *Object) { o.List("a").First().Object().String("b") }},
		`"a":[-99999999999999999999]`: {"integer_below_min_value", "a[0]: got -99999999999999999999, want at least 0", func(o *Object) { o.List("a").First().Int(0, 9) }},
		`"a":[1e999]`:                 {"decimal_above_max_value", "a[0]: got 1e999, want at most 2", func(o *Object) { o.List("a").First().Float(0, 2) }},
		`"b":1`:                       {"missing_required_parameter", "a: missing, want a list", func(o *Object) { o.Require("a", "a list") }},
		`"a":null`:                    {"missing_required_parameter", "a: missing, want a list", func(o *Object) { o.Require("a", "a list") }},
	} {
		o, err := Parse([]byte("{" + field + "}"))
		if err != nil {
			t.Fatal(err)
		}
		want.read(o)
		o.Fail("later", "x", "is not what is reported")
		var e *Error
		if !errors.As(o.Err(), &e) || e.Code != want.code || e.Message != want.message ||
			!strings.HasPrefix(e.Message, e.Param+": ") {
			t.Errorf("%s: got %v, want %s %s", field, o.Err(), want.code, want.message)
		}
	}
}

// Ensure that a whole number may have zeros after a point, and is then read exactly.
func TestWhole(t *testing.T) {
	o, err := Parse([]byte(`{"a":4096.0,"b":-1.00,"c":9007199254740993.0,"d":[5.0],"e":7}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{"a": 4096, "b": -1, "c": 1<<53 + 1, "e": 7} {
		if n, ok := o.Int(name, -1, math.MaxInt64); n != want || !ok {
			t.Errorf("%s: got %d %t, want %d", name, n, ok, want)
		}
		o.Exact(name)
	}
	if n := o.List("d").First().Int(0, 9); n != 5 || o.Err() != nil {
		t.Errorf("got %d, %v", n, o.Err())
	}
	for _, body := range []string{`{"a":4096.01}`, `{"a":1.5}`, `{"a":10.0}`} {
		o, err := Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if o.Int("a", 0, 9); o.Err() == nil {
			t.Errorf("%s: got no error", body)
		}
	}
	o, err = Parse([]byte(`{"a":99999999999999999999.0}`))
	if err != nil {
		t.Fatal(err)
	}
	if o.Exact("a"); o.Err() == nil {
		t.Error("a number beyond int64: got no error")
	}
}

// Ensure that a byte-order mark is taken once and counted in positions, and that a body has limits.
func TestLimits(t *testing.T) {
	repeated := func(before, item, after string, n int) string {
		return before + strings.Repeat(item+",", n-1) + item + after
	}
	digits := strings.Repeat("0", maxNumber)
	for name, c := range map[string]struct {
		body, code, message string // none: taken
		read                func(o *Object)
	}{
		"a mark":              {"\uFEFF{}", "", "", nil},
		"two marks":           {"\uFEFF\uFEFF{}", "invalid_json", `at byte 4: got 'ï'`, nil},
		"an error after it":   {"\uFEFF{x", "invalid_json", `at byte 5: got 'x'`, nil},
		"half a character":    {"\uFEFF{\"\xff", "invalid_json", "at byte 6: not UTF-8", nil},
		"the most values":     {repeated(`{"a":[`, "0", `]}`, maxValues-2), "", "", nil},
		"more values":         {repeated(`{"a":[`, "0", `]}`, maxValues-1), "invalid_value", "the body has more than 1048576 values", nil},
		"the most fields":     {repeated(`{`, `"a":0`, `}`, maxFields), "", "", nil},
		"more fields":         {repeated(`{`, `"a":0`, `}`, maxFields+1), "invalid_value", "got more than 1024 fields", nil},
		"an unread object":    {`{"a":` + repeated(`{`, `"a":0`, `}`, maxFields+1) + `}`, "", "", nil},
		"more fields in one":  {`{"a":` + repeated(`{`, `"a":0`, `}`, maxFields+1) + `}`, "invalid_value", "a: got more than 1024 fields", func(o *Object) { o.Object("a") }},
		"the longest number":  {`{"a":1.` + digits[2:] + `}`, "", "", func(o *Object) { o.Float("a", 0, 1, false) }},
		"a longer number":     {`{"a":1.` + digits + `}`, "invalid_type", "want a number of at most 1024 bytes", func(o *Object) { o.Float("a", 0, 1, false) }},
		"a longer integer":    {`{"a":1` + digits + `}`, "invalid_type", "want an integer of at most 1024 bytes", func(o *Object) { o.Int("a", 0, 1) }},
		"a longer item":       {`{"a":[1` + digits + `]}`, "invalid_type", "a[0]: got 1000", func(o *Object) { o.List("a").First().Int(0, 1) }},
		"a text for a number": {`{"a":"` + digits + `"}`, "invalid_type", "want a number", func(o *Object) { o.Float("a", 0, 1, false) }},
	} {
		o, err := Parse([]byte(c.body))
		if err == nil && c.read != nil {
			c.read(o)
			err = o.Err()
		}
		var e *Error
		if c.code == "" && err != nil ||
			c.code != "" && (!errors.As(err, &e) || e.Code != c.code || e.Status != 400 ||
				!strings.Contains(e.Message, c.message)) {
			t.Errorf("%s: got %v, want %s %s", name, err, c.code, c.message)
		}
	}
}

// Ensure that an error in JSON has the shape that clients expect.
func TestErrorJSON(t *testing.T) {
	e := Bad("integer_above_max_value", "restore.n_vis", "got 577, want at most 576")
	for want, e := range map[string]*Error{
		`{"error":{"message":"restore.n_vis: got 577, want at most 576","type":"invalid_request_error","param":"restore.n_vis","code":"integer_above_max_value"}}`: e,
		`{"error":{"message":"m","type":"rate_limit_error","param":null,"code":"queue_full"}}`:                                                                     New(429, "queue_full", "", "m"),
		`{"error":{"message":"m","type":"api_error","param":null,"code":"insufficient_storage"}}`:                                                                  New(507, "insufficient_storage", "", "m"),
		`{"error":{"message":"m","type":"invalid_request_error","param":null,"code":"c","n_prompt_tokens":3,"n_positions":4,"n_ctx":2}}`: {
			Type: InvalidRequest, Code: "c", Message: "m", PromptTokens: 3, Positions: 4,
			Context: 2},
	} {
		if got, err := json.Marshal(e.JSON()); err != nil || string(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// FuzzParse compares the scanner with encoding/json.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e+3,"x\u00e9\n"],"b":{"c":null},"d":true}`, `{"a":"` + strings.Repeat("x", 40) + "\x01\"}", `{} `, `{"a":{"a":{}}}`} {
		f.Add([]byte(s))
	}
	for _, s := range []string{
		"\uFEFF{\"a\":\"b\"}", "\uFEFF", "\uFEFF\uFEFF{}", `{"a":1,"a":null,"a":"x","b":null,"b":2}`,
		`{"a":"\ud83d\ude00\ud83d\u0041\ude00\\\/\b\f\n\r\t\"\uD83D\uDE00\ud83d"}`,
		`{` + strings.Repeat(`"a":0,`, 1023) + `"b":0}`, `{` + strings.Repeat(`"a":0,`, 1024) + `"b":0}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var want map[string]json.RawMessage
		o, err := Parse(data)
		data = bytes.TrimPrefix(data, files.ByteOrderMark) // encoding/json takes none
		valid := json.Valid(data)
		var e *Error
		if err != nil {
			if !errors.As(err, &e) {
				t.Fatal(err)
			}
			ours := false // stricter than encoding/json
			for _, text := range []string{"deep", "not UTF-8", "at most that"} {
				ours = ours || strings.Contains(e.Message, text)
			}
			if valid && e.Code == "invalid_json" && !ours || !valid && e.Code != "invalid_json" {
				t.Fatalf("%q: got %v, encoding/json says %t", data, err, valid)
			}
			return
		}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatalf("%q: taken, encoding/json says %v", data, err)
		}
		for key, raw := range want {
			got := o.Raw(key)
			if string(raw) == "null" && got != nil ||
				string(raw) != "null" && string(raw) != string(got) {
				t.Fatalf("%q: field %q: got %s, want %s", data, key, got, raw)
			}
			var text string
			if json.Unmarshal(raw, &text) == nil && o.String(key) != text {
				t.Fatalf("%q: field %q: got %q, want %q", data, key, o.String(key), text)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	body := []byte(
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` +
			strings.Repeat("QUJD", 1<<18) + `"}}]}]}`)
	b.SetBytes(int64(len(body)))
	for range b.N {
		o, err := Parse(body)
		if err != nil {
			b.Fatal(err)
		}
		content := o.List("messages").First().Object().List("content")
		if content.First().Object().Object("image_url").String("url") == "" {
			b.Fatal(o.Err())
		}
	}
}

// Ensure that long strings, which are searched only once, are read like short ones at every depth.
func TestLongStrings(t *testing.T) {
	for _, n := range []int{longBytes - 3, longBytes - 2, longBytes, 5000} {
		plain := strings.Repeat("x", n)
		escaped := plain + `\n\"\u00e9` + plain
		text := `{"` + plain + `":"` + plain + `", "l" : [ "` + escaped + `",{"o":{"p":"` + plain +
			`","e":"` + escaped + `","p":"` + plain + `y"}} ]}`
		data := append([]byte("  "), text...)
		o, err := Parse(data[1:len(data):len(data)])
		if err != nil {
			t.Fatal(err)
		}
		var want string
		if err := json.Unmarshal([]byte(`"`+escaped+`"`), &want); err != nil {
			t.Fatal(err)
		}
		l := o.List("l")
		inner := at(l, 1).Object().Object("o")
		if o.String(plain) != plain || l.Len() != 2 || l.First().Text() != want ||
			inner.String("e") != want || inner.String("p") != plain+"y" || o.Err() != nil {
			t.Errorf("%d: got other strings, %v", n, o.Err())
		}
		bad := `{"a":["` + escaped + "\n" + plain + `"]}`
		at := strings.IndexByte(bad, '\n') + 1
		if _, err := Parse([]byte(bad)); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprintf("at byte %d: got '\\n'", at)) {
			t.Errorf("%d: got %v, want an error at byte %d", n, err, at)
		}
	}
}

// Ensure that texts are encoded as the standard library does without HTML escaping, and that a
// frame gives the JSON of the whole value.
func TestFrame(t *testing.T) {
	type value struct {
		Number int    `json:"number"`
		Text   string `json:"text"`
		End    bool   `json:"end"`
	}
	f := NewFrame(value{math.MinInt, "\x00", true}, math.MinInt, "\x00")
	for i, text := range []string{
		"", " word", `"`, `\`, "a\nb", "é", "<b>&", "\x7f", "\x00", "\u2028", "\xff", "日本",
	} {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(value{i, text, true}); err != nil {
			t.Fatal(err)
		}
		if got := f.Fill(strconv.Itoa(i), Text(text)) + "\n"; got != b.String() {
			t.Errorf("%q: got %s, want %s", text, got, b.String())
		}
	}
}
