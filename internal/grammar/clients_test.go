package grammar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// recorded is a request for structured output that a client sent: tools/clients/schemas.mjs and
// schemas.py record testdata/clients.jsonl.
type recorded struct {
	Client, Name string
	Body         struct {
		Format struct {
			Schema struct {
				Schema json.RawMessage `json:"schema"`
			} `json:"json_schema"`
		} `json:"response_format"`
	}
}

func readRecorded(t *testing.T) (list []recorded) {
	t.Helper()
	data, err := os.ReadFile("testdata/clients.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var r recorded
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// formatValidator compiles a schema with an independent implementation that checks formats too.
func formatValidator(t *testing.T, schema []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.UseRegexpEngine(func(text string) (jsonschema.Regexp, error) { return newSearch(text) })
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Ensure that the schemas that clients make of their types are answered, and that every answer is
// valid for an independent validator, formats included.
func TestClientsSchemas(t *testing.T) {
	list := readRecorded(t)
	if len(list) < 60 {
		t.Fatalf("got %d requests, want at least 60", len(list))
	}
	v := byteVocabulary(t)
	for _, r := range list {
		t.Run(r.Client+"/"+r.Name, func(t *testing.T) {
			schema := r.Body.Format.Schema.Schema
			s, err := Parse(schema)
			if err != nil {
				t.Fatal(err)
			}
			g, err := Compile(context.Background(), s, v)
			if err != nil {
				t.Fatal(err)
			}
			valid := formatValidator(t, schema)
			ended := 0
			for seed := range uint64(20) {
				rnd := rand.New(rand.NewPCG(seed, 3))
				text, end := generate(t, g, v, rnd, int(40*seed), 4000)
				if !end {
					continue
				}
				ended++
				value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				if err := valid.Validate(value); err != nil {
					t.Fatalf("%s: %v", text, err)
				}
			}
			if ended < 10 {
				t.Errorf("only %d of 20 answers came to an end", ended)
			}
		})
	}
}

// search is a pattern for the validator, which has no lookaheads of its own.
type search struct {
	text  string
	parts []*regexp.Regexp
	not   []bool
}

func newSearch(text string) (*search, error) {
	s := &search{text: text}
	for _, p := range lookaheads(text) {
		re, err := regexp.Compile(p.text)
		if err != nil {
			return nil, err
		}
		s.parts, s.not = append(s.parts, re), append(s.not, p.not)
	}
	return s, nil
}

func (s *search) MatchString(text string) bool {
	for i, re := range s.parts {
		if re.MatchString(text) == s.not[i] {
			return false
		}
	}
	return true
}

func (s *search) String() string { return s.text }
