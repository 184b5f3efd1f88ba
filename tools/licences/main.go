// Command licences writes the licences of all modules that the programs of a release contain. It
// fails if one is missing, unknown or not allowed:
//
//	go run ./tools/licences >THIRD_PARTY_LICENSES
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// platforms are those of a release: programs of one may contain modules that others do not.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/arm64", "windows/amd64"}

// allowed are the licences that a program under Apache-2.0 may contain.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// module is a module with the texts that its licence wants copied.
type module struct {
	Path, Version, Dir string

	licences []string // in the notation of SPDX
	texts    []string // licences and notices
}

func main() {
	modules, err := contained("./cmd/...")
	if err == nil {
		err = write(os.Stdout, modules)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// contained returns the modules that the packages and what they import belong to, without the main
// module, and Go's own as "std". Tests of packages do not count.
func contained(packages string) ([]*module, error) {
	root, err := goCommand(nil, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	all := map[string]*module{
		"std": {Path: "std", Version: runtime.Version(), Dir: strings.TrimSpace(string(root))},
	}
	for _, platform := range platforms {
		system, processor, _ := strings.Cut(platform, "/")
		out, err := goCommand([]string{"GOOS=" + system, "GOARCH=" + processor, "CGO_ENABLED=0"},
			"list", "-deps", "-json=Module", packages)
		if err != nil {
			return nil, err
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct {
				Module *struct {
					Path, Version, Dir string
					Main               bool
				}
			}
			if err := d.Decode(&p); err == io.EOF {
				break
			} else if err != nil {
				return nil, fmt.Errorf("licences: go list: %w", err)
			}
			if m := p.Module; m != nil && !m.Main {
				all[m.Path] = &module{Path: m.Path, Version: m.Version, Dir: m.Dir}
			}
		}
	}
	var modules []*module
	for _, path := range slices.Sorted(maps.Keys(all)) {
		if err := all[path].read(os.DirFS(all[path].Dir)); err != nil {
			return nil, err
		}
		modules = append(modules, all[path])
	}
	return modules, nil
}

func goCommand(env []string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("licences: go %s: %w", args[0], err)
	}
	return out, nil
}

// read finds the licences in the module's folder.
func (m *module) read(folder fs.FS) error {
	entries, err := fs.ReadDir(folder, ".")
	if err != nil {
		return fmt.Errorf("licences: %s: %w", m.Path, err)
	}
	for _, e := range entries {
		name := strings.ToUpper(strings.TrimSuffix(e.Name(), filepath.Ext(e.Name())))
		licence := strings.HasPrefix(name, "LICEN") || name == "COPYING"
		if e.IsDir() || filepath.Ext(e.Name()) == ".go" || !licence && name != "NOTICE" {
			continue
		}
		text, err := fs.ReadFile(folder, e.Name())
		if err != nil {
			return fmt.Errorf("licences: %s: %w", m.Path, err)
		}
		m.texts = append(m.texts, strings.TrimSpace(string(text)))
		if !licence {
			continue
		}
		found := recognize(string(text))
		if len(found) == 0 {
			return fmt.Errorf("licences: %s: %s: unknown licence, want one of %s", m.Path, e.Name(),
				strings.Join(allowed, ", "))
		}
		for _, l := range found {
			if !slices.Contains(allowed, l) {
				return fmt.Errorf("licences: %s: %s: got %s, want one of %s", m.Path, e.Name(), l,
					strings.Join(allowed, ", "))
			}
		}
		m.licences = append(m.licences, found...)
	}
	if len(m.licences) == 0 {
		return fmt.Errorf("licences: %s: no file of a licence in %s", m.Path, m.Dir)
	}
	slices.Sort(m.licences)
	m.licences = slices.Compact(m.licences)
	return nil
}

// marks are words that only texts of a licence have, with blanks for all white space.
var marks = []struct {
	licence string
	words   *regexp.Regexp
}{
	{"AGPL-3.0", regexp.MustCompile(`GNU AFFERO GENERAL PUBLIC LICENSE Version 3`)},
	{"LGPL", regexp.MustCompile(`GNU L(ESSER|IBRARY) GENERAL PUBLIC LICENSE Version`)},
	{"GPL", regexp.MustCompile(`GNU GENERAL PUBLIC LICENSE Version`)},
	{"MPL-2.0", regexp.MustCompile(`Mozilla Public License,? [Vv]ersion 2\.0`)},
	{"Apache-2.0", regexp.MustCompile(`Apache License,? Version 2\.0`)},
	{"MIT", regexp.MustCompile(`Permission is hereby granted, free of charge, to any person`)},
	{"ISC", regexp.MustCompile(`Permission to use, copy, modify, and(/or)? distribute this software`)},
	{"BSD-3-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms.*` +
		`Neither the name`)},
	{"BSD-2-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms`)},
}

// recognize returns the licences that a text contains.
func recognize(text string) (found []string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, m := range marks {
		if m.licence == "BSD-2-Clause" && slices.Contains(found, "BSD-3-Clause") {
			continue
		}
		if m.words.MatchString(text) {
			found = append(found, m.licence)
		}
	}
	return found
}

// write writes a list of the modules, then their texts.
func write(w io.Writer, modules []*module) error {
	var b strings.Builder
	b.WriteString("The programs contain these modules:\n\n")
	for _, m := range modules {
		fmt.Fprintf(&b, "%s %s: %s\n", m.Path, m.Version, strings.Join(m.licences, ", "))
	}
	for _, m := range modules {
		fmt.Fprintf(&b, "\n%s\n%s %s\n\n%s\n", strings.Repeat("=", 80), m.Path, m.Version,
			strings.Join(m.texts, "\n\n"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}
