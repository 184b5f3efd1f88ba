package restore_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const modulePath = "github.com/restore-vlm/restore"

// layers lists the packages of this module that each package may import. Every package may import
// the standard library and errs. "model/*" stands for every architecture, root for the package at
// the top. Test files of a package may also import the packages in forTests.
var layers = parseLayers(`
errs: internal/bytesize
reduce:
internal/kernel:
internal/files:
internal/calibrate: internal/files internal/kernel
internal/tensor:
internal/checkpoint: internal/tensor internal/files
internal/checkpoint/folder: internal/checkpoint internal/checkpoint/torch internal/files
internal/checkpoint/gguf: internal/checkpoint internal/kernel internal/tensor internal/tokenizer
internal/checkpoint/hf: internal/checkpoint internal/checkpoint/folder internal/checkpoint/quantised
    internal/files internal/tensor internal/tokenizer
internal/checkpoint/quantised: internal/checkpoint internal/tensor
internal/checkpoint/llava: internal/checkpoint internal/checkpoint/folder internal/checkpoint/hf
    internal/files
internal/checkpoint/torch: internal/checkpoint internal/tensor
internal/checkpoint/pack: internal/checkpoint internal/checkpoint/folder internal/kernel internal/tensor
internal/formats: internal/checkpoint internal/checkpoint/* internal/builtin internal/hub
    internal/model/families
internal/tokenizer: internal/files
internal/jinja: internal/pytext
internal/tokenizer/chat: internal/jinja
internal/imageproc:
internal/nn: internal/tensor internal/kernel
internal/spell:
internal/lineedit: internal/files
internal/methods: internal/tensor internal/kernel internal/nn internal/spell internal/files reduce
internal/model: internal/tensor internal/nn internal/methods reduce internal/checkpoint
    internal/imageproc
internal/model/*: internal/model internal/model/* internal/tensor internal/nn internal/methods
    internal/checkpoint internal/imageproc
internal/model/families: internal/model internal/model/* internal/checkpoint internal/imageproc
internal/machine:
internal/sample:
internal/engine: internal/bytesize internal/calibrate internal/machine internal/model
    internal/model/families internal/sample internal/kernel internal/tensor internal/nn internal/methods reduce internal/checkpoint
    internal/formats internal/imageproc internal/tokenizer internal/tokenizer/chat
internal/stats:
internal/version:
internal/bytesize:
internal/lab: eval internal/chart internal/seam internal/engine internal/machine internal/model internal/methods reduce
    internal/nn internal/kernel internal/tensor internal/imageproc
internal/scene:
internal/builtin:
internal/hub: internal/bytesize internal/files internal/machine internal/version internal/web
internal/web:
internal/address: internal/files internal/version internal/web
internal/hub/hubtest:
internal/overlay: internal/imageproc internal/methods internal/wrap reduce
internal/shape: internal/checkpoint internal/engine internal/imageproc internal/model
    internal/model/families
internal/seam: internal/engine internal/imageproc internal/methods
.: internal/diskcache internal/engine internal/formats internal/grammar internal/imageproc
    internal/methods internal/overlay internal/sample internal/seam internal/shape
    internal/tokenizer internal/version reduce
internal/api: . reduce internal/grammar internal/media internal/spell internal/wire
internal/client: . internal/api internal/web
internal/pytext:
internal/wrap:
internal/table: internal/wrap
internal/compare: . eval eval/bench internal/methods reduce internal/table internal/stats
internal/chart: internal/wrap
internal/paper: . internal/files internal/stats eval eval/bench internal/seam internal/engine internal/lab
    internal/methods internal/nn internal/imageproc internal/table internal/chart
internal/dataset: internal/files
eval: . internal/api internal/files internal/web
eval/bench: eval internal/dataset internal/pytext internal/files internal/scene internal/web
internal/cli: . internal/bytesize internal/checkpoint internal/files
    internal/fleet internal/fleet/natsserver internal/formats internal/hub internal/imageproc
    internal/kernel internal/spell internal/version internal/wrap reduce
internal/cli/clitest: internal/builtin internal/checkpoint internal/scene internal/tensor
internal/cli/programtest: internal/cli internal/cli/clitest internal/fleet/natsserver
cmd/restore: . internal/address internal/api internal/batch internal/builtin internal/bytesize
    internal/calibrate internal/checkpoint/hf internal/cli internal/client internal/files internal/fleet internal/hub
    internal/imageproc internal/jobs internal/kernel internal/lineedit internal/machine internal/media
    internal/model/families internal/openai internal/server internal/tensor internal/version reduce
cmd/restore-lab: . eval eval/bench internal/api internal/bytesize internal/calibrate internal/chart
    internal/checkpoint internal/checkpoint/hf internal/cli internal/compare internal/engine
    internal/fleet internal/formats internal/imageproc internal/kernel
    internal/lab internal/loadtest internal/media internal/methods internal/model
    internal/model/families internal/nn internal/paper internal/scene internal/seam internal/server
    internal/shape internal/table internal/stats internal/tensor internal/tokenizer internal/tokenizer/chat
    internal/version reduce
internal/batch: . internal/api internal/files internal/protocols internal/wire
internal/fleet: . internal/grammar internal/wire
internal/fleet/natsserver:
internal/fleet/fleettest:
internal/smalldisk:
internal/racetest:
internal/grammar:
internal/media: internal/version
internal/wire: internal/files
internal/diskcache: internal/files
internal/jobs: internal/api internal/batch internal/files internal/wire
internal/protocols: internal/anthropic internal/api internal/ollama internal/openai
internal/server: . internal/anthropic internal/api internal/jobs internal/media internal/ollama internal/openai
    internal/protocols internal/wire
internal/openai: . internal/api internal/wire
internal/ollama: . internal/api internal/wire
internal/anthropic: . internal/api internal/wire
internal/loadtest: internal/stats internal/web
`)

// parseLayers reads entries "package: packages that it may import"; indented lines continue an
// entry.
func parseLayers(table string) map[string][]string {
	out, pkg := map[string][]string{}, ""
	for line := range strings.Lines(table) {
		name, rest, starts := strings.Cut(line, ":")
		if starts {
			pkg, line = name, rest
			out[pkg] = nil
		}
		out[pkg] = append(out[pkg], strings.Fields(line)...)
	}
	delete(out, "")
	return out
}

// root is the name of the package at the top in layers.
const root = "."

// forTests are the packages that the tests of any package may also import: fixtures, and the
// embedded model with its public API.
var forTests = []string{
	"internal/golden", "internal/builtin", "internal/checkpoint", "internal/checkpoint/*",
	"internal/tokenizer", "internal/tokenizer/*", "internal/imageproc", "internal/tensor",
	"internal/kernel", "internal/scene", "internal/formats", "internal/lab",
	"internal/model/families", "internal/hub/hubtest",
	"internal/fleet/natsserver", "internal/fleet/fleettest", "internal/smalldisk",
	"internal/racetest", "internal/seam", "internal/engine", "internal/methods",
	"internal/cli/clitest", "internal/cli/programtest", "reduce", root}

// imports maps every package of this module to the module's packages that it imports, each with the
// file that imports it.
type imports map[string]map[string]string

// readImports parses the import clauses of every Go file below dir, without nested modules.
func readImports(dir string, tests bool) (imports, error) {
	all := imports{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir &&
			(ownModule(path) || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") ||
				strings.HasPrefix(d.Name(), "_")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go") ||
			strings.HasSuffix(path, "_test.go") != tests:
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
			if rest, ours := strings.CutPrefix(name, modulePath); ours &&
				(rest == "" || rest[0] == '/') {
				all[pkg][strings.TrimPrefix(rest, "/")] = path
			}
		}
		return nil
	})
	return all, err
}

// ownModule reports whether dir is the root of a nested module.
func ownModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// matches reports whether pkg is allowed by an entry of layers.
func matches(entry, pkg string) bool {
	group, star := strings.CutSuffix(entry, "/*")
	return entry == pkg || star && strings.HasPrefix(pkg, group+"/") &&
		pkg != "internal/model/families"
}

// entryOf is the entry of layers for a package; "" if there is none.
func entryOf(pkg string) string {
	if _, known := layers[pkg]; known {
		return pkg
	}
	if strings.HasPrefix(pkg, "internal/model/") {
		return "internal/model/*"
	}
	return ""
}

// unused lists, sorted, every permission that no import needs.
func unused(got imports) []string {
	needed := map[string]map[string]bool{}
	for pkg, used := range got {
		entry := entryOf(pkg)
		if needed[entry] == nil {
			needed[entry] = map[string]bool{}
		}
		for name := range used {
			for _, e := range layers[entry] {
				if matches(e, cmp.Or(name, root)) {
					needed[entry][e] = true
				}
			}
		}
	}
	var bad []string
	for pkg, allowed := range layers {
		for _, e := range allowed {
			if !needed[pkg][e] {
				bad = append(bad, fmt.Sprintf("%s: may import %s and does not", pkg, e))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// violations lists, sorted, every import that layers does not allow, and every package that layers
// does not list.
func violations(got imports, also ...string) []string {
	var bad []string
	for pkg, used := range got {
		entry := entryOf(pkg)
		allowed, known := layers[entry], entry != ""
		if pkg == "internal/golden" || strings.HasPrefix(pkg, "tools/") {
			continue // helpers of tests and fixtures: no package imports them
		}
		if !known {
			bad = append(bad, fmt.Sprintf("%s: is not in the table of layers", pkg))
			continue
		}
		for name, file := range used {
			if name == "" {
				name = root
			}
			ok := name == pkg || name == "errs" ||
				slices.ContainsFunc(append(slices.Clone(also), allowed...),
					func(e string) bool { return matches(e, name) })
			if !ok {
				bad = append(bad, fmt.Sprintf("%s: imports %s, want one of %v",
					file, name, allowed))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

// Ensure that every package imports only what the table of layers allows it, and that the table
// allows nothing else.
func TestLayers(t *testing.T) {
	got, err := readImports(".", false)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) < 5 {
		t.Fatalf("found only %d packages: %v", len(got), got)
	}
	for _, v := range append(violations(got), unused(got)...) {
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

// Ensure that guests stand on the front door: neither the engine nor the methods are theirs.
func TestGuests(t *testing.T) {
	got, err := readImports(".", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, guest := range []string{
		"cmd/restore", "internal/cli", "eval", "eval/bench", "internal/server", "internal/api", "internal/openai",
		"internal/ollama", "internal/batch", "internal/jobs", "internal/fleet", "internal/client",
		"internal/loadtest",
	} {
		if got[guest] == nil {
			t.Errorf("%s: no such package", guest)
		}
		for _, room := range []string{
			"internal/engine", "internal/methods", "internal/nn", "internal/model", "internal/seam",
			"internal/shape",
		} {
			if file := got[guest][room]; file != "" {
				t.Errorf("%s: imports %s, want package restore", file, room)
			}
		}
	}
}

// Ensure that code that answers requests does not use the engine's hooks and looks: they are for
// measurements.
func TestHooksAreForMeasurements(t *testing.T) {
	measuring := []string{"internal/engine", "internal/lab", "internal/paper",
		"cmd/restore-lab", "internal/shape"}
	seams := []string{"Hooks", "Look", "Prompt", "OpenWith"}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") ||
			strings.HasSuffix(path, "_test.go") ||
			slices.Contains(measuring, filepath.ToSlash(filepath.Dir(path))) {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok || !slices.Contains(seams, s.Sel.Name) {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && (x.Name == "engine" || s.Sel.Name == "Look") {
				t.Errorf("%s: %s.%s is for measurements", set.Position(n.Pos()), x.Name, s.Sel.Name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Ensure that computing, reading files and measuring work for any model: no identifier and no text
// names an architecture. Methods keep the names that their authors gave them, and llama.cpp's files
// name the tokenizers of models.
func TestNoArchitectureNamed(t *testing.T) {
	named := regexp.MustCompile(`(?i)llava|qwen|vicuna|mistral|internv`)
	for _, pattern := range []string{"internal/kernel/*", "internal/methods/*", "internal/engine/*",
		"internal/imageproc/*", "internal/checkpoint/*", "internal/checkpoint/folder/*",
		"internal/checkpoint/gguf/*", "internal/checkpoint/hf/*", "internal/checkpoint/quantised/*",
		"internal/checkpoint/pack/*", "internal/checkpoint/torch/*", "internal/model/*",
		"internal/model/textonly/*", "internal/api/*", "internal/shape/*",
		"cmd/restore-lab/eval_model"} {
		files, err := filepath.Glob(pattern + ".go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") ||
				path == filepath.FromSlash("internal/checkpoint/gguf/vocabulary.go") {
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

// Ensure that the classes of models are known to their families and to the readers of formats that
// name their own, and to nothing else: a new family is a package and a line of the table.
func TestClassesOfModels(t *testing.T) {
	known, found := []string{"internal/model/", "internal/checkpoint/llava/"}, 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		path = filepath.ToSlash(path)
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") ||
			strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "ForConditionalGeneration") {
			return err
		}
		found++
		if !slices.ContainsFunc(known, func(dir string) bool {
			return strings.HasPrefix(path, dir)
		}) {
			t.Errorf("%s names a class of models, want it in %v alone", path, known)
		}
		return nil
	})
	if err != nil || found == 0 {
		t.Errorf("%d files, %v", found, err)
	}
}

// Ensure that the check reports each kind of violation.
func TestLayersRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		pkg, uses string
		want      int
	}{
		"upwards":                    {"internal/kernel", "internal/tensor", 1},
		"a model below its user":     {"internal/nn", "internal/model", 1},
		"an architecture in reduce":  {"internal/methods", "internal/model/clip", 1},
		"the table in a model":       {"internal/model/llama", "internal/model/families", 1},
		"the root from below":        {"internal/engine", "", 1},
		"a package nobody knows":     {"helpers", "internal/kernel", 1},
		"a prefix is not a package":  {"internal/sample", "internal/kernelx", 1},
		"an architecture of another": {"internal/model/llava", "internal/model/clip", 0},
		"a measurement in restore":   {"cmd/restore", "internal/lab", 1},
	} {
		got := violations(imports{c.pkg: {c.uses: "file.go"}})
		if len(got) != c.want {
			t.Errorf("%s: got %q, want %d violations", name, got, c.want)
		}
	}
}

// Ensure that a permission that nothing uses is reported, also one of a group.
func TestLayersUnused(t *testing.T) {
	got, err := readImports(".", false)
	if err != nil {
		t.Fatal(err)
	}
	delete(got["internal/nn"], "internal/tensor")
	for pkg, used := range got {
		if entryOf(pkg) == "internal/model/*" {
			delete(used, "internal/nn")
		}
	}
	want := []string{
		"internal/model/*: may import internal/nn and does not",
		"internal/nn: may import internal/tensor and does not",
	}
	if bad := unused(got); !slices.Equal(bad, want) {
		t.Errorf("got %q, want %q", bad, want)
	}
}
