package chat

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/golden"
)

type caseFile struct {
	SpecialTokens map[string]string `json:"special_tokens"`
	Templates     map[string]string
	Conversations map[string][]Message
	Cases         []struct {
		Uses, Template, Conversation string
		Add                          bool `json:"add_generation_prompt"`
		Vision                       bool `json:"add_vision_id"`
		Tools                        json.RawMessage
		Text                         *string
		Error                        string
	}
}

// TestCases compares with Jinja2 (testdata/README.md), and checks on every case
// that segments join to the same text.
func TestCases(t *testing.T) {
	var d caseFile
	golden.JSON(t, "testdata/cases.json", &d)
	if len(d.Cases) < 290 {
		t.Fatalf("got %d cases, want all", len(d.Cases))
	}
	for _, c := range d.Cases {
		name := c.Uses + c.Template + " on " + c.Conversation
		if c.Uses != "" {
			c.Template = d.Templates[c.Uses]
		}
		o := Options{
			AddGenerationPrompt: c.Add, AddVisionID: c.Vision, Tools: c.Tools,
			SpecialTokens: d.SpecialTokens,
			KeepStrings:   true, Now: time.Date(2024, 7, 5, 9, 3, 7, 0, time.UTC),
		}
		tmpl, err := Parse(c.Template)
		got := ""
		if err == nil {
			got, err = tmpl.Render(d.Conversations[c.Conversation], o)
		}
		switch {
		case c.Text == nil && err == nil:
			t.Errorf("%s:\ngot  %q\nwant an error like %s", name, got, c.Error)
		case c.Text != nil && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.Text != nil && got != *c.Text:
			t.Errorf("%s:\ngot  %q\nwant %q", name, got, *c.Text)
		}
		if err != nil {
			if !strings.HasPrefix(err.Error(), "chat: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got error %q, want one line with the package's name", name, err)
			}
			continue
		}
		segments, err := tmpl.RenderSegments(d.Conversations[c.Conversation], o)
		if err != nil {
			t.Errorf("%s: segments: %v", name, err)
		}
		checkSegments(t, got, segments)
	}
}

// checkSegments is the invariant of RenderSegments.
func checkSegments(t *testing.T, text string, segments []Segment) {
	t.Helper()
	joined := ""
	for i, s := range segments {
		joined += s.Text
		if s.Text == "" || i > 0 && s.User == segments[i-1].User {
			t.Errorf("segment %d of %v is empty or like its neighbour", i, segments)
		}
	}
	if joined != text {
		t.Errorf("segments join to %q, want %q", joined, text)
	}
}

// Ensure that a template prints a text once, whether the caller has it as a string or as a part,
// and whichever of them the template reads.
func TestContentForms(t *testing.T) {
	const parts = "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}{% endif %}" +
		"{% endfor %}"
	for _, body := range []string{
		"{{ m.content }}",
		"{{ m.content or '' }}",
		"{{ m['content'] if m['content'] is not none else '' }}",
		"{{ m['content']|default('', true)|trim }}",
		"{{ m.get('content') }}",
		"{% macro p(x) %}{{ x }}{% endmacro %}{{ p(m.content) }}",
		"{% with c = m.content %}{{ c }}{% endwith %}",
		"{% set r, c = m.role, m.content %}{{ c }}",
		"{% set ns = namespace(c='') %}{% set ns.c = m.content %}{{ ns.c }}",
		"{% set c = m.content if m.content else '' %}{{ '' + c }}",
		"{% for k, v in m.items() if k == 'content' %}{{ v }}{% endfor %}",
		"{{ m.content.split('x')[-1] }}",
		"{{ m.content[0].text }}",
		"{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}",
		"{% if m.content is string %}{{ m.content }}{% else %}" + parts + "{% endif %}",
		parts,
		// Each role may be read in its own way.
		"{% if m.role == 'system' %}{{ m.content }}{% else %}" + parts + "{% endif %}",
	} {
		tmpl := mustParse(t, "{% for m in messages %}{{ m.role }}:"+body+";{% endfor %}")
		for _, system := range []string{`"Be brief."`, `[{"type": "text", "text": "Be brief."}]`} {
			for _, user := range []string{`"Hi"`, `[{"type": "text", "text": "Hi"}]`} {
				var msgs []Message
				err := json.Unmarshal([]byte(`[{"role": "system", "content": `+system+
					`}, {"role": "user", "content": `+user+`}]`), &msgs)
				if err != nil {
					t.Fatal(err)
				}
				got, err := tmpl.Render(msgs, Options{})
				if want := "system:Be brief.;user:Hi;"; got != want || err != nil {
					t.Errorf("%s on %s and %s: got %q, %v, want %q", body, system, user, got, err,
						want)
				}
			}
		}
	}
	// A text that the template leaves out in either form changes nothing.
	tmpl := mustParse(t, "{% for m in messages %}{{ m.content is string }}{% endfor %}")
	got, err := tmpl.Render([]Message{{Role: "user", form: formString,
		Content: []Part{{Type: "text", Text: "Hi"}}}}, Options{})
	if got != "True" || err != nil {
		t.Errorf("got %q, %v, want True", got, err)
	}
}
