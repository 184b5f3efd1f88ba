package grammar

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
)

// FuzzSchema compiles any bytes as a schema and generates a text from it. Neither may panic, or
// take more memory than the limits, which also limit the time.
func FuzzSchema(f *testing.F) {
	for _, s := range []string{
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`,
		`{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"integer"}]}}}`,
		`{"enum":[1,"a",{"b":[]}],"type":["object","string"]}`,
		`{"additionalProperties":{"items":{"minLength":2}}}`, `true`, `{}`,
		`{"type":["number","null"],"exclusiveMinimum":-1.5e-3,"maximum":120,"multipleOf":7}`,
		`{"pattern":"^(?!a)[^b\\s]+é?$|\\bc","minLength":2,"maxLength":9}`,
		`{"anyOf":[{"format":"date-time"},{"format":"email"},{"type":"integer","format":"int32"}]}`,
		`{"prefixItems":[{"type":"null"}],"items":{"minimum":0},"minItems":0,"maxItems":3}`,
		`{"oneOf":[{"type":"object","properties":{"k":{"const":1}}},{"type":"null"}],"discriminator":{"propertyName":"k"}}`,
		`{"allOf":[{"propertyNames":{"enum":["a"]},"additionalProperties":{"minLength":1}}]}`,
		`{"properties":{"a":{"$ref":"#"},"b":false},"additionalProperties":{"pattern":"\\u00e9"}}`,
		`{"enum":[1,1.0,{"a":1,"b":[-0]},{"b":[0],"a":1}],"const":{"b":[0],"a":1}}`,
	} {
		f.Add([]byte(s), uint64(1))
	}
	for _, c := range hostileSchemas(150) { // large ones would be shortened for minutes
		f.Add([]byte(c.schema), uint64(1))
	}
	v := byteVocabulary(f)
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s, err := Parse(data)
		var g *Grammar
		if err == nil {
			g, err = Compile(context.Background(), s, v)
		}
		runtime.ReadMemStats(&after)
		if all := after.TotalAlloc - before.TotalAlloc; all > mostAllocated {
			t.Fatalf("allocated %d bytes, want at most %d", all, mostAllocated)
		}
		if err != nil {
			return
		}
		generate(t, g, v, rand.New(rand.NewPCG(seed, 2)), 40, 120)
		if g.Bytes() > MaxCompiled+maxCache+maxCache/8 {
			t.Fatalf("the grammar holds %d bytes", g.Bytes())
		}
	})
}
