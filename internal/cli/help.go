package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/wrap"
)

// Keys of a flag's annotations.
const (
	fromEnvironment = "from-environment" // the value came from the environment variable
	// the default to show, if it is not the flag's zero value
	Applies = "applies"
	Choices = "choices" // the allowed values
	closed  = "closed"  // no others are allowed
	bounds  = "bounds"  // the least and the greatest allowed value
)

// HelpWidth is the width of a help text.
const HelpWidth = 80

// ShownParameters are the parameters of reductions that help texts show.
var ShownParameters = []string{"base", "n-vis", "keep-ratio", "restore", "gamma", "compat"}

// flagGroups are the groups of flags in help texts, and the flags of each, the most used first. A
// command's other flags come before them.
var flagGroups = []struct {
	title string
	flags string
}{
	{"Question", "image prompt video-frames fps system-prompt overlay overlay-stages"},
	{"Model", "model pull threads quant encoder-quant cache-type mmproj"},
	{"Visual tokens", strings.Join(ShownParameters, " ")},
	{"Answer", "n-predict temp top-k top-p min-p seed"},
	{"Server", "server host port api-key tls preset detail"},
	{"Requests at once", "parallel ctx-size queue memory kv-mb cache-mb cache-dir cache-dir-mb " +
		"cache-isolation"},
	{"Workers", "nats nats-creds nats-ca nats-replicas mixed"},
	{"Pictures", "max-image-pixels max-image-mb max-images min-pixels max-pixels pad exif " +
		"media-path allowed-media-domains fetch-timeout"},
	{"Files and batches", "batch-dir batch-parallel max-file-mb file-days"},
	{"HTTP", "max-body-mb request-timeout read-timeout drain-timeout " +
		"sse-ping cors-origins allowed-hosts"},
	{"Output", "format plot json verbose quiet history log-format disable"},
}

// fewFlags is the number of flags up to which a command's help has no groups.
const fewFlags = 9

// helpFlags are the flags that a command's help shows, in its order.
func helpFlags(fs *pflag.FlagSet) (all []*pflag.Flag) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Name != "help" && (!IsParameter(f) || slices.Contains(ShownParameters, f.Name)) {
			all = append(all, f)
		}
	})
	if len(all) > fewFlags {
		slices.SortStableFunc(all, func(f, g *pflag.Flag) int {
			return slices.Compare(placeOf(f.Name), placeOf(g.Name))
		})
	}
	return all
}

// placeOf returns the number of a flag's group and its place there, nil outside of the groups.
func placeOf(name string) []int {
	for i, g := range flagGroups {
		if j := slices.Index(strings.Fields(g.flags), name); j >= 0 {
			return []int{i, j}
		}
	}
	return nil
}

// writeHelp prints a command's help: what it does, its usage, and its flags in groups.
func writeHelp(w io.Writer, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		Wrap(w, paragraph, HelpWidth, "")
		fmt.Fprintln(w)
	}
	flags := helpFlags(cmd.Flags())
	fmt.Fprintln(w, "Usage:")
	if !cmd.HasAvailableSubCommands() || len(flags) > 0 {
		fmt.Fprintf(w, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "  %s COMMAND\n", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintln(w, "\nExamples:")
		for line := range strings.SplitSeq(strings.Trim(cmd.Example, "\n"), "\n") {
			writeExample(w, line)
		}
	}
	writeCommands(w, cmd)
	if len(flags) > 0 {
		writeFlags(w, flags)
	}
}

// writeFlags prints flags under the titles of their groups.
func writeFlags(w io.Writer, flags []*pflag.Flag) {
	fmt.Fprintln(w, "\nFlags (default, environment variable):")
	last := -1
	for _, f := range flags {
		if place := placeOf(f.Name); len(flags) > fewFlags && place != nil && place[0] != last {
			last = place[0]
			fmt.Fprintf(w, "\n%s:\n", flagGroups[last].title)
		}
		writeFlag(w, f)
		if IsParameter(f) && f.Name == ShownParameters[len(ShownParameters)-1] {
			fmt.Fprintln(w, "  more parameters: restore methods NAME")
		}
	}
}

// writeCommands lists the subcommands.
func writeCommands(w io.Writer, cmd *cobra.Command) {
	if !cmd.HasAvailableSubCommands() {
		return
	}
	fmt.Fprint(w, "\nCommands:\n")
	width := 0
	for _, c := range cmd.Commands() {
		width = max(width, len(c.Name()))
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			Wrap(w, c.Short, HelpWidth, fmt.Sprintf("  %-*s ", width, c.Name()))
		}
	}
}

// writeFlag prints a flag, its meaning, its default and its variable.
func writeFlag(w io.Writer, f *pflag.Flag) {
	head, text := describeFlag(f)
	fmt.Fprintln(w, head)
	if !HasVariable(f) {
		fmt.Fprintf(w, "        %s\n", text)
		return
	}
	Wrap(w, text, HelpWidth, "        ")
}

// describeFlag returns a flag with its argument, and its meaning with default and variable.
func describeFlag(f *pflag.Flag) (head, text string) {
	if !HasVariable(f) {
		return "      --" + f.Name, f.Usage
	}
	short := "    "
	if f.Shorthand != "" {
		short = "-" + f.Shorthand + ", "
	}
	arg, usage := pflag.UnquoteUsage(f)
	def := f.DefValue
	if listOf(f) != nil {
		def = strings.Trim(def, "[]") // as it is typed
	}
	if v := f.Annotations[Applies]; v != nil {
		def = v[0]
	} else if def == "" {
		def = "none"
	}
	if v := f.Annotations[Choices]; v != nil {
		arg = v[0]
	} else if f.Value.Type() == "bool" {
		arg = ""
	}
	name := "  " + short + "--" + f.Name
	if arg != "" && len(name)+1+utf8.RuneCountInString(arg) > HelpWidth {
		arg, usage = "NAME", usage+": "+strings.ReplaceAll(arg, "|", ", ")
	}
	return strings.TrimRight(name+" "+arg, " "),
		fmt.Sprintf("%s (default %s, env %s)", usage, def, EnvName(f))
}

// writeExample prints a line of an example, broken after backslashes.
func writeExample(w io.Writer, line string) {
	for utf8.RuneCountInString(line) > HelpWidth {
		at := 0
		for i := 4; i <= HelpWidth-2; i++ {
			open := strings.Count(line[:i], "'")%2 + strings.Count(line[:i], `"`)%2
			if strings.HasPrefix(line[i:], " -") && open == 0 {
				at = i
			}
		}
		if at == 0 {
			break
		}
		fmt.Fprintf(w, "%s \\\n", line[:at])
		line = "     " + line[at:]
	}
	fmt.Fprintln(w, line)
}

// Wrap writes text in lines of at most width characters. The first begins with label, and the
// others are indented as far. A longer word gets its own line.
func Wrap(w io.Writer, text string, width int, label string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(label))
	for _, line := range wrap.Characters(text, width-len(indent)) {
		fmt.Fprintln(w, label+line)
		label = indent
	}
}
