package grammar

import (
	"math/rand/v2"
	"testing"
	"time"
)

// FuzzSchema compiles any bytes as a schema and generates a text from it. Neither may panic, and a
// refusal must be fast.
func FuzzSchema(f *testing.F) {
	for _, s := range []string{
		`{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}`,
		`{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}],"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"integer"}]}}}`,
		`{"enum":[1,"a",{"b":[]}],"type":["object","string"]}`,
		`{"additionalProperties":{"items":{"minLength":2}}}`, `true`, `{}`,
	} {
		f.Add([]byte(s), uint64(1))
	}
	v := byteVocabulary(f)
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		start := time.Now()
		s, err := Parse(data)
		if err != nil {
			return
		}
		g, err := Compile(s, v)
		if d := time.Since(start); d > 5*time.Second {
			t.Fatalf("compiling took %v", d)
		}
		if err != nil {
			return
		}
		generate(t, g, v, rand.New(rand.NewPCG(seed, 2)), 40, 120)
	})
}
