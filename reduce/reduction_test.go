package reduce_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// Ensure that numbers out of range, in any list, are broken invariants and no panics.
func TestCheckOutOfRange(t *testing.T) {
	for _, options := range []reduce.Resolved{
		{NVis: 2, Merge: 1}, {NVis: 2, Merge: 1, Join: "all"}, {NVis: 2, Merge: 1, Join: "count"},
		{NVis: 2, Merge: 1, Restore: true, Before: &reduce.Before{}},
	} {
		sound := func() *reduce.Reduction {
			r := &reduce.Reduction{N: 4, Options: options}
			r.SetRows([]reduce.Row{
				{Members: []int32{0}, Anchor: 0, Size: 1},
				{Members: []int32{1, 2, 3}, Anchor: 3, Merged: true, Size: 3, Position: 2},
			})
			return r
		}
		if err := sound().Check(); err != nil {
			t.Fatal(err)
		}
		for _, n := range []int32{-1 << 31, -2, 4, 1<<31 - 1} {
			for name, spoil := range map[string]func(r *reduce.Reduction){
				"N":        func(r *reduce.Reduction) { r.N = int(n) },
				"a group":  func(r *reduce.Reduction) { r.Group[1] = n },
				"kept":     func(r *reduce.Reduction) { r.Kept[0] = max(n, 4) },
				"anchors":  func(r *reduce.Reduction) { r.Anchors[0] = n },
				"a member": func(r *reduce.Reduction) { r.Rows[1].Members[2] = n },
				"anchor":   func(r *reduce.Reduction) { r.Rows[1].Anchor = n },
				"size":     func(r *reduce.Reduction) { r.Rows[1].Size = int(n) },
				"position": func(r *reduce.Reduction) { r.Rows[1].Position = float64(n) },
				"n_vis":    func(r *reduce.Reduction) { r.Options.NVis = int(n) },
				"width":    func(r *reduce.Reduction) { r.Width = int(n) },
			} {
				if name == "N" && n == 4 {
					continue
				}
				r := sound()
				spoil(r)
				if r.Check() == nil {
					t.Errorf("join %q: %s of %d: no error", options.Join, name, n)
				}
			}
		}
	}
}

// Ensure that the JSON of a reduction has all its fields, and null for the infinities of tokens
// without a superior.
func TestReductionJSON(t *testing.T) {
	up, down := float32(math.Inf(1)), float32(math.Inf(-1))
	r := reduce.Reduction{
		N: 3, MaxSim: []float32{down, 0.5}, Score: []float32{up, 2}, Density: []float32{},
		Stages: []reduce.StageResult{{
			Stage: reduce.Stage{Layer: 2, Kept: 1}, Kept: []int32{7},
			MaxSim: []float32{down}, Merit: []float32{up},
		}},
	}
	data, err := json.Marshal(&r)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"MaxSim":[null,0.5]`, `"Score":[null,2]`, `"Density":[]`, `"Gains":null`, `"layer":2`,
		`"kept":1`, `"Kept":[7]`, `"MaxSim":[null]`, `"Merit":[null]`,
	} {
		if n := strings.Count(string(data), want); n != 1 {
			t.Errorf("%s: %d times in %s", want, n, data)
		}
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	of := reflect.TypeFor[reduce.Reduction]()
	for i := range of.NumField() {
		if _, ok := fields[of.Field(i).Name]; !ok {
			t.Errorf("no field %s", of.Field(i).Name)
		}
	}
	r.Density = []float32{float32(math.NaN())}
	if _, err := json.Marshal(&r); err == nil {
		t.Error("NaN was written")
	}
}
