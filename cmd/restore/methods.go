package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/reduce"
)

func newMethods(a *cli.App) *cobra.Command {
	var asJSON, parameters bool
	cmd := &cobra.Command{
		Use:   "methods [NAME]",
		Short: "List the reduction methods, or describe one",
		Long: `List the reduction methods: where each acts, its paper, whether it reads the question,
so that the kept tokens serve this question alone, and the cost of its choice in multiply-adds (N
tokens of width C before, n after). With a name: what it reads in addition to features, its
parameters, what it computes, where it departs from the paper and the authors' code, and a note on
licences. 'restore methods restore' describes RESTORE itself.
--parameters prints every parameter of reductions instead, as a table in Markdown: flag, environment
variable, JSON field, default, values, methods.`,
		Example: `  restore methods
  restore methods holov
  restore methods restore --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usagef("%s: got %d arguments, want at most one method", cli.Path(cmd),
					len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			all := append(restore.Methods(), restore.OnTop())
			if err := cli.NoUse(cmd.Flags(), asJSON || len(args) > 0,
				"has no use with --json or a method, got %v", "parameters"); err != nil {
				return err
			}
			if parameters {
				return writeParameters(a.Out)
			}
			if len(args) == 0 {
				if asJSON {
					return cli.WriteJSON(a.Out, methodsJSON(all))
				}
				return listMethods(a.Out, all)
			}
			for _, m := range all {
				if m.Name != args[0] {
					continue
				}
				if asJSON {
					return cli.WriteJSON(a.Out, newMethodJSON(&m))
				}
				return describeMethod(a.Out, &m)
			}
			names := append(cli.MethodNames(), restore.OnTop().Name)
			return cli.Usagef("methods: unknown method, got %q, want %s%s", args[0],
				strings.Join(names, "|"), cli.DidYouMean(args[0], names))
		},
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, begun string) (
		[]string, cobra.ShellCompDirective,
	) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := append(cli.MethodNames(), restore.OnTop().Name)
		return cli.StartingWith(begun, names), cobra.ShellCompDirectiveNoFileComp
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&parameters, "parameters", false, "print the table of all parameters")
	return cmd
}

// methodJSON is a method in the output of --json. Each string of prose is one paragraph.
type methodJSON struct {
	Name       string      `json:"name"`
	Title      string      `json:"title"`
	Site       string      `json:"site"`
	Paper      string      `json:"paper,omitempty"`
	Text       bool        `json:"needs_text"`
	Reusable   bool        `json:"reusable"`
	Cost       string      `json:"cost"`
	Needs      []string    `json:"needs"`
	NeedsPlain []string    `json:"needs_without_restore"`
	Minimum    string      `json:"minimum,omitempty"`
	Params     []paramJSON `json:"parameters"`
	Equations  []string    `json:"equations"`
	Departures []string    `json:"departures"`
	Licence    string      `json:"licence"`
}

// paramJSON is a parameter in the output of --json.
type paramJSON struct {
	Name    string   `json:"name"`
	Field   string   `json:"field,omitempty"` // JSON field; a file has none
	Default string   `json:"default"`
	Range   string   `json:"range"`
	Values  []string `json:"values,omitempty"`
	Help    string   `json:"help"`
}

func newParamJSON(p *reduce.Parameter) paramJSON {
	j := paramJSON{
		Name: p.Name, Default: p.Default, Range: p.Range(), Values: p.Values, Help: p.Help,
	}
	if p.Kind != reduce.File {
		j.Field = p.JSONName()
	}
	return j
}

func newMethodJSON(m *reduce.Method) methodJSON {
	j := methodJSON{
		Name: m.Name, Title: m.Title, Site: m.Site.String(), Paper: m.Paper, Text: m.Text,
		Reusable: !m.Text, Cost: m.Cost,
		Needs: needs(m, true), NeedsPlain: needs(m, false), Minimum: m.Minimum,
		Params:    []paramJSON{},
		Equations: paragraphs(m.Notes.Equations), Departures: paragraphs(m.Notes.Departures),
		Licence: m.Licence(),
	}
	for _, p := range m.Parameters {
		j.Params = append(j.Params, newParamJSON(&p))
	}
	return j
}

func methodsJSON(all []reduce.Method) []methodJSON {
	out := make([]methodJSON, len(all))
	for i := range all {
		out[i] = newMethodJSON(&all[i])
	}
	return out
}

// writeParameters writes the table of all parameters, in Markdown.
func writeParameters(w io.Writer) error {
	fmt.Fprintln(w, "| flag | variable | field | default | takes | meaning | methods |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|")
	for _, p := range restore.Parameters() {
		field := "`" + p.JSONName() + "`"
		if p.Kind == reduce.File {
			field = "–"
		}
		of := strings.Join(p.Methods, ", ")
		if of == "" {
			of = "all"
		}
		cells := []string{
			"`--" + p.Name + "`", "`" + cli.EnvName(&pflag.Flag{Name: p.Name}) + "`", field,
			p.Default,
			strings.ReplaceAll(p.Range(), "|", "\\|"), p.Help, of,
		}
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")); err != nil {
			return err
		}
	}
	return nil
}

// listMethods writes a table that fits in a terminal; describeMethod writes the rest.
func listMethods(w io.Writer, all []reduce.Method) error {
	rows := [][]string{{"NAME", "WHERE", "PAPER", "TEXT", "COST"}}
	for _, m := range all {
		text := "no"
		if m.Text {
			text = "yes"
		}
		paper := "-"
		if m.Paper != "" {
			paper = m.Paper[strings.LastIndexByte(m.Paper, '/')+1:]
		}
		rows = append(rows, []string{
			m.Name, strings.TrimSuffix(m.Site.String(), " or projector"), paper, text,
			shortCost(m.Cost),
		})
	}
	if err := cli.Table(w, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w,
		"\n'restore methods NAME' says what a method computes, and lists its flags.")
	return err
}

// shortCost is the formula without its explanation.
func shortCost(s string) string {
	s, _, _ = strings.Cut(s, " (")
	return s
}

func dash(s []string) string {
	if len(s) == 0 {
		return "-"
	}
	return strings.Join(s, ", ")
}

// needs lists what a method reads in addition to the features.
func needs(m *reduce.Method, restore bool) []string {
	s := []string{}
	for _, n := range m.Require(restore) {
		s = append(s, string(n))
	}
	return s
}

func describeMethod(w io.Writer, m *reduce.Method) error {
	rows := [][]string{{m.Name, m.Title}, {"where", m.Site.String()}}
	add := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, value})
		}
	}
	add("paper", m.Paper)
	switch {
	case m.Text && m.Site == reduce.InsideDecoder:
		add("text", "reads the question: what it keeps was chosen for the first question of "+
			"a conversation")
	case m.Text:
		add("text", "reads the question: it chooses again for every question about the picture, "+
			"and each reads the picture's rows again")
	default:
		add("text", "does not read the question: what it keeps serves every question about "+
			"the picture")
	}
	with, plain := dash(needs(m, true)), dash(needs(m, false))
	add("needs", with)
	if plain != with {
		add("needs without RESTORE", plain)
	}
	add("cost", m.Cost)
	add("minimum", m.Minimum)
	if err := cli.Table(w, rows); err != nil {
		return err
	}
	describeParameters(w, "Parameters", m.Parameters)
	if m.Name != "none" {
		describeParameters(w, "Parameters of every method", sharedParameters())
	}
	for _, s := range []struct {
		heading string
		text    []string
	}{
		{"What it computes", paragraphs(m.Notes.Equations)},
		{"Departures from the paper and the authors' code", paragraphs(m.Notes.Departures)},
		{"Licence", paragraphs(m.Licence())},
	} {
		if len(s.text) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", s.heading)
		for i, p := range s.text {
			if i > 0 {
				fmt.Fprintln(w)
			}
			cli.Wrap(w, p, cli.HelpWidth, "  ")
		}
	}
	return nil
}

// sharedParameters are the parameters of every method that help texts do not show.
func sharedParameters() []reduce.Parameter {
	return slices.DeleteFunc(restore.Parameters(), func(p reduce.Parameter) bool {
		return len(p.Methods) > 0 || slices.Contains(cli.ShownParameters, p.Name)
	})
}

// describeParameters lists parameters with their defaults, values, variables and JSON fields.
func describeParameters(w io.Writer, title string, all []reduce.Parameter) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s (default, values, environment variable, JSON field)\n", title)
	for _, p := range all {
		fmt.Fprintf(w, "  --%s\n", p.Name)
		text := fmt.Sprintf("%s (default %s, %s, env %s", p.Help, p.Default, p.Range(),
			cli.EnvName(&pflag.Flag{Name: p.Name}))
		if p.Kind != reduce.File {
			text += ", JSON " + p.JSONName()
		}
		cli.Wrap(w, text+")", cli.HelpWidth, "        ")
	}
}

// paragraphs splits prose at empty lines and joins the lines of each paragraph.
func paragraphs(s string) []string {
	out := []string{}
	for p := range strings.SplitSeq(s, "\n\n") {
		if p = strings.Join(strings.Fields(p), " "); p != "" {
			out = append(out, p)
		}
	}
	return out
}
