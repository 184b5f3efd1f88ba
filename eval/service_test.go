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
	} {
		name, err := hashOf(s.Settings())
		if err != nil {
			t.Fatal(err)
		}
		if before, ok := names[name]; ok != (i == 5) || ok && before != 3 {
			t.Errorf("settings %d: %v as before: %v, %d", i, s.Settings(), ok, before)
		}
		names[name] = i
	}
}
