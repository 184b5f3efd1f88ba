package eval

import (
	"testing"

	"github.com/restore-vlm/restore"
)

// Ensure that records are shared by equal settings only: a parameter's file counts by its content.
func TestServiceSettings(t *testing.T) {
	m, err := restore.Open(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	recipe := func(content string) *restore.Reduction {
		return &restore.Reduction{Base: "fitprune", NVis: 64,
			Options: map[string]any{"fitprune-recipe": []byte(content)}}
	}
	names := map[string]int{}
	for i, s := range []*Service{
		{Model: m}, {Model: m, System: "Be brief."},
		{Model: m, Reduction: &restore.Reduction{Base: "fitprune", NVis: 64}},
		{Model: m, Reduction: recipe("one")}, {Model: m, Reduction: recipe("two")},
		{Model: m, Reduction: recipe("one")},
		{Model: m, Reduction: &restore.Reduction{Base: "none"}},
		{Model: m, Reduction: &restore.Reduction{Options: map[string]any{"base": "none"}}},
		{Model: m, Reduction: &restore.Reduction{AtMost: true}},
	} {
		name, err := hashOf(s.Settings())
		if err != nil {
			t.Fatal(err)
		}
		same := i
		if of, ok := map[int]int{5: 3, 6: 0, 7: 0, 8: 0}[i]; ok {
			same = of
		}
		if before, ok := names[name]; ok != (same < i) || ok && before != same {
			t.Errorf("settings %d: %v as before: %v, %d", i, s.Settings(), ok, before)
		}
		if same == i {
			names[name] = i
		}
	}
}
