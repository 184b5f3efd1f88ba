package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/hub"
)

// shells are the shells for which scripts are written.
var shells = []struct {
	name  string
	write func(root *cobra.Command, w io.Writer) error
}{
	{"bash", bashCompletion},
	{"zsh", (*cobra.Command).GenZshCompletion},
	{"fish", func(c *cobra.Command, w io.Writer) error { return c.GenFishCompletion(w, true) }},
	{"powershell", (*cobra.Command).GenPowerShellCompletionWithDesc},
}

// newCompletion returns the command that writes scripts for shells.
func newCompletion(a *App) *cobra.Command {
	var names []string
	for _, s := range shells {
		names = append(names, s.name)
	}
	name := a.program.Name
	return &cobra.Command{
		Use:   "completion " + strings.Join(names, "|"),
		Short: "Print a script with which a shell completes commands, flags and values",
		Long: `Print a script with which a shell completes commands, flags and their values: methods, the parameters of the method that --base
names, types of weights, the models of the hub's cache. The examples are for this session and for all later ones, in each of the shells.`,
		Example: fmt.Sprintf(`  source <(%[1]s completion bash)
  %[1]s completion bash >>~/.bash_completion
  echo '[[ -r ~/.bash_completion ]] && . ~/.bash_completion' >>~/.bashrc
  autoload -U compinit; compinit; source <(%[1]s completion zsh)
  %[1]s completion zsh >"${fpath[1]}/_%[1]s"
  %[1]s completion fish | source
  %[1]s completion fish >~/.config/fish/completions/%[1]s.fish
  %[1]s completion powershell | Out-String | Invoke-Expression
  %[1]s completion powershell >>$PROFILE`, name),
		ValidArgs: names,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains(names, args[0]) {
				return Usagef("completion: got %q, want %s", strings.Join(args, " "),
					strings.Join(names, "|"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return shells[slices.Index(names, args[0])].write(cmd.Root(), a.Out)
		},
	}
}

// wordsOfPackage is what cobra's script for bash calls of the package bash-completion.
const wordsOfPackage = `    _get_comp_words_by_ref "$@" cur prev words cword
`

// wordsAlone does the same without the package: words end at spaces.
const wordsAlone = `    if declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
        _get_comp_words_by_ref "$@" cur prev words cword
        return
    fi
    local line="${COMP_LINE:0:COMP_POINT}"
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cword=$((${#words[@]} - 1))
    cur="${words[cword]}"
    prev="${words[cword > 0 ? cword - 1 : 0]}"
`

// bashCompletion writes a script that needs no other one.
func bashCompletion(root *cobra.Command, w io.Writer) error {
	var script bytes.Buffer
	if err := root.GenBashCompletionV2(&script, true); err != nil {
		return err
	}
	if strings.Count(script.String(), wordsOfPackage) != 1 {
		return fmt.Errorf("completion: cobra's script for bash has another form")
	}
	_, err := io.WriteString(w, strings.Replace(script.String(), wordsOfPackage, wordsAlone, 1))
	return err
}

// completeValues makes the shell complete the values of all flags of a command and its subcommands.
func completeValues(a *App, cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		complete := func(_ *cobra.Command, _ []string, begun string) (
			words []string, d cobra.ShellCompDirective,
		) {
			if f.Name == "model" {
				return StartingWith(begun, cachedModels(a)), cobra.ShellCompDirectiveDefault
			}
			if words := StartingWith(begun, FlagValues(f)); len(words) > 0 {
				return words, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault // files
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // fails only for one that has it
	})
	for _, c := range cmd.Commands() {
		completeValues(a, c)
	}
}

// FlagValues are the values of a flag that takes one of a list.
func FlagValues(f *pflag.Flag) []string {
	if p, ok := f.Value.(*ParameterFlag); ok && len(p.Values) > 0 {
		return p.Values
	}
	if f.Value.Type() == "bool" {
		return []string{"true", "false"}
	}
	var words []string
	for _, choices := range f.Annotations[Choices] {
		for word := range strings.SplitSeq(choices, "|") {
			if strings.Contains(choices, "|") && word == strings.ToLower(word) &&
				!strings.ContainsAny(word, " '") {
				words = append(words, word)
			}
		}
	}
	return words
}

// cachedModels are the names of the models in the hub's cache.
func cachedModels(a *App) (names []string) {
	c, err := hub.New(a.Getenv)
	if err != nil {
		return nil
	}
	repos, err := c.List()
	if err != nil {
		return nil
	}
	for _, r := range repos {
		names = append(names, r.Name)
	}
	return names
}

// CachedModels completes the name of a model in the hub's cache, a command's only argument.
func CachedModels(a *App) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, begun string) (
		[]string, cobra.ShellCompDirective,
	) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return StartingWith(begun, cachedModels(a)), cobra.ShellCompDirectiveNoFileComp
	}
}

// StartingWith returns the words that start with text.
func StartingWith(text string, words []string) (out []string) {
	for _, w := range words {
		if strings.HasPrefix(w, text) {
			out = append(out, w)
		}
	}
	return out
}
