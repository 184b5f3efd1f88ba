package reduce_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

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
