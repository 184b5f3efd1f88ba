package methods

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Ensure that DESIGN.md's table of equations names functions that there are, and lines of code
// that are in the files which it names.
func TestEquationTable(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "DESIGN.md"))
	if err != nil {
		t.Fatal(err)
	}
	quoted, rows := regexp.MustCompile("`([^`]+)`"), 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "| ") || len(cells) != 6 ||
			!strings.Contains(cells[3], ".go`") {
			continue
		}
		rows++
		function, file := quoted.FindStringSubmatch(cells[2])[1],
			quoted.FindStringSubmatch(cells[3])[1]
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil,
			parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == function {
				found = true
			}
		}
		if !found {
			t.Errorf("%s: no function %s in %s", strings.TrimSpace(cells[1]), function, file)
		}
		named := quoted.FindAllStringSubmatch(cells[4], -1)
		code, where := named[len(named)-1][1], named[len(named)-2][1]
		source, err := os.ReadFile(filepath.Join(root, where))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(source), code) {
			t.Errorf("%s: %s lacks %q", strings.TrimSpace(cells[1]), where, code)
		}
	}
	if rows < 11 {
		t.Errorf("%d rows, want one an equation", rows)
	}
}
