package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that a shell completes methods, the parameters of the method that was chosen, types of
// weights, and the names of the models in the hub's cache.
func TestCompletion(t *testing.T) {
	home := t.TempDir()
	models := filepath.Join(home, ".cache", "huggingface", "hub", "models--me--scenes", "snapshots")
	if err := os.MkdirAll(models, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line, want string
		not        string
	}{
		{"run --base ho", "holov", "tome"},
		{"run --base tome --tome", "--tome-r", "--fitprune-recipe"},
		{"run --base fitprune --fit", "--fitprune-recipe", "--tome-r"},
		{"run --quant q", "q8", "bf16"},
		{"run -m m", "me/scenes", ""},
		{"rm m", "me/scenes", ""},
		{"methods div", "divprune", "holov"},
		{"completion f", "fish", "bash"},
		{"run --proportional-attention=t", "true", "false"},
	} {
		r := with(context.Background(), map[string]string{"HOME": home}, "",
			append([]string{"__complete"}, strings.Split(c.line, " ")...)...)
		var words []string
		for line := range strings.Lines(r.Out) {
			word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			words = append(words, word)
		}
		if r.Code != cli.ExitOK || !slices.Contains(words, c.want) ||
			slices.Contains(words, c.not) {
			t.Errorf("%s: exit %d, %q, want %q and not %q", c.line, r.Code, words, c.want, c.not)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := commandLine("completion", shell)
		if r.Code != cli.ExitOK || !strings.Contains(r.Out, "__complete") || r.Err != "" {
			t.Errorf("%s: exit %d, %.80q, stderr %q", shell, r.Code, r.Out, r.Err)
		}
	}
	if r := commandLine("completion", "csh"); r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, `got "csh", want bash|zsh|fish|powershell`) {
		t.Errorf("csh: exit %d, stderr %q", r.Code, r.Err)
	}
}

// Ensure that the script for bash completes without the package bash-completion.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skipf("no bash: %v", err)
	}
	script := clitest.Written(t, "restore.bash", commandLine("completion", "bash").Out)
	const ask = `
restore() { "$PROGRAM" "$@"; }
source "$1"
line=$2 COMP_TYPE=9 COMP_KEY=9 COMPREPLY=()
COMP_LINE=$line COMP_POINT=${#line}
__start_restore 2>/dev/null # compopt, which works in a completion alone
echo "${COMPREPLY[@]}"`
	for line, want := range map[string]string{
		"restore ru":                            "run",
		"restore run --base tom":                "tome",
		"restore run --base=tom":                "tome",
		`restore run --image "a b.png" --overl`: "--overlay",
		"restore run --base tome --tome":        "--tome-r",
	} {
		cmd := process("version")
		program := cmd.Path
		cmd.Path, cmd.Args = bash, []string{bash, "--norc", "-c", ask, "bash", script, line}
		cmd.Env = append(cmd.Env, "PROGRAM="+program)
		if r := clitest.Finish(t, cmd); !slices.Contains(strings.Fields(r.Out), want) {
			t.Errorf("%s: %q, want %q (%s)", line, r.Out, want, r.Err)
		}
	}
}
