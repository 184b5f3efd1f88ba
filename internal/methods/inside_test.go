package methods

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// planned are the schedules for the budgets of the published tables: 32 layers and 576 tokens, the
// means recomputed by hand.
var planned = []struct {
	o      Options
	stages string // layer:rows
	mean   float64
}{
	{Options{Base: "fastv", NVis: 192}, "2:166", 191.625},
	{Options{Base: "fastv", NVis: 128}, "2:98", 127.875},
	{Options{Base: "fastv", NVis: 64}, "2:30", 64.125},
	{Options{Base: "fastv", NVis: 192, Own: map[string]any{"fastv-layer": 3}}, "3:152", 191.75},
	{Options{Base: "fastv", NVis: 128, Own: map[string]any{"fastv-layer": 3}}, "3:82", 128.3125},
	{Options{Base: "fastv", Schedule: "2:0.5"}, "2:288", 306},
	{Options{Base: "fastv", KeepRatio: 1. / 3}, "2:166", 191.625},
	{Options{Base: "pdrop", Schedule: "8:0.5,16:0.25,24:0.125"}, "8:288,16:144,24:72", 270},
	{Options{Base: "pdrop", NVis: 270}, "8:288,16:144,24:72", 270},
	{Options{Base: "pdrop", NVis: 192}, "8:144,16:36,24:9", 191.25},
	{Options{Base: "pdrop", NVis: 128}, "2:184,10:92,20:46", 128},
	{Options{Base: "pdrop", NVis: 64}, "2:56,10:28,20:14", 64},
	{Options{Base: "pdrop", NVis: 193}, "8:149,16:38,24:9", 193},
	{Options{Base: "pdrop", NVis: 270, Own: map[string]any{"pdrop-layers": "8,16,24"}}, "8:288,16:144,24:72", 270},
	{Options{Base: "pdrop", Schedule: "2:312, 10:156, 20:78"}, "2:312,10:156,20:78", 192},
	{Options{Base: "pdrop", Schedule: "2:576,10:92"}, "10:92", 243.25},
	{Options{Base: "sparsevlm", NVis: 192}, "2:309,6:204,15:113", 206.5},
	{Options{Base: "sparsevlm", NVis: 128}, "2:312,6:117,15:39", 145.40625},
	{Options{Base: "sparsevlm", NVis: 96}, "2:249,6:55,15:27", 114.09375},
	{Options{Base: "sparsevlm", NVis: 64}, "2:82,6:32,15:18", 82.25},
	{Options{Base: "sparsevlm", Schedule: "2:300,6:200,15:110"}, "2:309,6:204,15:113", 206.5},
	{Options{Base: "sparsevlm", NVis: 206}, "2:309,6:203,15:112", 205.71875},
}

// Ensure that budgets become the schedules of the published tables, and what RESTORE keeps of each
// stage.
func TestSchedules(t *testing.T) {
	for _, c := range planned {
		r, err := inLayers(c.o, 576, 32)
		if err != nil {
			t.Errorf("%+v: %v", c.o, err)
			continue
		}
		if got := stagesOf(r.Stages); got != c.stages || r.Mean != c.mean {
			t.Errorf(
				"%s n-vis %d keep-ratio %v schedule %q: got %s with a mean of %v, want %s with %v",
				c.o.Base, c.o.NVis, c.o.KeepRatio, c.o.Schedule, got, r.Mean, c.stages, c.mean)
		}
		if last := r.Stages[len(r.Stages)-1].Rows(); r.NVis != last {
			t.Errorf("%s: n-vis %d, want the last stage's %d", c.o.Base, r.NVis, last)
		}
		for _, gamma := range []float64{0, 0.5, 0.75, 0.9, 1} {
			c.o.Restore, c.o.Gamma = true, &gamma
			if r, err = inLayers(c.o, 576, 32); err != nil {
				t.Fatal(err)
			}
			for _, s := range r.Stages {
				if want := int(gamma * float64(s.Rows())); s.Kept != want {
					t.Errorf("%s gamma %v: %d of %d rows kept, want %d", c.o.Base, gamma, s.Kept,
						s.Rows(), want)
				}
			}
			if stagesOf(r.Stages) != c.stages {
				t.Errorf("%s gamma %v: got %s, want %s as without RESTORE", c.o.Base, gamma,
					stagesOf(r.Stages), c.stages)
			}
		}
	}
}

func stagesOf(stages []reduce.Stage) string {
	var s []string
	for _, x := range stages {
		s = append(s, fmt.Sprintf("%d:%d", x.Layer, x.Rows()))
	}
	return strings.Join(s, ",")
}

// Ensure that for every depth and budget the mean over layer inputs is the budget where a method
// can reach it, and that rows never grow.
func TestScheduleMeans(t *testing.T) {
	for _, base := range []string{"fastv", "pdrop", "sparsevlm", "fitprune", "dart-text"} {
		after, reached := 0, 0
		if base == "sparsevlm" || base == "fitprune" {
			after = 1
		}
		for _, layers := range []int{2, 4, 6, 12, 28, 32, 40, 80} {
			for _, n := range []int{1, 7, 64, 577} {
				for budget := 1; budget <= n; budget += 1 + n/40 {
					o := Options{Base: base, NVis: budget}
					if base == "fitprune" {
						o.Own = recipeIn(t, evenRecipe(layers))
					}
					r, err := inLayers(o, n, layers)
					if err != nil {
						if !strings.Contains(err.Error(), "n-vis: got a mean of") {
							t.Fatalf("%s %d of %d tokens, %d layers: %v", base, budget, n, layers,
								err)
						}
						continue
					}
					reached++
					rows, last, sum, next := n, 0, 0, 0
					for l := range layers {
						if next < len(r.Stages) && r.Stages[next].Layer+after == l {
							if r.Stages[next].Rows() >= rows || l <= last {
								t.Fatalf("%s %d of %d tokens, %d layers: stages %v", base, budget,
									n, layers, r.Stages)
							}
							rows, last, next = r.Stages[next].Rows(), l, next+1
						}
						sum += rows
					}
					if next < len(r.Stages) && r.Stages[next].Layer+after == layers {
						next++ // inside the last layer: no layer after it
					}
					mean := float64(sum) / float64(layers)
					if next != len(r.Stages) || mean != r.Mean ||
						!(math.Abs(mean-float64(budget)) <= 0.5+float64(budget)/100) {
						t.Fatalf("%s %d of %d tokens, %d layers: stages %v, mean %v, said to be %v",
							base, budget, n, layers, r.Stages, mean, r.Mean)
					}
				}
			}
		}
		if reached < 300 {
			t.Errorf("%s: reached %d budgets", base, reached)
		}
	}
}

// recipeIn is the parameter that gives a recipe.
func recipeIn(t testing.TB, r *Recipe) map[string]any {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return map[string]any{"fitprune-recipe": b.Bytes()}
}

// evenRecipe drops a twelfth of 576 tokens in each of the first layers, or a quarter.
func evenRecipe(layers int) *Recipe {
	r := &Recipe{Layers: layers, Tokens: 576}
	for _, d := range []int{48, 144} {
		drop := make([]int, layers)
		for l := range min(layers, 3) {
			drop[l] = d
		}
		r.Schedules = append(r.Schedules, RecipeSchedule{float64(d) / 200, drop})
	}
	return r
}

// Ensure that a recipe's own schedules come back where n-vis is their mean, and that they scale
// with the picture.
func TestRecipeSchedules(t *testing.T) {
	// the authors' for cuts of 70, 80 and 90 %
	recipe := &Recipe{Layers: 32, Tokens: 576, Schedules: []RecipeSchedule{
		{0.9, []int{262, 153, 80, 19, 13, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 1, 2, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}},
		{0.7, []int{48, 79, 118, 41, 33, 17, 36, 9, 9, 2, 3, 2, 1, 3, 4, 8, 18, 7, 8, 20, 4, 13, 2, 1, 0, 0, 1, 0, 1, 0, 0, 0}},
		{0.8, []int{128, 127, 118, 35, 26, 8, 13, 3, 2, 1, 0, 0, 0, 2, 1, 8, 7, 8, 5, 11, 2, 6, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0}},
	}}
	for budget, want := range map[int]struct {
		mean  float64
		drops []int
	}{
		188: {187.875, recipe.Schedules[1].Drop}, 131: {130.59375, recipe.Schedules[2].Drop}, 73: {72.84375, recipe.Schedules[0].Drop},
	} {
		// The nearest mean wins, which need not be the recipe's own: ask for the schedule and for
		// the budget.
		rows, sum := 576, 0
		for _, d := range want.drops {
			sum += rows
			rows -= d
		}
		if mean := float64(sum) / 32; mean != want.mean {
			t.Fatalf("budget %d: mean %v, want %v", budget, mean, want.mean)
		}
		r, err := inLayers(Options{Base: "fitprune", NVis: budget, Own: recipeIn(t, recipe)}, 576,
			32)
		if err != nil {
			t.Fatal(err)
		}
		if !(math.Abs(r.Mean-float64(budget)) <= 0.25) {
			t.Errorf("budget %d: mean %v", budget, r.Mean)
		}
		rows = 576
		for _, d := range want.drops {
			rows -= d
		}
		if got := r.NVis; got < rows-1 || got > rows+1 {
			t.Errorf("budget %d: %d rows at the end, want about %d", budget, got, rows)
		}
	}
	for n, budget := range map[int]int{144: 47, 2880: 939} { // 187.875 of 576
		r, err := inLayers(Options{Base: "fitprune", NVis: budget, Own: recipeIn(t, recipe)}, n, 32)
		if err != nil {
			t.Fatal(err)
		}
		if want := 88. / 576; !(math.Abs(float64(r.NVis)/float64(n)-want) <= 1/float64(n)) {
			t.Errorf("%d tokens: %d rows at the end, want a share of about %.3f", n, r.NVis, want)
		}
	}
}

// Ensure that what a method inside the decoder cannot honour is refused by name.
func TestInsideRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no budget":         {Options{Base: "fastv"}, "n-vis: missing, want a budget"},
		"budget above N":    {Options{Base: "pdrop", NVis: 65}, "n-vis: got 65, want at most 64"},
		"too few":           {Options{Base: "fastv", NVis: 4}, "n-vis: got a mean of 4 tokens a layer, want at least 4.938, the least (with fastv's stages in 32 layers of 64 tokens; or give a schedule)"},
		"schedule and n":    {Options{Base: "fastv", NVis: 8, Schedule: "2:8"}, "schedule: got 2:8, want one budget (n-vis 8 is given too)"},
		"no colon":          {Options{Base: "fastv", Schedule: "2"}, `schedule: got "2", want LAYER:COUNT or LAYER:SHARE, as in 2:0.5,16:64 (no colon in "2")`},
		"no layer":          {Options{Base: "fastv", Schedule: "x:3"}, `layer "x" is no whole number of at least 0`},
		"no amount":         {Options{Base: "fastv", Schedule: "2:"}, `"" is neither a count nor a share above 0 and at most 1`},
		"share above 1":     {Options{Base: "fastv", Schedule: "2:1.5"}, `"1.5" is neither a count nor a share`},
		"share not finite":  {Options{Base: "fastv", Schedule: "2:NaN"}, `"NaN" is neither a count nor a share`},
		"count 0":           {Options{Base: "pdrop", Schedule: "2:0"}, "count 0 is less than 1"},
		"share of none":     {Options{Base: "pdrop", Schedule: "2:0.001"}, "schedule: got a share of 0.001 at layer 2, want more (that is no token of 64)"},
		"not ascending":     {Options{Base: "pdrop", Schedule: "4:32,4:16"}, "layer 4 does not come after 4"},
		"growing":           {Options{Base: "pdrop", Schedule: "4:16,8:32"}, "schedule: got 32 rows at layer 8, want at most 16 (those that enter the stage)"},
		"layer 0":           {Options{Base: "fastv", Schedule: "0:8"}, "schedule: got layer 0, want 1 or more (for fastv)"},
		"layer too deep":    {Options{Base: "pdrop", Schedule: "32:8"}, "schedule: got layer 32, want 1 to 31 (for pdrop: the model has 32 layers)"},
		"fastv-layer deep":  {Options{Base: "fastv", NVis: 32, Own: map[string]any{"fastv-layer": 32}}, "fastv-layer: got 32, want 1 to 31 (the model has 32 layers)"},
		"fastv-layer < 0":   {Options{Base: "fastv", NVis: 32, Own: map[string]any{"fastv-layer": -1}}, "fastv-layer: got -1, want at least 1"},
		"fastv-layer twice": {Options{Base: "fastv", Schedule: "2:8", Own: map[string]any{"fastv-layer": 2}}, "fastv-layer: got 2, which has no effect with a schedule"},
		"another's layer":   {Options{Base: "pdrop", NVis: 32, Own: map[string]any{"fastv-layer": 2}}, "fastv-layer: got 2, which has no effect with base pdrop (it belongs to fastv)"},
		"pdrop-layers":      {Options{Base: "pdrop", NVis: 32, Own: map[string]any{"pdrop-layers": "4,2"}}, `pdrop-layers: got "4,2", want ascending layers from 1 on, as in 8,16,24`},
		"pdrop-layers deep": {Options{Base: "pdrop", NVis: 32, Own: map[string]any{"pdrop-layers": "4,40"}}, "pdrop-layers: got 4,40, want layers from 1 to 31"},
		"another's layers":  {Options{Base: "fastv", NVis: 32, Own: map[string]any{"pdrop-layers": "2"}}, "pdrop-layers: got 2, which has no effect with base fastv (it belongs to pdrop)"},
		"sparsevlm-layers":  {Options{Base: "sparsevlm", NVis: 32, Own: map[string]any{"sparsevlm-layers": "2,6"}}, `sparsevlm-layers: got "2,6", want 3 ascending layers from 0 on, as in 2,6,15`},
		"sparsevlm text":    {Options{Base: "sparsevlm", NVis: 32, Own: map[string]any{"sparsevlm-layers": "2,x,6"}}, `sparsevlm-layers: got "2,x,6", want 3 ascending layers`},
		"sparsevlm deep":    {Options{Base: "sparsevlm", NVis: 32, Own: map[string]any{"sparsevlm-layers": "2,6,31"}}, "sparsevlm-layers: got 2,6,31, want layers from 0 to 30 (the model has 32 layers)"},
		"sparsevlm twice":   {Options{Base: "sparsevlm", Schedule: "2:8", Own: map[string]any{"sparsevlm-layers": "2,6,15"}}, "sparsevlm-layers: got 2,6,15, which has no effect with a schedule"},
		"last layer":        {Options{Base: "sparsevlm", Schedule: "31:8"}, "schedule: got layer 31, want 0 to 30 (for sparsevlm"},
		"growing by k":      {Options{Base: "sparsevlm", Schedule: "2:16,6:32"}, "schedule: got 32 rows at layer 6, want at most 18 (those that enter the stage)"},
		"no recipe":         {Options{Base: "fitprune", NVis: 32}, "fitprune-recipe: missing, want a recipe for the model, or a schedule (a budget of 32 tokens a layer needs one)"},
		"another's recipe":  {Options{Base: "fitprune", NVis: 32, Own: recipeIn(t, smallRecipe)}, "fitprune-recipe: got one for 3 layers, want 32 (as many as the model has)"},
		"broken recipe":     {Options{Base: "fitprune", NVis: 32, Own: map[string]any{"fitprune-recipe": []byte("{}")}}, `fitprune-recipe: got a file, want a recipe file (recipe: got format ""`},
		"recipe outside":    {Options{Base: "fastv", NVis: 32, Own: recipeIn(t, smallRecipe)}, "fitprune-recipe: got a file, which has no effect with base fastv (it belongs to fitprune)"},
		"recipe and stages": {Options{Base: "fitprune", Schedule: "2:8", Own: recipeIn(t, smallRecipe)}, "fitprune-recipe: got a file, which has no effect with a schedule"},
		"schedule outside":  {Options{Base: "holov", NVis: 8, Schedule: "2:8"}, "schedule: got 2:8, which has no effect with base holov (it belongs to methods inside the decoder)"},
		"schedule alone":    {Options{Schedule: "2:8"}, "schedule: got 2:8, which has no effect without a base"},
		"newlines":          {Options{Base: "fastv", NVis: 32, Newlines: "drop"}, "newlines: got drop, want no say about newlines (fastv acts inside the decoder, where newlines are rows like the others)"},
		"first-layer-size":  {Options{Base: "fastv", NVis: 32, Restore: true, FirstLayerSize: "uniform"}, "first-layer-size: got uniform, which has no effect inside the decoder (layer 0 sees every token)"},
		"gamma alone":       {Options{Base: "fastv", NVis: 32, Gamma: new(0.5)}, "gamma: got 0.5, which has no effect with restore=false"},
	} {
		if _, err := inLayers(c.o, 64, 32); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	if _, err := resolve(Options{Base: "fastv", NVis: 8}, 64); err == nil ||
		!strings.Contains(err.Error(), "a mean of 8 tokens a layer needs a model") {
		t.Errorf("no depth: got %v", err)
	}
	r, err := resolve(Options{Base: "fastv", Schedule: "2:8"}, 64)
	if err != nil {
		t.Fatal(err)
	}
	in := &reduce.Input{N: 64, C: 1, X: make([]float32, 64)}
	if _, err := Reduce(in, r, nil); err == nil ||
		!strings.Contains(err.Error(), "fastv: acts inside the decoder") {
		t.Errorf("features alone: got %v", err)
	}
}

// FuzzSchedule reads schedules: none may panic or leave the ranges that it promises.
func FuzzSchedule(f *testing.F) {
	for _, s := range []string{
		"", "2:0.5", "2:0.5,16:64", "1:18", "2:", ":", ",", "-1:2", "2:-0", "1:1e-9", "3:Inf", "9999999999999999999:1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, base := range []string{"fastv", "pdrop", "sparsevlm", "fitprune", "dart-text"} {
			r, err := inLayers(Options{Base: base, Schedule: s}, 64, 32)
			if err != nil {
				continue
			}
			before, layer := 64, -1
			for _, st := range r.Stages {
				if st.Layer <= layer || st.Layer > 31 || st.Rows() < 1 || st.Rows() >= before {
					t.Fatalf("%q: stages %v", s, r.Stages)
				}
				before, layer = st.Rows(), st.Layer
			}
		}
	})
}

// Ensure that what is wrong whatever the picture is told without one, and that counts and shares
// meet only when its tokens are known.
func TestCheck(t *testing.T) {
	for schedule, want := range map[string]string{
		"2:64,3:0.1":      "", // 58 of 576 tokens, and more than 64 of 641 or more
		"2:0.5,16:64":     "",
		"2:0.5,16:64,9:1": "layer 9 does not come after 16",
		"2:64,3:1.5":      "neither a count nor a share",
		"2:64,3:128":      "got 128 rows at layer 3, want at most 64",
		"2:0.1,3:0.2":     "rows at layer 3, want at most",
		"0:0.1,3:64":      "got layer 0, want 1 or more (for fastv)",
	} {
		err := Check(Options{Base: "fastv", Schedule: schedule})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", schedule, err, want)
		}
	}
	r, err := inLayers(Options{Base: "fastv", Schedule: "2:64,3:0.1"}, 576, 32)
	if err != nil || len(r.Stages) != 2 || r.Stages[0].Rows() != 64 || r.Stages[1].Rows() != 58 {
		t.Errorf("of 576 tokens: got %v, %v, want 64 and 58 rows", r.Stages, err)
	}
	if _, err := inLayers(Options{Base: "fastv", Schedule: "2:64,3:0.1"}, 1000, 32); err == nil ||
		!strings.Contains(err.Error(), "got 100 rows at layer 3, want at most 64") {
		t.Errorf("of 1000 tokens: got %v, want a refusal", err)
	}
	for _, o := range []Options{
		{Base: "holov", NVis: 64}, {Base: "holov", KeepRatio: 0.001}, {Base: "downsample", NVis: 7}, {Base: "none"},
	} {
		if err := Check(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
