package cli

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/seam"
)

// Ensure that a flag wins over its variable, the variable over the default.
func TestEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env      map[string]string
		args     []string
		nVis     int
		ratio    float64
		base     string
		compat   string
		restored bool
	}{
		"defaults":                            {nil, nil, 64, 0, "holov", "", true},
		"variable":                            {map[string]string{"RESTORE_N_VIS": "32", "RESTORE_BASE": "grid"}, nil, 32, 0, "grid", "", true},
		"drawn":                               {nil, []string{"--base", "random"}, 64, 0, "random", "", true},
		"base variable and a switch":          {map[string]string{"RESTORE_BASE": "none"}, []string{"--gamma", "0.25"}, 64, 0, "holov", "", true},
		"gamma variable without RESTORE":      {map[string]string{"RESTORE_GAMMA": "0.25"}, []string{"--restore=false"}, 64, 0, "holov", "", false},
		"budget variable and a schedule":      {map[string]string{"RESTORE_N_VIS": "32"}, []string{"--base", "fastv", "--schedule", "2:9"}, 0, 0, "fastv", "", true},
		"a leading zero":                      {nil, []string{"--n-vis", "064"}, 64, 0, "holov", "", true},
		"empty variable":                      {map[string]string{"RESTORE_N_VIS": ""}, nil, 64, 0, "holov", "", true},
		"flag over variable":                  {map[string]string{"RESTORE_N_VIS": "32"}, []string{"--n-vis", "16"}, 16, 0, "holov", "", true},
		"ratio over default":                  {nil, []string{"--keep-ratio", "0.25"}, 0, 0.25, "holov", "", true},
		"ratio flag over budget variable":     {map[string]string{"RESTORE_N_VIS": "32"}, []string{"--keep-ratio", "0.25"}, 0, 0.25, "holov", "", true},
		"budget flag over ratio variable":     {map[string]string{"RESTORE_KEEP_RATIO": "0.5"}, []string{"--n-vis", "9"}, 9, 0, "holov", "", true},
		"boolean variable":                    {map[string]string{"RESTORE_OVER_BASE": "false", "RESTORE_COMPAT": "released"}, nil, 64, 0, "holov", "released", false},
		"variables of a reduction turned off": {map[string]string{"RESTORE_COMPAT": "paper", "RESTORE_N_VIS": "5"}, []string{"--base", "none"}, 0, 0, "none", "", false},
	} {
		var r ReductionFlags
		fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
		r.Add(fs, "holov", 64)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if err := readEnvironment(fs, func(k string) string { return c.env[k] }); err != nil {
			t.Fatal(err)
		}
		r.Seed = 3
		o, err := options(t, &r)
		if err != nil || o.NVis != c.nVis || o.KeepRatio != c.ratio || o.Base != c.base ||
			o.Compat != c.compat || o.Restore != c.restored ||
			(o.Base == "random") != (o.Seed != nil) || o.Seed != nil && *o.Seed != 3 {
			t.Errorf("%s: got %+v, %v", name, o, err)
		}
	}
}

// options are the engine's options of a reduction.
func options(t *testing.T, r *ReductionFlags) (methods.Options, error) {
	t.Helper()
	how, err := r.Reduction()
	if err != nil {
		t.Fatal(err)
	}
	return seam.Reduction(how)
}

// Ensure that a switch without a flag keeps the default of package methods, and that a given one is
// passed on unchanged.
func TestOnlyGivenSwitches(t *testing.T) {
	var r ReductionFlags
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	r.Add(fs, "holov", 64)
	if err := fs.Parse([]string{"--gamma", "0", "--calibrate", "size"}); err != nil {
		t.Fatal(err)
	}
	o, err := options(t, &r)
	if err != nil || o.Gamma == nil || *o.Gamma != 0 || o.Calibrate != "size" ||
		o.Positions+o.Anchors != "" || o.DecodeDistance != nil {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestOneLine(t *testing.T) {
	if got, want := OneLine("a\nb\r\nc\x1b[31m\u009b"), "a; b; c?[31m?"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Ensure that a command of another program says which one has it.
func TestElsewhere(t *testing.T) {
	var errOut bytes.Buffer
	p := &Program{Name: "here", Elsewhere: map[string]string{"dance": "there"}}
	p.Commands = func(a *App) []*cobra.Command { return []*cobra.Command{NewVersion(a)} }
	a := NewApp(p, nil, nil, &errOut, clitest.Unset)
	want := "here: dance is in there now\nsee 'here --help'\n"
	if code := Execute(t.Context(), a, []string{"dance", "--fast"}); code != ExitUsage ||
		errOut.String() != want {
		t.Errorf("exit %d, stderr %q, want %q", code, errOut.String(), want)
	}
}
