//go:build ignore

// Columns lists the lines of Go files that are longer than 100 columns, and then exits with status
// 1. A tab counts as 4 columns. It skips generated files, raw strings, lines with a URL and, in
// tests, the rows of tables: lines that begin with a brace or a literal and end with a comma. It
// reads the names of the files from its input:
//
//	git ls-files '*.go' | go run tools/columns/main.go
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

const limit = 100

var (
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	row       = regexp.MustCompile("^\\s*[-{\"'`0-9].*,$")
)

func main() {
	long := 0
	paths := bufio.NewScanner(os.Stdin)
	for paths.Scan() {
		path := paths.Text()
		src, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, "columns:", err)
			os.Exit(1)
		}
		if generated.Match(src) {
			continue
		}
		for i, line := range strings.Split(string(withoutRaw(src)), "\n") {
			width := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			test := strings.HasSuffix(path, "_test.go")
			if width > limit && !strings.Contains(line, "://") && !(test && row.MatchString(line)) {
				fmt.Printf("%s:%d: %d columns, want at most %d\n", path, i+1, width, limit)
				long++
			}
		}
	}
	if long > 0 {
		os.Exit(1)
	}
}

// withoutRaw returns src with only the newlines of its raw strings.
func withoutRaw(src []byte) []byte {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	var out []byte
	at := 0
	for {
		pos, kind, text := s.Scan()
		if kind == token.EOF {
			return append(out, src[at:]...)
		}
		if kind == token.STRING && text[0] == '`' {
			from := file.Offset(pos)
			out = append(out, src[at:from]...)
			out = append(out, '`')
			out = append(out, bytes.Repeat([]byte("\n"), strings.Count(text, "\n"))...)
			out = append(out, '`')
			at = from + len(text)
		}
	}
}
