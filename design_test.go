package restore_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Ensure that every package and every exported name that DESIGN.md mentions exists.
func TestDesign(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	mentioned := regexp.MustCompile("`([a-z][a-z0-9]*(?:/[a-z0-9-]+)*)" +
		"(?:\\.([A-Z]\\w*(?:\\.\\w+)?))?`")
	// the table of equations has a test of its own
	before, rest, _ := strings.Cut(string(text), "## The paper, equation by equation")
	_, after, _ := strings.Cut(rest, "\n## ")
	found := 0
	for _, m := range mentioned.FindAllStringSubmatch(before+after, -1) {
		dir := packageDir(m[1])
		switch {
		case dir == "":
			t.Errorf("%s: there is no such package", m[0])
		case m[2] != "" && !declares(t, dir, m[2]):
			t.Errorf("%s: %s declares no such name", m[0], dir)
		default:
			found++
		}
	}
	if found < 80 {
		t.Errorf("got %d packages and names, want more: is DESIGN.md read right?", found)
	}
}

// packageDir is the folder of a package that DESIGN.md names, "" if there is none.
func packageDir(name string) string {
	if name == "restore" {
		return "."
	}
	for _, dir := range []string{filepath.Join("internal", name), name} {
		if files, err := filepath.Glob(filepath.Join(dir, "*.go")); err == nil && len(files) > 0 {
			return dir
		}
	}
	return ""
}

// declares reports whether the package in dir declares an exported name, or a type's method or
// field.
func declares(t *testing.T, dir, name string) bool {
	t.Helper()
	return slices.ContainsFunc(declarations(t, dir), func(d ast.Decl) bool {
		return declared(d, name)
	})
}

// declarations returns the declarations of the package in dir, without its tests.
func declarations(t *testing.T, dir string) (out []ast.Decl) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f.Decls...)
	}
	return out
}

// declared reports whether d declares a name, or a type's method or field.
func declared(d ast.Decl, name string) bool {
	owner, member, ofType := strings.Cut(name, ".")
	if f, ok := d.(*ast.FuncDecl); ok {
		if f.Recv == nil {
			return !ofType && f.Name.Name == owner
		}
		return ofType && typeName(f.Recv.List[0].Type) == owner && f.Name.Name == member
	}
	has := false
	for _, spec := range d.(*ast.GenDecl).Specs {
		switch n := spec.(type) {
		case *ast.TypeSpec:
			has = has || n.Name.Name == owner && (!ofType || hasField(n.Type, member))
		case *ast.ValueSpec:
			for _, id := range n.Names {
				has = has || !ofType && id.Name == owner
			}
		}
	}
	return has
}

// typeName is the name of a receiver's type.
func typeName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// hasField reports whether a struct or an interface has a field or a method.
func hasField(x ast.Expr, name string) bool {
	var list *ast.FieldList
	switch x := x.(type) {
	case *ast.StructType:
		list = x.Fields
	case *ast.InterfaceType:
		list = x.Methods
	default:
		return false
	}
	for _, f := range list.List {
		for _, id := range f.Names {
			if id.Name == name {
				return true
			}
		}
	}
	return false
}

// Ensure that the front door stays small: go doc of it is read in five minutes.
func TestFewExportedNames(t *testing.T) {
	const most = 55
	var names []string
	for _, d := range declarations(t, ".") {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.IsExported() {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() {
					names = append(names, s.Name.Name)
				}
			}
		}
	}
	if len(names) > most || len(names) < most/2 {
		t.Errorf("package restore exports %d types and functions, want at most %d: %v", len(names),
			most, names)
	}
}
