package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/spell"
)

// Patterns of errors about an unknown word.
var (
	unknownFlag   = regexp.MustCompile(`^unknown flag: --([^ =]+)`)
	unknownChoice = regexp.MustCompile(
		`^(?:--)?([a-z][a-z0-9-]*|RESTORE_[A-Z0-9_]+)[^"]*: (?:unknown[^"]*, )?got "([^"]*)"[^"]*, want (?:one of )?(.*)$`,
	)
	unknownWord = regexp.MustCompile(`unknown(?: command| method)?, got "([^"]*)", want (.*)$`)
)

// suggestion is ", did you mean X?" for an error line about a misspelt command, flag or value, and
// empty for others.
func suggestion(fs *pflag.FlagSet, line string) string {
	var got, meant string
	if m := unknownFlag.FindStringSubmatch(line); m != nil {
		got, meant = m[1], closest(m[1], flagNames(fs))
		if meant != "" {
			meant = "--" + meant
		}
	} else if m := unknownWord.FindStringSubmatch(line); m != nil {
		got, meant = m[1], closest(m[1], words(m[2]))
	} else if m := unknownChoice.FindStringSubmatch(line); m != nil {
		got, meant = m[2], closest(m[2], words(m[3]))
	}
	if meant == "" || meant == got {
		return ""
	}
	return ", did you mean " + meant + "?"
}

// flagNames are the names of a command's flags.
func flagNames(fs *pflag.FlagSet) (names []string) {
	fs.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

// words splits a list of choices in an error: a|b, or a, b or c.
func words(list string) []string {
	return strings.FieldsFunc(strings.ReplaceAll(list, " or ", ","), func(r rune) bool {
		return strings.ContainsRune("|, ;()", r)
	})
}

// closest returns the name that got is probably a misspelling of; "" if none is near.
func closest(got string, names []string) string {
	got = strings.ToLower(got)
	best, at := max(1, len(got)/3)+1, ""
	for _, name := range names {
		if d := spell.Distance(got, strings.ToLower(name), best); d < best {
			best, at = d, name
		}
	}
	if at == "" && len(got) > 2 { // a prefix of only one name, or an extension of one
		begins := func(name string) bool {
			return strings.HasPrefix(name, got) || len(name) > 3 && strings.HasPrefix(got, name)
		}
		if i := slices.IndexFunc(names, begins); i >= 0 &&
			!slices.ContainsFunc(names[i+1:], begins) {
			at = names[i]
		}
	}
	return at
}
