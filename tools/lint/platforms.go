//go:build ignore

// Platforms checks the types of the program and its tests for other platforms and build tags, and
// the declarations of their assembly. It reads all packages from source, because compiling them
// for each platform takes a minute. Each argument is GOOS/GOARCH, with a comma and tags if any:
//
//	go run -modfile=tools/lint/go.mod tools/lint/platforms.go linux/386 linux/amd64,purego
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/passes/asmdecl"
	"golang.org/x/tools/go/packages"
)

var root, _ = os.Getwd()

func main() {
	bad := false
	for _, platform := range os.Args[1:] {
		fmt.Println(platform)
		if err := check(platform); err != nil {
			fmt.Fprintf(os.Stderr, "platforms: %s: %v\n", platform, err)
			bad = true
		}
	}
	if bad {
		os.Exit(1)
	}
}

func check(platform string) error {
	platform, tags, _ := strings.Cut(platform, ",")
	system, arch, ok := strings.Cut(platform, "/")
	if !ok {
		return fmt.Errorf("want GOOS/GOARCH[,TAG…]")
	}
	list, err := packages.Load(&packages.Config{
		Mode:       packages.LoadAllSyntax,
		Env:        append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0"),
		BuildFlags: []string{"-tags=" + tags},
		Tests:      true,
		ParseFile:  parse,
	}, "./...")
	if err != nil {
		return err
	}
	found := map[string]bool{} // a package and its variant with tests have the same errors
	for _, p := range list {
		if strings.HasSuffix(p.ID, ".test") {
			continue // generated
		}
		for _, e := range p.Errors {
			found[e.Error()] = true
		}
	}
	graph, err := checker.Analyze([]*analysis.Analyzer{asmdecl.Analyzer}, list, nil)
	if err != nil {
		return err
	}
	for action := range graph.All() {
		for _, d := range action.Diagnostics {
			found[fmt.Sprintf("%v: %s", action.Package.Fset.Position(d.Pos), d.Message)] = true
		}
	}
	if len(found) > 0 {
		return errors.New(strings.Join(slices.Sorted(maps.Keys(found)), "\n"))
	}
	return nil
}

// parse leaves out the bodies of functions of other modules, which take most of the time.
func parse(set *token.FileSet, name string, src []byte) (*ast.File, error) {
	f, err := parser.ParseFile(set, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if f != nil && !strings.HasPrefix(name, root) {
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Type.TypeParams == nil {
				d.Body = nil
			}
		}
	}
	return f, err
}
