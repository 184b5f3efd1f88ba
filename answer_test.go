package restore_test

import (
	"reflect"
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

// Ensure that the reports of a dialogue's pictures draw the same as those of a question's.
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
