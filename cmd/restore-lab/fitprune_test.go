package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
)

// Ensure that a recipe is fitted to questions on disk, that --base fitprune follows it, and that
// the embedded model has its own recipe.
func TestFitPruneRecipe(t *testing.T) {
	dir := filepath.Dir(clitest.Drawn(t, 1))
	file, lines := filepath.Join(dir, "r.json"), filepath.Join(dir, "q.jsonl")
	if err := os.WriteFile(lines,
		[]byte(`{"image": "scene.png", "text": "How many stars are there?"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := commandLine("fitprune-recipe", "--data", lines, "--cut", "0.5,0.8", "-o", file)
	if r.Code != cli.ExitOK || !strings.Contains(r.Out,
		"r.json: builtin, 6 layers, 576 tokens, 1 questions about "+lines) ||
		strings.Count(r.Out, "\n") != 4 {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	made, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	recipe, err := methods.ReadRecipe(made)
	if err != nil {
		t.Fatal(err)
	}
	// The rows that remain when half or four fifths of the work is cut: a layer's work grows faster
	// than its rows, so the mean falls below those shares.
	for i, most := range []float64{0.7, 0.4} {
		sum, left := 0, recipe.Tokens
		for _, d := range recipe.Schedules[i].Drop {
			sum += left
			left -= d
		}
		if mean := float64(sum) /
			float64(recipe.Layers*recipe.Tokens); !(mean <= most && mean > 1./6) {
			t.Errorf("cut %v: a share of %.2f enters the layers, want at most %v",
				recipe.Schedules[i].Cut, mean, most)
		}
	}
	for _, args := range [][]string{{"--fitprune-recipe", file}, nil} {
		r := commandLine(append([]string{"run", "--verbose", "--image",
			clitest.Drawn(t, clitest.NumberSeed), "-p", clitest.Number, "--base", "fitprune",
			"--n-vis", "192"}, args...)...)
		if r.Code != cli.ExitOK || r.Out != clitest.NumberAnswer+"\n" ||
			!strings.Contains(r.Err, "RESTORE over fitprune, schedule 0:") ||
			!strings.Contains(r.Err, "(19") {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", args, r.Code, r.Out, r.Err)
		}
	}
	// The recipe from stdout equals the one in the file.
	var b strings.Builder
	if err := recipe.Write(&b); err != nil {
		t.Fatal(err)
	}
	if r := commandLine("fitprune-recipe", "--data", lines, "--cut",
		"0.5,0.8"); r.Out != b.String() {
		t.Errorf("stdout %q, want %q", r.Out, b.String())
	}
}

// Ensure that values that FitPrune and SparseVLM cannot honour are refused by name.
func TestInDecoderRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	recipe := &methods.Recipe{
		Layers: 2, Tokens: 4, Schedules: []methods.RecipeSchedule{{Cut: 0.5, Drop: []int{1, 1}}},
	}
	clitest.Filled(t, file, recipe.Write)
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	picture := clitest.Drawn(t, clitest.NumberSeed)
	for name, c := range map[string]struct {
		args string
		want string
	}{
		"layers":     {"run --base fitprune --n-vis 64 --fitprune-recipe " + file, "--fitprune-recipe: got one for 2 layers, want 6 (as many as the model has)"},
		"broken":     {"run --base fitprune --n-vis 64 --fitprune-recipe " + broken, broken + ": --fitprune-recipe: got a file, want a recipe file (recipe: unexpected EOF)"},
		"no file":    {"run --base fitprune --n-vis 64 --fitprune-recipe none.json", "none.json: no such file or folder"},
		"other base": {"run --base fastv --n-vis 128 --fitprune-recipe " + file, "fitprune-recipe: got a file, which has no effect with base fastv"},
		"schedule":   {"run --base fitprune --schedule 1:64 --fitprune-recipe " + file, "fitprune-recipe: got a file, which has no effect with a schedule"},
		"too few":    {"run --base sparsevlm --n-vis 70", "n-vis: got a mean of 70 tokens a layer, want at least 100.5, the least (with sparsevlm's stages in 6 layers of 576 tokens; or give a schedule)"},
		"layer":      {"run --base sparsevlm --schedule 5:64", "schedule: got layer 5, want 0 to 4 (for sparsevlm: the model has 6 layers)"},
		"cut":        {"fitprune-recipe --cut 1.5", "--cut: out of range, got 1.5, want more than 0 and less than 1"},
		"unreached":  {"fitprune-recipe --n 1 --cut 0.99", "cut: got 0.99, which no trial reaches, want less"},
		"n":          {"fitprune-recipe --n 0", "--n: out of range, got 0, want 1 to 4096"},
		"data":       {"fitprune-recipe --data none.jsonl", "none.jsonl"},
	} {
		args := strings.Fields(c.args)
		if args[0] == "run" {
			args = append(args, "--image", picture, "-p", clitest.Number)
		}
		if r := commandLine(args...); r.Code == cli.ExitOK || !strings.Contains(r.Err, c.want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", name, r.Code, r.Err, c.want)
		}
	}
	if want := "n-vis: got a mean of 64"; !strings.Contains(commandLine("run", "--image", picture,
		"-p",
		clitest.Number, "--base", "sparsevlm").Err, want) {
		t.Errorf("the default budget: want %q", want)
	}
}

// Ensure that questions from which no recipe can be made are refused.
func TestFitRecipeQuestions(t *testing.T) {
	m, err := engine.Open(formats.Files{}, engine.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	pic := &imageproc.Picture{Width: 8, Height: 8, Pix: make([]byte, 3*64)}
	ask := func(pics ...*imageproc.Picture) engine.Request {
		return engine.Request{Prompt: clitest.Number, Images: engine.Pictures(pics...)}
	}
	for name, c := range map[string]struct {
		questions []engine.Request
		cuts      []float64
		want      string
	}{
		"none":         {nil, []float64{0.5}, "lab: recipe: got 0 questions and 1 cuts, want at least one of each"},
		"no cut":       {[]engine.Request{ask(pic)}, nil, "got 1 questions and 0 cuts"},
		"two pictures": {[]engine.Request{ask(pic, pic)}, []float64{0.5}, "question 0: lab: recipe: got 2 pictures, want one"},
		"text alone":   {[]engine.Request{ask(pic), ask()}, []float64{0.5}, "question 1: "},
		"cut of all":   {[]engine.Request{ask(pic)}, []float64{1}, "methods: cut: got 1, want more than 0 and less than 1"},
	} {
		if _, err := lab.FitRecipe(t.Context(), m, c.questions, lab.FitOptions{
			Cuts: c.cuts,
		}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	stop := lab.FitOptions{Cuts: []float64{0.5}, Progress: func(int, int) { cancel() }}
	if _, err := lab.FitRecipe(ctx, m, []engine.Request{ask(pic)}, stop); !errors.Is(err,
		context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}
