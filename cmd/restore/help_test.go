package main

import (
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that the help of every command lists its subcommands, and each flag with its variable, but
// for the parameters that 'restore methods' lists.
func TestHelp(t *testing.T) { tested.Helps(t, 5) }

// Ensure that the help of run shows values, defaults and where the other parameters are.
func TestHelpOfRun(t *testing.T) {
	help := clitest.Plain(commandLine("run", "--help").Out)
	for _, want := range []string{
		"--n-vis N|auto:N keep N", "(default 64, env RESTORE_N_VIS)", "-m, --model folder",
		"--compat paper|released", "Visual tokens: --base NAME method that selects the kept " +
			"tokens: none, holov, divprune", "more parameters: restore methods NAME Answer:",
	} {
		if !strings.Contains(help, want) {
			t.Errorf("run --help: lacks %q", want)
		}
	}
}

// Ensure that no line of any help is wider than a terminal of 80 columns.
func TestHelpWidth(t *testing.T) {
	tested.HelpsNarrowly(t, nil, []string{"methods"}, []string{"methods", "fitprune"},
		[]string{"methods", "restore"}, []string{"show"},
		[]string{"show", "--shape", "llava-1.5-7b"})
}

// Ensure that helps stay short: six flags for a reduction, and few enough in all.
func TestHelpIsShort(t *testing.T) {
	tested.HelpsBriefly(t, map[string]int{"run": 42, "serve": 61})
}

// Ensure that the shell completes a method's parameters once the method is on the command line.
func TestCompleteParameters(t *testing.T) {
	for line, want := range map[string]string{
		"run --holov":                             "",
		"run --base holov --holov":                "--holov-patches --holov-overflow",
		"run --base=dart --holov":                 "",
		"serve --base dart --dart":                "--dart-pivots",
		"batch --base tome --proportional":        "--proportional-attention",
		"run --anch":                              "",
		"run --base grid --anch":                  "--anchors --anchor-pool",
		"run --base none --anch":                  "",
		"run --base none --newl":                  "",
		"run --base grid --newl":                  "--newlines",
		"run --gam":                               "--gamma",
		"run --base holov --gam":                  "--gamma",
		"run --base random --base fastv --fastv-": "--fastv-layer",
	} {
		r := commandLine(append([]string{"__complete"}, strings.Fields(line)...)...)
		var got []string
		for l := range strings.SplitSeq(r.Out, "\n") {
			if strings.HasPrefix(l, "--") {
				got = append(got, strings.SplitN(l, "\t", 2)[0])
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: completed with %q, want %q", line, got, want)
		}
	}
}
