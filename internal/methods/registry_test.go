package methods

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// ownParameters are those of methods, without those that package-wide options hold.
func ownParameters() []reduce.Parameter {
	all := shared()
	return slices.DeleteFunc(Parameters(), func(p reduce.Parameter) bool {
		return slices.ContainsFunc(all, func(q reduce.Parameter) bool { return q.Name == p.Name })
	})
}

// mentions returns the files, in lower case, that hold a parameter's name in any of its forms, as
// "dart-pivots", "dart_pivots" or "DartPivots".
func mentions(p *reduce.Parameter, files map[string]string) []string {
	forms := []string{p.Name, p.JSONName(), strings.ReplaceAll(p.Name, "-", "")}
	word := regexp.MustCompile(`\b(` + strings.Join(forms, "|") + `)\b`)
	var out []string
	for path, text := range files {
		held := func(form string) bool { return strings.Contains(text, form) }
		if slices.ContainsFunc(forms, held) && word.MatchString(text) { // the latter takes longer
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

// library returns the text of the library's Go files that are no tests, in lower case.
func library(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() &&
			(name == "cmd" || name == "tools" || name == "examples" || name == "testdata" ||
				path != root && strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		files[path] = strings.ToLower(string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Ensure that a method is one file: the name of its parameter is in no other.
func TestParameterInOneFile(t *testing.T) {
	files := library(t)
	if len(files) < 100 {
		t.Fatalf("found %d files", len(files))
	}
	for _, p := range ownParameters() {
		if got := mentions(&p, files); len(got) != 1 {
			t.Errorf("%s: in %v, want one file", p.Name, got)
		}
	}
	files["elsewhere.go"] = strings.ToLower("// DartPivots are eight.\n")
	if got := mentions(&reduce.Parameter{Name: "dart-pivots"}, files); len(got) != 2 {
		t.Errorf("a second file is not found: %v", got)
	}
}

// Ensure that the description of every parameter is complete, and that its default, where it
// is a value, is one that it takes.
func TestParameters(t *testing.T) {
	for _, p := range Parameters() {
		if !validName.MatchString(p.Name) || p.Default == "" || p.Help == "" || p.Range() == "" {
			t.Errorf("%+v: says too little", p)
		}
		if strings.Contains(p.Help, "--") || strings.Contains(p.Help, "\n") {
			t.Errorf("%s: help %q names a flag, or is more than a line", p.Name, p.Help)
		}
		for _, v := range p.Values {
			if _, err := p.Parse(v); err != nil {
				t.Errorf("%s: its own value %s: %v", p.Name, v, err)
			}
		}
		if p.Kind == reduce.Choice && p.Default != "none" && !slices.Contains(p.Values, p.Default) {
			t.Errorf("%s: default %s is none of %v", p.Name, p.Default, p.Values)
		}
	}
}

// Ensure that every method says what it does in a sentence that fits a line.
func TestSummaries(t *testing.T) {
	for _, m := range Methods() {
		if s := m.Summary; len(s) < 20 || len(s) > 90 || !strings.HasSuffix(s, ".") {
			t.Errorf("%s: summary %q, want a sentence of 20 to 90 letters", m.Name, s)
		}
	}
}

// Ensure that no method lists a need twice.
func TestNeedsOnce(t *testing.T) {
	for _, m := range Methods() {
		needs := m.Require(false)
		slices.Sort(needs)
		if once := slices.Compact(slices.Clone(needs)); len(once) != len(needs) {
			t.Errorf("%s: needs %v", m.Name, needs)
		}
	}
}
