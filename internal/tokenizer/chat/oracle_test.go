package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint/hf"
	"github.com/restore-vlm/restore/internal/golden"
)

// TestReference compares with the reference implementation's rendering of
// published templates, which are not part of this repository. RESTORE_ORACLE
// names the folder that holds the reference data.
func TestReference(t *testing.T) {
	root := os.Getenv("RESTORE_ORACLE")
	if root == "" {
		t.Skip("RESTORE_ORACLE is not set")
	}
	dir := filepath.Join(root, "chat")
	var d struct {
		Templates map[string]struct {
			File    string
			Special string `json:"special_tokens_of"`
		}
		SpecialTokens map[string]map[string]string `json:"special_tokens"`
		Conversations map[string][]Message
		Cases         []struct {
			Template, Conversation string
			Add                    bool `json:"add_generation_prompt"`
			Continue               bool `json:"continue_final_message"`
			Vision                 bool `json:"add_vision_id"`
			Tools                  json.RawMessage
			Text                   *string
			Error                  string
		}
	}
	golden.JSON(t, filepath.Join(dir, "templates_cases.json"), &d)
	ok, same := 0, 0
	for _, c := range d.Cases {
		info := d.Templates[c.Template]
		raw, err := os.ReadFile(filepath.Join(dir, info.File))
		if err != nil {
			t.Fatal(err)
		}
		text := string(raw)
		if filepath.Ext(info.File) == ".json" {
			if text, err = hf.Template(raw); err != nil {
				t.Fatal(err)
			}
		}
		tmpl, err := Parse(text)
		if err != nil {
			t.Fatalf("%s: %v", c.Template, err)
		}
		o := Options{
			AddGenerationPrompt: c.Add, ContinueFinalMessage: c.Continue, AddVisionID: c.Vision,
			Tools:         c.Tools,
			SpecialTokens: d.SpecialTokens[info.Special], KeepStrings: true,
		}
		got, err := tmpl.Render(d.Conversations[c.Conversation], o)
		switch {
		case c.Text == nil && err == nil:
			t.Errorf("%s %s: got %q, want error %s", c.Template, c.Conversation, got, c.Error)
		case c.Text != nil && err != nil:
			t.Errorf("%s %s: %v", c.Template, c.Conversation, err)
		case c.Text != nil && got != *c.Text:
			t.Errorf("%s %s: got\n%q, want\n%q", c.Template, c.Conversation, got, *c.Text)
		default:
			ok++
		}
		o.KeepStrings = false
		if again, err := tmpl.Render(d.Conversations[c.Conversation], o); err == nil &&
			again == got {
			same++
		}
	}
	t.Logf("%d of %d cases agree; %d are the same with strings made parts", ok, len(d.Cases), same)
}

func TestReferenceLLaVA(t *testing.T) {
	root := os.Getenv("RESTORE_ORACLE")
	if root == "" {
		t.Skip("RESTORE_ORACLE is not set")
	}
	var d struct {
		Styles map[string]struct{ System string }
		Cases  []struct {
			Style, Name string
			Messages    []json.RawMessage
			Prompt      string
		}
	}
	golden.JSON(t, filepath.Join(root, "chat", "llava_conversations.json"), &d)
	n := 0
	for _, c := range d.Cases {
		if c.Style != "llava_v1" && c.Style != "vicuna_v1" || len(c.Messages) == 0 {
			continue
		}
		tmpl, err := conversation(d.Styles[c.Style].System)
		if err != nil {
			t.Fatal(err)
		}
		if c.Style == "llava_v1" {
			tmpl = LLaVAv1()
		}
		var msgs []Message
		var o Options
		for i, raw := range c.Messages {
			m := Message{Role: []string{"user", "assistant"}[i%2]}
			var tuple struct{ Text string }
			var text string
			switch {
			case string(raw) == "null":
				o.AddGenerationPrompt = true
				continue
			case json.Unmarshal(raw, &text) == nil:
				m.Content = []Part{{Type: "text", Text: text}}
			case json.Unmarshal(raw, &tuple) == nil:
				m.Content = []Part{{Type: "image"}, {Type: "text", Text: tuple.Text}}
			}
			msgs = append(msgs, m)
		}
		got, err := tmpl.Render(msgs, o)
		if err != nil || got != c.Prompt {
			t.Errorf("%s %s: got %v\n%q, want\n%q", c.Style, c.Name, err, got, c.Prompt)
			continue
		}
		n++
	}
	t.Logf("%d cases agree", n)
}
