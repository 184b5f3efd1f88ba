package restore_test

import (
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
