package restore_test

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
)

// Ensure that the reduction in a report passes its own check, though it holds no features.
func TestReportedReduction(t *testing.T) {
	m := embedded(t)
	for _, r := range []*restore.Reduction{
		{Base: "holov", NVis: 64}, {Base: "visionzip", NVis: 64, Plain: true},
		{Base: "tome", NVis: 64}, {Base: "fastv", NVis: 200},
	} {
		for _, caching := range []string{"encoded", "cached"} {
			ans, err := m.Ask(t.Context(), restore.Request{Prompt: "What is there?", MaxTokens: 1,
				Pictures: []*restore.Picture{square()}, Reduction: r})
			if err != nil {
				t.Fatal(err)
			}
			if err := ans.Pictures[0].Reduction.Check(); err != nil {
				t.Errorf("%s, %s: %v", r.Base, caching, err)
			}
		}
	}
}

// Ensure that reports draw a dialogue's pictures as they draw a question's.
func TestDrawMessages(t *testing.T) {
	m := embedded(t)
	how := &restore.Reduction{Base: "holov", NVis: 64}
	scene, err := restore.OpenPicture("docs/scene.png", nil)
	if err != nil {
		t.Fatal(err)
	}
	two := []*restore.Picture{scene, square()}
	ask := func(r restore.Request) []restore.PictureReport {
		r.Reduction, r.MaxTokens = how, 1
		ans, err := m.Ask(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return ans.Pictures
	}
	want := ask(restore.Request{Prompt: "What is there?", Pictures: two})
	got := ask(restore.Request{Messages: []restore.Message{
		{Role: restore.User, Parts: []restore.Part{{Picture: scene}, {Text: "a"}}},
		{Role: restore.Assistant, Parts: []restore.Part{{Text: "b"}}},
		{Role: restore.User, Parts: []restore.Part{{Text: "c"}, {Picture: square()}}},
	}})
	for i := range want {
		if !reflect.DeepEqual(got[i].Draw(), want[i].Draw()) {
			t.Errorf("picture %d: another drawing", i)
		}
		w, h := got[i].Seen()
		if w2, h2 := want[i].Seen(); w != w2 || h != h2 || w != 336 || h != 336 {
			t.Errorf("picture %d: seen %v x %v, want %v x %v", i, w, h, w2, h2)
		}
	}
}

// Ensure that the pieces of a stream have the tokens of the answer's text, also where a stop text
// or the end of the context cuts it.
func TestStreamTokens(t *testing.T) {
	m := embedded(t)
	c, err := restore.NewConversation(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := restore.Request{Prompt: "Describe the image.", Logprobs: true, Top: 2,
		Pictures: []*restore.Picture{square()}}
	stopped := whole
	stopped.Stop = []string{"at the bottom"}
	for name, q := range map[string]restore.Request{
		"whole": whole, "stopped": stopped, "cancelled": whole,
	} {
		for who, stream := range map[string]func(
			context.Context, restore.Request,
		) iter.Seq2[restore.Piece, error]{"model": m.Stream, "conversation": c.Stream} {
			ctx, cancel := context.WithCancel(t.Context())
			var text strings.Builder
			var tokens []restore.Token
			var answer *restore.Answer
			for piece, err := range stream(ctx, q) {
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				text.WriteString(piece.Text)
				tokens = append(tokens, piece.Tokens...)
				if answer = piece.Answer; name == "cancelled" && len(tokens) == 3 {
					cancel()
				}
			}
			cancel()
			if len(tokens) < 3 || text.String() != answer.Text ||
				!reflect.DeepEqual(tokens, answer.Logprobs) {
				t.Errorf("%s, %s: got %q with %d tokens, want %q with %d", who, name,
					text.String(), len(tokens), answer.Text, len(answer.Logprobs))
			}
		}
	}
}
