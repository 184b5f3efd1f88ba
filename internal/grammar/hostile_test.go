package grammar

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// hostile is a schema below MaxBytes that multiplies: small to send, and far larger if nothing
// counts what it becomes.
type hostile struct {
	name, schema string
	refused      bool // as too complex
}

// hostileSchemas returns schemas of which most come close to MaxBytes; part makes them smaller by
// that factor.
func hostileSchemas(part int) []hostile {
	list := func(n int, item func(i int) string) string { return repeat(n/part, item) }
	names := func(n int) string {
		return list(n, func(i int) string { return fmt.Sprintf(`"%x":{}`, i) })
	}
	anyOf := func(n int, format string) string {
		return `"anyOf":[` + list(n, func(i int) string { return fmt.Sprintf(format, i) }) + `]`
	}
	long := strings.Repeat("n", 40_000/part)
	return []hostile{
		// an object for each alternative, each with all properties
		{"required", `{"type":"object","properties":{` + names(3000) + `},` +
			anyOf(999, `{"required":["%x"]}`) + `}`, true},
		// a trie of the long name for each alternative
		{"long text", `{"properties":{"` + long + `":{}},` + anyOf(500, `{"minLength":%d}`) + `}`,
			true},
		// 2^13 sets of schemas, each an object with all properties
		{"power set", powerSet(13, 3000/part), true},
		// every value of the list is checked against every alternative
		{"values against alternatives", `{"enum":[[` +
			list(15_000, func(int) string { return `""` }) + `]],"items":{"anyOf":[` +
			list(998, func(int) string { return `{"minLength":5}` }) + `,{"maxLength":5}]}}`,
			true},
		// the values of two lists are compared, with their names in another order
		{"names against names", `{"enum":[{` +
			list(3500, func(i int) string { return fmt.Sprintf(`"%x":1`, i) }) + `},{` +
			list(3500, func(i int) string { return fmt.Sprintf(`"%x":1`, 3500/part-1-i) }) +
			`}]}`, false},
		// a long name in the pointer of every schema below it
		{"pointers", `{"properties":{"` + long + `":{"properties":{` + names(1500) + `}}}}`,
			false},
		// references that are followed at every property
		{"references", `{` + definitions(500/part, `{"$ref":"#/$defs/%d"}`) + `,"properties":{` +
			list(1200, func(i int) string { return fmt.Sprintf(`"%x":{"$ref":"#/$defs/0"}`, i) }) +
			`}}`, false},
		// values that are known to be finite one after another
		{"chain", chain(900/part, `{"items":{"$ref":"#/$defs/%d"},"minItems":1}`), false},
		// stacks that double at every level
		{"levels", chain(450/part, `{"anyOf":[{"items":{"$ref":"#/$defs/%[2]d"},"minItems":1},`+
			`{"items":{"$ref":"#/$defs/%[2]d"},"minItems":1,"maxItems":7}]}`), false},
		// alternatives that stay possible to the end
		{"ambiguous", `{` + anyOf(999, `{"items":{"type":"array"},"maxItems":%d}`) + `}`, false},
		{"strings", `{"items":{` + anyOf(999, `{"maxLength":%d,"minLength":0}`) + `}}`, false},
		// automata with more and more states
		{"pattern", `{"pattern":"^(?:a|b)*a(?:a|b){` + fmt.Sprint(60/part) + `}$"}`, part == 1},
		{"patterns", `{` + anyOf(999, `{"pattern":"^[a-f%d]{9}(?:é|日)*$"}`) + `}`, false},
		{"multiples", `{"anyOf":[{"multipleOf":9973},{"multipleOf":9967}]}`, true},
		{"classes", `{` + anyOf(100, `{"pattern":"^\\pL\\PL%d*$"}`) + `}`, true},
		{"counts", `{"minItems":2147483647,"items":{"type":"string","minLength":2147483647}}`,
			false},
	}
}

// repeat joins n items by commas.
func repeat(n int, item func(i int) string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = item(i)
	}
	return strings.Join(items, ",")
}

// powerSet returns a schema of an object whose properties p and q shift a bit into a register of n
// bits. Each of its 2^n contents is another set of schemas for one value, and each of these objects
// may have all properties.
func powerSet(n, properties int) string {
	state := func(next int) string {
		to := fmt.Sprintf(`{"$ref":"#/$defs/%d"}`, next)
		if next == n {
			to = `{}`
		}
		return fmt.Sprintf(`"properties":{"p":%s,"q":%s},"additionalProperties":{}`, to, to)
	}
	defs := repeat(n-1, func(i int) string {
		return fmt.Sprintf(`"%d":{%s}`, i+1, state(i+2))
	})
	return `{"$defs":{` + defs + `,"t":{"$ref":"#/$defs/w",` + state(1) +
		`},"w":{"properties":{"p":{"$ref":"#/$defs/w"},"q":{"$ref":"#/$defs/t"},` +
		repeat(properties, func(i int) string { return fmt.Sprintf(`"%x":{}`, i) }) +
		`},"additionalProperties":{}}},"$ref":"#/$defs/w"}`
}

// chain returns a schema of n definitions, each of which refers to the next.
func chain(n int, format string) string {
	return `{` + definitions(n, format) + `,"$ref":"#/$defs/0"}`
}

// definitions returns n definitions and a last one. The format has a definition's number and the
// number of the next.
func definitions(n int, format string) string {
	return `"$defs":{` + repeat(n, func(i int) string {
		return fmt.Sprintf(`"%d":`+format, i, i+1)
	}) + fmt.Sprintf(`,"%d":{"type":"null"}}`, n)
}

// allocated returns the bytes that f allocates in all, and those that are still held after it.
func allocated(f func()) (all, held uint64) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, after.HeapAlloc - min(before.HeapAlloc,
		after.HeapAlloc)
}

// mostAllocated limits what all of Parse and Compile may allocate, garbage included: the count of
// the compilation, the schema, and slices and maps that grow.
const mostAllocated = 4 * MaxCompiled

// Ensure that no schema takes more memory than the limits, neither compiled nor while a text is
// generated, and that a grammar counts at least what it holds.
func TestHostileSchemas(t *testing.T) {
	v := byteVocabulary(t)
	for _, c := range hostileSchemas(1) {
		t.Run(c.name, func(t *testing.T) {
			if len(c.schema) > MaxBytes {
				t.Fatalf("the schema has %d bytes", len(c.schema))
			}
			var g *Grammar
			var err error
			all, held := allocated(func() {
				var s *Schema
				if s, err = Parse([]byte(c.schema)); err == nil {
					g, err = Compile(context.Background(), s, v)
				}
			})
			if all > mostAllocated {
				t.Errorf("allocated %d bytes, want at most %d", all, mostAllocated)
			}
			var refused *Error
			if errors.As(err, &refused) != c.refused || c.refused &&
				!strings.Contains(refused.Problem, "too complex") {
				t.Fatalf("got %v, refused %t wanted", err, c.refused)
			}
			if g == nil {
				return
			}
			if g.Bytes() > MaxCompiled || int64(held) > g.Bytes()+1<<16 {
				t.Errorf("compiled holds %d bytes and counts %d, want at most %d", held,
					g.Bytes(), MaxCompiled)
			}
			generated(t, g)
		})
	}
}

// generated follows a text that nests as deep as it can, and checks the memory of its states.
func generated(t *testing.T, g *Grammar) {
	before := g.Bytes()
	m := g.NewMatcher(context.Background())
	var most int64
	_, held := allocated(func() {
		for range 100 {
			mask := m.Mask()
			most = max(most, g.Bytes())
			id := int32(-1)
			for _, b := range []byte(`[{",]}:nul0a`) {
				if id < 0 && Allowed(mask, int32(b)) {
					id = int32(b)
				}
			}
			if id < 0 {
				return
			}
			if err := m.Accept(id); err != nil {
				t.Fatal(err)
			}
		}
	})
	most = max(most, g.Bytes()) - before
	if most > maxCache+maxCache/8 || int64(held) > most+1<<16 {
		t.Errorf("states hold %d bytes and count %d, want at most %d", held, most, maxCache)
	}
	runtime.KeepAlive(m)
}

// Ensure that large schemas of real use compile, with room to spare.
func TestLargeSchemas(t *testing.T) {
	v := byteVocabulary(t)
	field := func(i int) string {
		return fmt.Sprintf(`"field_%d":{"type":"object","properties":{"value":{"type":"string",`+
			`"description":"a text"},"unit":{"enum":["m","kg","s"]},"n":{"type":"integer"}},`+
			`"required":["value"]}`, i)
	}
	name := func(i int) string { return fmt.Sprintf(`"field_%d"`, i) }
	for what, schema := range map[string]string{
		"300 properties": `{"type":"object","properties":{` + repeat(300, field) +
			`},"required":[` + repeat(300, name) + `]}`,
		"an enum of 1000 values": `{"enum":[` + repeat(1000, func(i int) string {
			return fmt.Sprintf(`"the value with the number %d"`, i)
		}) + `],"type":"string","minLength":3}`,
		"an enum of 1000 objects": `{"enum":[` + repeat(1000, func(i int) string {
			return fmt.Sprintf(`{"code":"%x","number":%d}`, i*7919, i)
		}) + `]}`,
		"300 kinds of objects": `{"type":"array","items":{"anyOf":[` +
			repeat(300, func(i int) string {
				return fmt.Sprintf(`{"type":"object","properties":{"kind":{"const":"k%d"},`+
					`"x":{"type":"number"},"y":{"type":"number"}},"required":["kind","x"]}`, i)
			}) + `]}}`,
		"one of 100 properties required": `{"type":"object","properties":{` +
			repeat(100, field) + `},"anyOf":[` +
			repeat(100, func(i int) string { return `{"required":[` + name(i) + `]}` }) + `]}`,
		"1000 definitions": chain(900, `{"items":{"$ref":"#/$defs/%d"}}`),
	} {
		s, err := Parse([]byte(schema))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		g, err := Compile(context.Background(), s, v)
		if err != nil || g.Bytes() > MaxCompiled/2 {
			t.Errorf("%s: %v, want it compiled to at most half of %d bytes", what, err, MaxCompiled)
		}
	}
}

// Ensure that every one of many alternatives is possible deep in a value, where all of them read
// the text so far.
func TestDeepAlternatives(t *testing.T) {
	const depth, last = 28, 899
	g := compileText(t, strings.Repeat(`{"items":`, depth)+`{"anyOf":[`+
		repeat(last+1, func(i int) string {
			return fmt.Sprintf(`{"properties":{"n":{"type":"number"},"%d":{}},"required":["%[1]d"]}`, i)
		})+`]}`+strings.Repeat("}", depth))
	for _, i := range []int{0, last} {
		text := strings.Repeat("[", depth) + fmt.Sprintf(`{"n":12,"%d":null}`, i) +
			strings.Repeat("]", depth)
		if !whole(g, text) {
			t.Errorf("%s is refused", text)
		}
	}
}

// Ensure that compiling ends with its context, with the context's cause.
func TestCompileCancelled(t *testing.T) {
	cause := errors.New("the client is gone")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	s, err := Parse([]byte(powerSet(13, 3000)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Compile(ctx, s, byteVocabulary(t)); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}
