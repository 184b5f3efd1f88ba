package main

import (
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that errors in files give exit code 1 and exactly one line that names the file and the
// reason.
func TestFailures(t *testing.T) {
	picture, empty := clitest.Drawn(t, 7), t.TempDir()
	text, out := clitest.Written(t, "text.png", "this is no picture\n"), filepath.Join(empty, "x")
	strings_ := clitest.Written(t, "strings.json", `["a"] trailing`)
	tested.RefusesFiles(t, empty, map[string]struct{ Args, Want []string }{
		"missing features":     {[]string{"reduce", "--base", "grid", "--n-vis", "4", "--in", "no.safetensors", "--out", out}, []string{"no.safetensors", "no such file"}},
		"features of a png":    {[]string{"reduce", "--base", "grid", "--n-vis", "4", "--in", picture, "--out", out}, []string{"scene.png"}},
		"trace of a png":       {[]string{"trace", "--in", picture, "--out", out}, []string{"scene.png"}},
		"output nowhere":       {[]string{"scene", "-o", "no/such/folder/x.png"}, []string{"no/such/folder", "no such file"}},
		"tokenizer of a png":   {[]string{"inspect", "tokens", "--tokenizer", picture, "--in", text}, []string{"scene.png"}},
		"processor of a png":   {[]string{"inspect", "image", "--processor", picture, "--image", picture, "--out", out}, []string{"scene.png"}},
		"messages of a png":    {[]string{"inspect", "chat", "--template", text, "--in", picture}, []string{"scene.png", "JSON"}},
		"two JSON values":      {[]string{"inspect", "chat", "--template", text, "--in", strings_}, []string{"strings.json"}},
		"data folder is empty": {[]string{"eval", "scenes", "--data", empty}, []string{"questions.json"}},
	})
}

// Ensure that every error in a command line gives exit code 2, one line with the reason, and a hint
// at the help.
func TestUsageErrors(t *testing.T) {
	tested.RefusesUsage(t, map[string]struct {
		Args []string
		Want string
	}{
		"unknown command":         {[]string{"rum"}, `unknown command, got "rum", want eval|`},
		"unknown with flags":      {[]string{"atention", "--image", "x"}, `unknown command, got "atention", want eval|`},
		"unknown below":           {[]string{"bench", "kernals", "--m", "1"}, `unknown command, got "kernals", want kernels|sequences, did you mean kernels?`},
		"unknown subcommand":      {[]string{"inspect", "token"}, `want tokens|chat|image`},
		"no subcommand":           {[]string{"eval"}, "eval: no command given"},
		"schedule without base":   {[]string{"trace", "-p", "?", "--out", "x", "--schedule", "2:64"}, "--schedule: got 2:64, which has no effect without a base"},
		"seed of nothing":         {[]string{"trace", "-p", "?", "--out", "x", "--base", "grid", "--n-vis", "4", "--seed", "3"}, "--seed: has no use without --base random, got 3"},
		"attention of all":        {[]string{"attention", "--image", "x", "-p", "?", "--base", "none"}, "--base: got none, want a method to compare with all tokens, holov|"},
		"trace without output":    {[]string{"trace", "-p", "?"}, "trace: --out is missing"},
		"trace without input":     {[]string{"trace", "--out", "x"}, "trace: no input, want --in FILE or -p QUESTION"},
		"trace of two inputs":     {[]string{"trace", "--out", "x", "--in", "y", "-p", "?"}, "--in: given together with"},
		"trace without budget":    {[]string{"trace", "--out", "x", "-p", "?", "--base", "holov"}, "--n-vis: missing, want a budget of tokens for holov"},
		"reduce without input":    {[]string{"reduce", "--base", "grid", "--n-vis", "4", "--out", "x"}, "reduce: --in is missing"},
		"reduce inside decoder":   {[]string{"reduce", "--base", "fastv", "--schedule", "2:4", "--in", "y", "--out", "x"}, "--base: got fastv, which acts inside the decoder: tokens from a file pass none"},
		"reduce without base":     {[]string{"reduce", "--n-vis", "4", "--in", "y", "--out", "x"}, "reduce: no --base"},
		"reduce with a bad grid":  {[]string{"reduce", "--base", "grid", "--n-vis", "4", "--in", "y", "--out", "x", "--grid", "4"}, `--grid: got "4"`},
		"scene without output":    {[]string{"scene"}, "scene: --output is missing"},
		"tokens without file":     {[]string{"inspect", "tokens"}, "inspect tokens: --tokenizer is missing"},
		"eval of nothing":         {[]string{"eval", "scenes", "--n", "0"}, "--n: out of range, got 0"},
		"eval of negative budget": {[]string{"eval", "scenes", "--n-vis", "-3"}, "--n-vis: got -3, want at least 1"},
	})
}
