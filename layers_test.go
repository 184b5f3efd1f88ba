package restore_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/restore-vlm/restore"

// anything allows every package of ours.
const anything = "*"

// layers says which of our packages each package may import; the standard library is free to all. "model/*" stands for every
// architecture, root for the package at the top. Test files of the package itself may also import what tests needs.
var layers = map[string][]string{
	"kernel":         {},
	"tensor":         {"kernel"},
	"checkpoint":     {"tensor"},
	"tokenizer":      {"tensor"},
	"tokenizer/chat": {"tensor", "tokenizer"},
	"imageproc":      {"tensor"},
	"nn":             {"tensor", "kernel"},
	"reduce":         {"tensor", "kernel", "nn"},
	"model":          {"tensor", "nn", "reduce", "checkpoint", "imageproc", "tokenizer"},
	"model/*":        {"model", "model/*", "tensor", "nn", "reduce", "checkpoint", "imageproc", "tokenizer"},
	"model/all":      {"model", "model/*", "checkpoint"},
	"sample":         {"kernel"},
	"engine": {"model", "model/*", "model/all", "sample", "kernel", "tensor", "nn", "reduce", "checkpoint", "imageproc", "tokenizer",
		"tokenizer/chat"},
	"scene":              {},
	"builtin":            {},
	"overlay":            {"imageproc", "reduce"},
	root:                 {"engine", "model/all", "reduce", "builtin", "checkpoint"},
	"eval":               {"engine", "reduce", "scene", root, "imageproc", "sample"},
	"cmd/restore":        {anything},
	"examples/ownmethod": {anything},
}

// root is the name of the package at the top in layers.
const root = "."

// forTests are the packages that any package's tests may import besides: fixtures, and the embedded model with its public face.
var forTests = []string{"internal/*", "builtin", "checkpoint", "imageproc", "tensor", "kernel", "scene", root}

// imports maps every package of ours to what it imports of ours, with the file that does so.
type imports map[string]map[string]string

// readImports parses the import clauses of every Go file below dir, of the module itself only.
func readImports(dir string, tests bool) (imports, error) {
	all := imports{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") != tests:
			return nil
		}
		rel, err := filepath.Rel(dir, filepath.Dir(path))
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := filepath.ToSlash(rel)
		if all[pkg] == nil {
			all[pkg] = map[string]string{}
		}
		for _, spec := range f.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if rest, ours := strings.CutPrefix(name, modulePath); ours && (rest == "" || rest[0] == '/') {
				all[pkg][strings.TrimPrefix(rest, "/")] = path
			}
		}
		return nil
	})
	return all, err
}

// matches reports whether pkg is allowed by an entry of layers.
func matches(entry, pkg string) bool {
	group, star := strings.CutSuffix(entry, "/*")
	return entry == anything || entry == pkg || star && strings.HasPrefix(pkg, group+"/") && pkg != "model/all"
}

// violations lists, sorted, every import that layers does not allow, and every package that it does not know.
func violations(got imports, also ...string) []string {
	var bad []string
	for pkg, used := range got {
		allowed, known := layers[pkg]
		if !known && strings.HasPrefix(pkg, "model/") {
			allowed, known = layers["model/*"]
		}
		if strings.HasPrefix(pkg, "internal/") || strings.HasPrefix(pkg, "tools/") {
			continue // helpers of tests and of fixtures: nothing of ours imports them
		}
		if !known {
			bad = append(bad, fmt.Sprintf("%s: is not in the table of layers", pkg))
			continue
		}
		for name, file := range used {
			if name == "" {
				name = root
			}
			ok := name == pkg || slices.ContainsFunc(append(slices.Clone(also), allowed...), func(e string) bool { return matches(e, name) })
			if !ok {
				bad = append(bad, fmt.Sprintf("%s: imports %s, want one of %v", file, name, allowed))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// Ensure that every package imports only what the table of layers allows it.
func TestLayers(t *testing.T) {
	got, err := readImports(".", false)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) < 5 {
		t.Fatalf("found only %d packages: %v", len(got), got)
	}
	for _, v := range violations(got) {
		t.Error(v)
	}
	got, err = readImports(".", true)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations(got, forTests...) {
		t.Error(v)
	}
}

// Ensure that the code of kernel, reduce and engine is for any model: no name and no text in it is that of an architecture. Methods keep
// the names that their authors gave them.
func TestNoArchitectureNamed(t *testing.T) {
	named := regexp.MustCompile(`(?i)llava|qwen|vicuna|mistral`)
	for _, dir := range []string{"kernel", "reduce", "engine"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				text := ""
				switch n := n.(type) {
				case *ast.Ident:
					text = n.Name
				case *ast.BasicLit:
					text = strings.ReplaceAll(n.Value, "LLaVA-PruMerge", "")
				}
				if named.MatchString(text) {
					t.Errorf("%s: %s names an architecture", set.Position(n.Pos()), text)
				}
				return true
			})
		}
	}
}

// Ensure that the check refuses what it is there to refuse.
func TestLayersRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		pkg, uses string
		want      int
	}{
		"upwards":                    {"kernel", "tensor", 1},
		"a model below its user":     {"nn", "model", 1},
		"an architecture in reduce":  {"reduce", "model/clip", 1},
		"the table in a model":       {"model/llama", "model/all", 1},
		"the root from below":        {"engine", "", 1},
		"a package nobody knows":     {"helpers", "kernel", 1},
		"a prefix is not a package":  {"sample", "kernelx", 1},
		"an architecture of another": {"model/llava", "model/clip", 0},
		"the command uses anything":  {"cmd/restore", "engine", 0},
	} {
		got := violations(imports{c.pkg: {c.uses: "file.go"}})
		if len(got) != c.want {
			t.Errorf("%s: got %q, want %d violations", name, got, c.want)
		}
	}
}
