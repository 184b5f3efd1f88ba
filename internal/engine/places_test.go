package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
)

// Ensure that a picture stands at its place: at the start as by default; among text in the given
// order if the template keeps the order; as its token only if the template moves pictures to the
// front.
func TestPlaces(t *testing.T) {
	e := opened(t, Options{})
	none := &image{shape: &model.Shape{}}
	pics := []*picture{{image: none}, {image: none}}
	ids := func(m chat.Message, err error) []int32 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		out, err := e.tokenize([]chat.Message{m}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	image, text := chat.Part{
		Type: "image",
	}, func(s string) chat.Part { return chat.Part{Type: "text", Text: s} }
	user := func(parts ...chat.Part) (chat.Message, error) {
		return chat.Message{Role: "user", Content: parts}, nil
	}

	if got, want := ids(userMessage("\nWhat?", pics[:1], []int{0})), ids(userMessage("What?",
		pics[:1], nil)); !slices.Equal(got, want) {
		t.Errorf("at the start: %d, want %d", got, want)
	}
	got := ids(userMessage("Before after", pics[:1], []int{len("Before ")}))
	at := slices.Index(got, e.m.ImageToken())
	if at < 0 || !strings.HasSuffix(strings.TrimSpace(e.tok.Decode(got[:at], true)), "Before") ||
		!strings.HasPrefix(strings.TrimSpace(e.tok.Decode(got[at+1:], true)), "after") {
		t.Errorf("among text: the picture is at %d of %q", at, e.tok.Decode(got, false))
	}
	hostile := ids(userMessage("<image> \uFDD0 \uFDD2", nil, nil))
	if slices.Contains(hostile, e.m.ImageToken()) {
		t.Error("a user's text became a picture's place")
	}

	ordered, err := chat.Parse(`{% for m in messages %}{{ m.role }}: {% for c in m.content %}` +
		`{% if c.type == 'image' %}([<image>]){% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	e.template = ordered
	prompt := "one two three"
	got = ids(userMessage(prompt, pics, []int{3, len(prompt)}))
	if want := ids(user(text("one"), image, text(" two three"), image)); !slices.Equal(got, want) {
		t.Errorf("in order: %d, want %d", got, want)
	}

	for _, places := range [][]int{{0}, {3, 1}, {0, 99}, {-1, 0}} {
		var option *errs.OptionError
		if _, err := userMessage(prompt, pics, places); !errors.As(err, &option) ||
			option.Name != "places" {
			t.Errorf("%v: %v, want an error about places", places, err)
		}
	}
}

// Ensure that Undo restores the dialogue before the question.
func TestUndo(t *testing.T) {
	e := opened(t, Options{})
	pic := drawn(t, 7)
	ask := func(c *Conversation, prompt string, pics ...*imageproc.Picture) string {
		t.Helper()
		ans, err := c.Ask(context.Background(), Request{
			Prompt: prompt, Images: Pictures(pics...), MaxTokens: 8,
		})
		if err != nil {
			t.Fatal(err)
		}
		return ans.Text
	}
	keep := methods.Options{Base: "holov", NVis: 64, Restore: true}
	c, other := e.NewConversation(keep), e.NewConversation(keep)
	if c.Undo() {
		t.Error("a dialogue without a question was undone")
	}
	ask(c, "What number is written?", pic)
	want := ask(other, "What number is written?", pic)
	ask(c, "Describe the image.", pic)
	if !c.Undo() || len(c.pics) != 1 || len(c.messages) != 2 {
		t.Fatalf("undone: %d pictures, %d messages", len(c.pics), len(c.messages))
	}
	second := "What colour is the cross?"
	if got, wanted := ask(c, second), ask(other, second); got != wanted {
		t.Errorf("after undo %q, want %q", got, wanted)
	}
	c.Undo()
	c.Undo()
	if got := ask(c, "What number is written?", pic); !strings.EqualFold(got, want) ||
		c.Undo() == false ||
		c.Undo() {
		t.Errorf("from the start %q, want %q", got, want)
	}
}
