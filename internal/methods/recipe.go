package methods

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Recipe holds FitPrune's result on calibration questions: for each share of the decoder's work to
// cut, how many visual rows each layer drops. Its file is JSON with the members below and "format"
// and "version".
type Recipe struct {
	Model     string           `json:"model,omitempty"`  // name of the model, for readers
	Source    string           `json:"source,omitempty"` // the calibration data, for readers
	Layers    int              `json:"layers"`           // layers of the decoder
	Tokens    int              `json:"tokens"`           // tokens of a picture
	Schedules []RecipeSchedule `json:"schedules"`
}

// RecipeSchedule is one schedule of a Recipe.
type RecipeSchedule struct {
	// share of the decoder's work on visual rows to cut, above 0 and below 1
	Cut  float64 `json:"cut"`
	Drop []int   `json:"drop"` // [Layers] rows that each layer drops; fewer than Tokens in total
}

const (
	recipeLayers    = 1 << 10
	recipeSchedules = 1 << 6
)

// recipeHead begins a file of a Recipe.
var recipeHead = documentHead{Format: recipeName, Version: 1}

// recipeFile is the file format of a Recipe.
type recipeFile struct {
	documentHead
	Recipe
}

// ReadRecipe reads a recipe file of at most 1 MiB and checks it. The error names the invalid
// member.
func ReadRecipe(r io.Reader) (*Recipe, error) {
	f := recipeFile{documentHead: recipeHead}
	if err := readDocument(r, "recipe", &f.documentHead, &f); err != nil {
		return nil, err
	}
	if err := f.Check(); err != nil {
		return nil, err
	}
	return &f.Recipe, nil
}

// Write writes the recipe file, one schedule per line.
func (r *Recipe) Write(w io.Writer) error {
	if err := r.Check(); err != nil {
		return err
	}
	head := recipeFile{documentHead: recipeHead, Recipe: *r}
	head.Schedules = []RecipeSchedule{}
	text, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("methods: recipe: %w", err)
	}
	out := bytes.NewBuffer(bytes.TrimSuffix(text, []byte("]}")))
	for i, s := range r.Schedules {
		line, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("methods: recipe: %w", err)
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
		out.Write(line)
	}
	out.WriteString("\n]}\n")
	_, err = w.Write(out.Bytes())
	return err
}

// Check reports the first member that is out of range or does not agree with the others.
func (r *Recipe) Check() error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("methods: recipe: "+format, a...)
	}
	if r.Layers < 1 || r.Layers > recipeLayers {
		return bad("layers: got %d, want 1 to %d", r.Layers, recipeLayers)
	}
	if r.Tokens < 1 || r.Tokens > maxTokens {
		return bad("tokens: got %d, want 1 to %d", r.Tokens, maxTokens)
	}
	if len(r.Schedules) < 1 || len(r.Schedules) > recipeSchedules {
		return bad("schedules: got %d, want 1 to %d", len(r.Schedules), recipeSchedules)
	}
	for i, s := range r.Schedules {
		if !(s.Cut > 0 && s.Cut < 1) {
			return bad("schedule %d: cut: got %v, want more than 0 and less than 1", i, s.Cut)
		}
		if len(s.Drop) != r.Layers {
			return bad("schedule %d: drop: got %d layers, want %d", i, len(s.Drop), r.Layers)
		}
		left := r.Tokens
		for l, d := range s.Drop {
			if d < 0 || d >= left {
				return bad("schedule %d: drop: got %d at layer %d, want 0 to %d (a row must stay)",
					i, d, l, left-1)
			}
			left -= d
		}
	}
	return nil
}

// kept returns, for each schedule, the share of rows that each layer leaves, from the schedule that
// keeps most to the one that keeps least.
func (r *Recipe) kept() [][]float64 {
	curves := make([][]float64, len(r.Schedules))
	sum := make(map[*float64]float64, len(curves))
	for i, s := range r.Schedules {
		left := r.Tokens
		curves[i] = make([]float64, r.Layers)
		for l, d := range s.Drop {
			left -= d
			curves[i][l] = float64(left) / float64(r.Tokens)
			sum[&curves[i][0]] += curves[i][l]
		}
	}
	slices.SortStableFunc(curves, func(a, b []float64) int {
		switch x, y := sum[&a[0]], sum[&b[0]]; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return curves
}
