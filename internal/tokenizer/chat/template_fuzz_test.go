package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/golden"
)

func addTemplates(f *testing.F) {
	var d caseFile
	golden.JSON(f, "testdata/cases.json", &d)
	for _, t := range d.Templates {
		f.Add(t)
	}
	for _, c := range d.Cases {
		if c.Template != "" {
			f.Add(c.Template)
		}
	}
}

// FuzzParse: any template gets a result, with or without an error.
func FuzzParse(f *testing.F) {
	addTemplates(f)
	f.Fuzz(func(t *testing.T, template string) {
		if _, err := Parse(template); err != nil && !strings.HasPrefix(err.Error(), "chat: ") {
			t.Errorf("got error %q, want one with the package's name", err)
		}
	})
}

// FuzzRender: any template ends, its segments join to its text, and none of the caller's text is
// marked as the template's.
func FuzzRender(f *testing.F) {
	addTemplates(f)
	const secret = "\uE0AA\uE0AB"
	var msgs []Message
	text := `[{"role":"system","content":"` + secret + `"},{"role":"user","content":[{"type":"image","url":"` + secret + `"},{"type":"text","text":" ` + secret + ` x"}]},{"role":"assistant","content":"a","tool_calls":[{"n":["` + secret + `",1,null]}]}]`
	if err := json.Unmarshal([]byte(text), &msgs); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, template string) {
		if strings.Contains(template, "\uE0AA") || strings.Contains(template, "\\") {
			return // it could write the secret itself
		}
		tmpl, err := Parse(template)
		if err != nil {
			return
		}
		begin := time.Now()
		o := Options{
			AddGenerationPrompt: true, Now: begin, Tools: json.RawMessage(`[{"name":"` + secret + `"}]`),
		}
		out, err := tmpl.Render(msgs, o)
		if d := time.Since(begin); d > time.Minute {
			t.Errorf("took %v", d)
		}
		if err != nil {
			return
		}
		segments, err := tmpl.RenderSegments(msgs, o)
		if err != nil {
			return // two runs may differ only in the clock; errors are not compared
		}
		checkSegments(t, out, segments)
		for _, s := range segments {
			if !s.User && strings.ContainsAny(s.Text, secret) {
				t.Errorf("the caller's text in the template's segment %q", s.Text)
			}
		}
	})
}

// FuzzMessages: any JSON is either refused or rendered.
func FuzzMessages(f *testing.F) {
	f.Add(`[{"role":"user","content":"a"}]`)
	f.Add(`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","x":{"y":[1,2.5,null,true]}}]}]`)
	f.Add(`[{"role":"user","content":null,"tool_calls":[]},{"role":"tool"}]`)
	var fields strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&fields, `"k%d":0,`, i)
	}
	f.Add(`[{` + fields.String() + `"role":"user","content":[{` + fields.String() + `"type":"text"}]}]`)
	f.Fuzz(func(t *testing.T, text string) {
		var msgs []Message
		if json.Unmarshal([]byte(text), &msgs) != nil {
			return
		}
		tmpl, err := Parse("{{ messages | tojson }}{{ messages }}")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = tmpl.Render(msgs, Options{})
		_, _ = LLaVAv1().Render(msgs, Options{ContinueFinalMessage: true})
		if _, err := json.Marshal(msgs); err != nil && len(msgs) > 0 {
			t.Logf("marshal: %v", err)
		}
	})
}
