package chat

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
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
	readJSON(t, "testdata/cases.json", &d)
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
