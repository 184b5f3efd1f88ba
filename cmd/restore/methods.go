package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/restore-vlm/restore/reduce"
	"github.com/spf13/cobra"
)

func newMethods(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "methods [NAME]",
		Short: "List the reduction methods, or describe one",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%s: got %d arguments, want at most one method", path(cmd), len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listMethods(a.out)
			}
			for _, m := range reduce.Methods() {
				if m.Name == args[0] {
					return describeMethod(a.out, &m)
				}
			}
			return usagef("methods: unknown method, got %q, want %s", args[0], strings.Join(methodNames(), "|"))
		},
	}
}

func listMethods(w io.Writer) error {
	rows := [][]string{{"NAME", "WHAT", "WHERE", "NEEDS"}}
	for _, m := range reduce.Methods() {
		rows = append(rows, []string{m.Name, m.Title, m.Site.String(), needs(&m, true)})
	}
	return columns(w, rows)
}

// needs lists what a method reads beside the features.
func needs(m *reduce.Method, restore bool) string {
	var s []string
	for _, n := range m.Require(restore) {
		s = append(s, string(n))
	}
	if len(s) == 0 {
		return "-"
	}
	return strings.Join(s, ", ")
}

func describeMethod(w io.Writer, m *reduce.Method) error {
	rows := [][]string{{m.Name, m.Title}, {"where", m.Site.String()}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	add("paper", m.Paper)
	add("needs", needs(m, true))
	if plain := needs(m, false); plain != needs(m, true) {
		add("needs without RESTORE", plain)
	}
	add("minimum", m.Minimum)
	for _, p := range m.Params {
		add("--"+p.Name, fmt.Sprintf("%s (default %s)", p.Help, p.Default))
	}
	return columns(w, rows)
}
