package main

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// Ensure that every module of the programs has a licence that is allowed, and that the text names
// each of them.
func TestModules(t *testing.T) {
	t.Chdir("../..")
	modules, err := contained("./cmd/...")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := write(&b, modules); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nstd go1.", "\ngithub.com/spf13/cobra v", ": Apache-2.0\n", "\ngolang.org/x/sys v",
		"Google LLC nor the names of its",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("want %q in the text", want)
		}
	}
	if strings.Contains(b.String(), "go-cmp") {
		t.Error("got github.com/google/go-cmp, which only tests import")
	}
}

// Ensure that modules without a licence, with an unknown one or with one that is not allowed are
// refused by name.
func TestRefused(t *testing.T) {
	apache, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, text, want string }{
		"none":    {"README.md", "Apache License, Version 2.0", "no file of a licence"},
		"unknown": {"LICENSE", "Ask me.", "unknown licence"},
		"copyleft": {"COPYING", "GNU GENERAL PUBLIC LICENSE\n   Version 3, 29 June 2007",
			"got GPL, want one of"},
		"two, one of them not allowed": {"LICENSE",
			string(apache) + "\nMozilla Public License Version 2.0", "got MPL-2.0, want one of"},
		"allowed": {"LICENSE.txt", string(apache), ""},
	} {
		m := &module{Path: "example.com/m"}
		err := m.read(fstest.MapFS{c.file: {Data: []byte(c.text)}})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), m.Path)):
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
