package methods

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

var smallBudgets = &Budgets{Model: "m", Source: "s", Pictures: 2, Means: []ContentBudget{
	{Mean: 8, Threshold: 0.5, Guard: 0.6, Found: 8, Least: 4, Most: 12},
	{Mean: 16, Threshold: 0.25, Guard: 0.3, Found: 16, Least: 8, Most: 30},
}}

func budgetsText(t testing.TB, b *Budgets) string {
	t.Helper()
	var out strings.Builder
	if err := b.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Ensure that budgets read as they were written, and what of their file is refused.
func TestBudgetsFile(t *testing.T) {
	good := budgetsText(t, smallBudgets)
	got, err := ReadBudgets(strings.NewReader("\ufeff" + good))
	if err != nil || !reflect.DeepEqual(got, smallBudgets) {
		t.Errorf("got %+v, %v, want %+v", got, err, smallBudgets)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"format":    {`"restore-budget"`, `"x"`, `got format "x", version 1, want "restore-budget", 1`},
		"version":   {`"version": 1`, `"version": 2`, "version 2"},
		"pictures":  {`"pictures": 2`, `"pictures": 0`, "got 0 pictures and 2 means"},
		"order":     {`"mean": 16`, `"mean": 8`, "mean 1: got 8, want more than 8"},
		"large":     {`"mean": 16`, `"mean": 99999`, "at most 16384"},
		"threshold": {`"threshold": 0.5`, `"threshold": 2`, "got threshold 2 and guard 0.6"},
		"guard":     {`"guard": 0.6`, `"guard": -1`, "guard -1, want 0 to 1.001"},
		"unknown":   {`"pictures"`, `"picture"`, `unknown field "picture"`},
		"behind":    {"\n}\n", "\n}{}", "text after the object"},
		"truncated": {"\n}\n", "", "unexpected EOF"},
		"not UTF-8": {`"restore-budget"`, "\"\xe9\"", "budgets: is not UTF-8: got 0xe9 at byte 14"},
		"bytes":     {"\n}\n", strings.Repeat(" ", documentBytes) + "}", "more than 1048576 bytes"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		_, err := ReadBudgets(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	if err := new(Budgets).Write(nil); err == nil {
		t.Error("budgets of no picture were written")
	}
}

// FuzzReadBudgets: what is accepted can be written and reads the same again.
func FuzzReadBudgets(f *testing.F) {
	f.Add(budgetsText(f, smallBudgets))
	f.Add(`{"format":"restore-budget","version":1,"pictures":1,"means":[{"mean":1}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		b, err := ReadBudgets(strings.NewReader(text))
		if err != nil {
			return
		}
		again, err := ReadBudgets(strings.NewReader(budgetsText(t, b)))
		if err != nil || !reflect.DeepEqual(again, b) {
			t.Errorf("got %+v, %v, want %+v", again, err, b)
		}
	})
}

// falling are n gains that fall by a factor.
func falling(factor float64, n int) []float64 {
	out := make([]float64, n)
	for i, g := 0, 1.; i < n; i, g = i+1, g*factor {
		out[i] = g
	}
	return out
}

// Ensure that the pictures' budgets have the mean that was asked for, within half and twice
// of it and what each picture has, and that one picture in ten is dense.
func TestFindBudgets(t *testing.T) {
	var all []PictureGains
	for i := range 100 {
		all = append(all, PictureGains{falling(0.8+0.0015*float64(i), 128), 128})
	}
	all = append(all, PictureGains{falling(0.9, 10), 10})
	b, err := FindBudgets(all, []int{64, 8, 32})
	if err != nil || len(b.Means) != 3 || b.Pictures != 101 {
		t.Fatalf("got %+v, %v", b, err)
	}
	for i, want := range []int{8, 32, 64} {
		m, sum, dense := b.Means[i], 0, 0
		for _, p := range all {
			_, n := contentCount(p.Gains, m.Threshold, want, p.Tokens)
			if n > 2*want || n > p.Tokens || n < min(want/2, p.Tokens) {
				t.Errorf("mean %d: a picture of %d tokens got %d", want, p.Tokens, n)
			}
			if sum += n; want <= len(p.Gains) && p.Gains[want-1] > m.Guard {
				dense++
			}
		}
		if mean := float64(sum) / float64(len(all)); m.Mean != want ||
			math.Abs(mean-float64(want)) > 0.02 || m.Found != mean {
			t.Errorf("mean %d: got %+v, which gives %v", want, m, mean)
		}
		if dense < 9 || dense > 11 {
			t.Errorf("mean %d: %d of %d pictures are dense", want, dense, len(all))
		}
	}
	for name, c := range map[string]struct {
		all   []PictureGains
		means []int
		want  string
	}{
		"none":     {nil, []int{1}, "got no pictures"},
		"no mean":  {all, nil, "mean: got 0 means, want 1 to 64"},
		"zero":     {all, []int{0}, "mean: got 0, want at least 1"},
		"twice":    {all, []int{4, 4}, "mean: got 4, want each once"},
		"too many": {all[100:], []int{11}, "mean: got 11, want at most 10"},
	} {
		if _, err := FindBudgets(c.all, c.means); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

// contentFacts are of a picture of 100 tokens with the gains that are given.
func contentFacts(gains []float64) Facts {
	return Facts{
		Tokens: 100, Budgets: func() (*Budgets, error) { return smallBudgets, nil },
		Gains: func(most int) ([]float64, error) { return gains[:min(most, len(gains))], nil },
	}
}

// Ensure that a picture gets as many tokens as have gains above the threshold, within bounds,
// and that the guard raises budget and gamma of dense pictures alone.
func TestContentBudget(t *testing.T) {
	step := func(high int, top, low float64) []float64 { // so many gains of top, then low
		out := make([]float64, 100)
		for i := range out {
			if out[i] = top; i >= high {
				out[i] = low
			}
		}
		return out
	}
	for name, c := range map[string]struct {
		o       Options
		gains   []float64
		n       int
		gamma   float64
		content reduce.Content
	}{
		"auto":    {Options{AutoMean: 8}, step(10, 0.9, 0.1), 10, 0.5, reduce.Content{Mean: 8, Threshold: 0.5, Above: 10}},
		"few":     {Options{AutoMean: 8}, step(1, 0.9, 0.1), 4, 0.5, reduce.Content{Mean: 8, Threshold: 0.5, Above: 1}},
		"many":    {Options{AutoMean: 8}, step(99, 0.9, 0.1), 16, 0.5, reduce.Content{Mean: 8, Threshold: 0.5, Above: 16}},
		"at once": {Options{AutoMean: 8}, step(5, 0.9, 0.5), 5, 0.5, reduce.Content{Mean: 8, Threshold: 0.5, Above: 5}},
		"dense":   {Options{NVis: 16, Guard: true}, step(16, 0.9, 0.1), 32, 0.75, reduce.Content{Gain: 0.9, Guard: 0.3, Raised: true}},
		"gamma": {
			Options{NVis: 16, Guard: true, Gamma: new(0.25)}, step(16, 0.9, 0.1), 32, 0.25,
			reduce.Content{Gain: 0.9, Guard: 0.3, Raised: true},
		},
		"sparse": {Options{NVis: 16, Guard: true}, step(15, 0.9, 0.3), 16, 0.5, reduce.Content{Gain: 0.3, Guard: 0.3}},
		"ratio":  {Options{KeepRatio: 0.16, Guard: true}, step(15, 0.9, 0.3), 16, 0.5, reduce.Content{Gain: 0.3, Guard: 0.3}},
		"both": {
			Options{AutoMean: 8, Guard: true}, step(99, 0.9, 0.1), 32, 0.75,
			reduce.Content{Mean: 8, Threshold: 0.5, Above: 16, Gain: 0.9, Guard: 0.6, Raised: true},
		},
	} {
		c.o.Base, c.o.Restore = "grid", true
		if err := Check(c.o); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p, err := Resolve(c.o, contentFacts(c.gains))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if p.NVis != c.n || p.Gamma != c.gamma || p.Content == nil || *p.Content != c.content {
			t.Errorf("%s: got n-vis %d, gamma %v, %+v, want %d, %v, %+v",
				name, p.NVis, p.Gamma, p.Content, c.n, c.gamma, c.content)
		}
		if !strings.Contains(p.String(), p.Content.String()) {
			t.Errorf("%s: %q lacks %q", name, p, p.Content)
		}
	}
	// A picture with fewer tokens than the budget is read whole, as without a guard.
	p, err := Resolve(Options{Base: "grid", NVis: 8, UpTo: true, Restore: true, Guard: true},
		Facts{
			Tokens: 5, Budgets: contentFacts(nil).Budgets,
			Gains: contentFacts(falling(0.9, 5)).Gains,
		})
	if err != nil || p.NVis != 5 || p.Content != nil {
		t.Errorf("got %+v, %v, want all 5 tokens", p, err)
	}
}

// Ensure that a budget by content is refused where it cannot be, under the right name.
func TestContentRefusals(t *testing.T) {
	f := contentFacts(falling(0.9, 100))
	without := f
	without.Budgets = nil
	blind := f
	blind.Gains = nil
	for name, c := range map[string]struct {
		o     Options
		f     Facts
		field string
		fault errs.Fault
	}{
		"encoder":   {Options{Base: "tome", AutoMean: 8}, f, "n-vis", errs.Conflict},
		"guard":     {Options{Base: "tome", NVis: 8, Restore: true, Guard: true}, f, "guard", errs.Conflict},
		"two":       {Options{Base: "grid", AutoMean: 8, KeepRatio: 0.5}, f, "n-vis", errs.Conflict},
		"schedule":  {Options{Base: "fastv", AutoMean: 8, Schedule: "2:8"}, f, "schedule", errs.Conflict},
		"mean":      {Options{Base: "grid", AutoMean: 9}, f, "n-vis", errs.Conflict},
		"of guard":  {Options{Base: "grid", NVis: 9, Restore: true, Guard: true}, f, "guard", errs.Conflict},
		"plain":     {Options{Base: "grid", NVis: 8, Guard: true}, f, "guard", errs.Useless},
		"none":      {Options{AutoMean: 8}, f, "n-vis", errs.Useless},
		"no file":   {Options{Base: "grid", AutoMean: 8}, without, "budget-file", errs.Missing},
		"no use":    {Options{Base: "grid", NVis: 8, Budgets: smallBudgets}, f, "budget-file", errs.Useless},
		"unlooked":  {Options{Base: "grid", AutoMean: 8}, blind, "n-vis", errs.Conflict},
		"no budget": {Options{Base: "grid", Restore: true, Guard: true}, f, "n-vis", errs.Missing},
	} {
		_, err := Resolve(c.o, c.f)
		var bad *errs.OptionError
		if !errors.As(err, &bad) || bad.Name != c.field || bad.Fault != c.fault {
			t.Errorf("%s: got %v, want a refusal of %s (%v)", name, err, c.field, c.fault)
		}
	}
}
