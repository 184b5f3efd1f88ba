package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/version"
)

// newMan returns the hidden command that writes the manual pages which releases contain.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write a manual page for every command",
		Hidden: true,
		Args:   OneArg("got %d arguments, want the folder for the pages"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			return writeMan(args[0], cmd.Root())
		},
	}
}

// writeMan writes the manual pages of c and its subcommands to dir, as restore-run.1.
func writeMan(dir string, c *cobra.Command) error {
	var text strings.Builder
	manPage(&text, c)
	file := filepath.Join(dir, manName(c)+".1")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		return err
	}
	for _, s := range c.Commands() {
		if !s.IsAvailableCommand() {
			continue
		}
		if err := writeMan(dir, s); err != nil {
			return err
		}
	}
	return nil
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage writes one page in the macros of man(7). It holds no date, so that two builds of a
// version write the same bytes.
func manPage(w io.Writer, c *cobra.Command) {
	name := manName(c)
	fmt.Fprintf(w, ".TH %s 1 \"\" \"%s %s\" \"User Commands\"\n", strings.ToUpper(name),
		c.Root().Name(), roff(version.Module()))
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", roff(name), roff(c.Short))
	fmt.Fprint(w, ".SH SYNOPSIS\n")
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, ".B %s\n.I COMMAND\n", roff(c.CommandPath()))
	} else {
		fmt.Fprintf(w, ".B %s\n%s\n", roff(c.CommandPath()),
			roff(strings.TrimSpace(strings.TrimPrefix(c.UseLine(), c.CommandPath()))))
	}
	text := c.Long
	if text == "" {
		text = c.Short
	}
	fmt.Fprint(w, ".SH DESCRIPTION\n")
	for i, paragraph := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			fmt.Fprint(w, ".PP\n")
		}
		fmt.Fprintf(w, "%s\n", roff(paragraph))
	}
	manCommands(w, c)
	if c.HasExample() {
		fmt.Fprintf(w, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(strings.Trim(c.Example, "\n")))
	}
	manFlags(w, helpFlags(c.Flags()))
	if c.HasParent() {
		fmt.Fprintf(w, ".SH SEE ALSO\n.BR %s (1)\n", roff(manName(c.Parent())))
	}
}

func manCommands(w io.Writer, c *cobra.Command) {
	if !c.HasAvailableSubCommands() {
		return
	}
	fmt.Fprint(w, ".SH COMMANDS\n")
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			fmt.Fprintf(w, ".TP\n.BR %s (1)\n%s\n", roff(manName(s)), roff(s.Short))
		}
	}
}

func manFlags(w io.Writer, flags []*pflag.Flag) {
	if len(flags) == 0 {
		return
	}
	fmt.Fprint(w, ".SH OPTIONS\n")
	for _, f := range flags {
		head, text := describeFlag(f)
		fmt.Fprintf(w, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(head)), roff(text))
		if IsParameter(f) && f.Name == ShownParameters[len(ShownParameters)-1] {
			fmt.Fprintf(w, "More parameters: %s\n", roff("restore methods NAME"))
		}
	}
}

// roff protects what roff would read as its own: backslashes, hyphens of commands, and dots and
// quotes at the start of a line.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
