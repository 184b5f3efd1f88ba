package methods

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func recipeText(t testing.TB, r *Recipe) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var smallRecipe = &Recipe{
	Model: "m", Layers: 3, Tokens: 8, Schedules: []RecipeSchedule{
		{0.5, []int{2, 2, 0}}, {0.25, []int{0, 2, 2}},
	},
}

// Ensure a recipe that was written reads as it was, one schedule a line.
func TestRecipeRoundTrip(t *testing.T) {
	text := recipeText(t, smallRecipe)
	if want := `"schedules":[
{"cut":0.5,"drop":[2,2,0]},
{"cut":0.25,"drop":[0,2,2]}
]}
`; !strings.HasSuffix(text, want) {
		t.Errorf("got %s, want the end %s", text, want)
	}
	got, err := ReadRecipe(strings.NewReader("\ufeff" + text))
	if err != nil || !reflect.DeepEqual(got, smallRecipe) {
		t.Errorf("got %+v, %v, want %+v", got, err, smallRecipe)
	}
	// 6/8, 4/8, 4/8 and 8/8, 6/8, 4/8; that which keeps more comes first.
	if got, want := smallRecipe.kept(), [][]float64{
		{1, 0.75, 0.5}, {0.75, 0.5, 0.5},
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("got shares %v, want %v", got, want)
	}
}

func TestRecipeErrors(t *testing.T) {
	good := recipeText(t, smallRecipe)
	for name, c := range map[string]struct{ old, new, want string }{
		"format":    {`"fitprune-recipe"`, `"x"`, `got format "x", version 1, want "fitprune-recipe", 1`},
		"version":   {`"version":1`, `"version":2`, "version 2"},
		"layers":    {`"layers":3`, `"layers":0`, "layers: got 0, want 1 to 1024"},
		"tokens":    {`"tokens":8`, `"tokens":99999`, "tokens: got 99999, want 1 to 16384"},
		"length":    {`[2,2,0]`, `[2,2]`, "schedule 0: drop: got 2 layers, want 3"},
		"negative":  {`[2,2,0]`, `[2,-1,0]`, "schedule 0: drop: got -1 at layer 1, want 0 to 5"},
		"all":       {`[0,2,2]`, `[0,2,6]`, "schedule 1: drop: got 6 at layer 2, want 0 to 5"},
		"cut":       {`"cut":0.25`, `"cut":1`, "schedule 1: cut: got 1"},
		"none":      {good[strings.Index(good, "\n"):], "]}", "schedules: got 0"},
		"unknown":   {`"model"`, `"mode"`, `unknown field "mode"`},
		"behind":    {"\n]}\n", "\n]}{}", "text after the object"},
		"truncated": {"\n]}\n", "", "unexpected EOF"},
		"not UTF-8": {`"fitprune-recipe"`, "\"\xe9\"", "recipe: is not UTF-8: got 0xe9 at byte 11"},
		"large":     {"\n]}\n", strings.Repeat(" ", documentBytes) + "]}", "more than 1048576 bytes"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if _, err := ReadRecipe(strings.NewReader(text)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	if err := (&Recipe{Layers: 1, Tokens: 1}).Write(nil); err == nil {
		t.Error("a recipe without schedules was written")
	}
}

// FuzzReadRecipe: what is accepted can be written and reads the same again.
func FuzzReadRecipe(f *testing.F) {
	f.Add(recipeText(f, smallRecipe))
	f.Add(`{"format":"fitprune-recipe","version":1,"layers":1,"tokens":1,"schedules":[{"cut":0.1,"drop":[0]}]}`)
	f.Add(`{"format":"fitprune-recipe","version":1,"layers":1e9}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ReadRecipe(strings.NewReader(text))
		if err != nil {
			return
		}
		again, err := ReadRecipe(strings.NewReader(recipeText(t, r)))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("got %+v, %v, want %+v", again, err, r)
		}
	})
}
