package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// lfs is what Git keeps in place of a large file.
const lfs = "version https://git-lfs.github.com/spec/v1\n" +
	"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

// Ensure that a variable without effect is ignored, even if it names a file that does not exist,
// and that one at fault is named.
func TestFilesOfVariables(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	missing := filepath.Join(t.TempDir(), "missing")
	text := []string{"run", "-p", "Hello", "-n", "2"}
	show := append(slices.Clone(text), "--image", picture)
	for _, c := range []struct {
		variable, value string
		args            []string
		ignored         bool
	}{
		{"RESTORE_FITPRUNE_RECIPE", missing, show, true},
		{"RESTORE_FITPRUNE_RECIPE", missing, append(slices.Clone(show), "--base", "fitprune"), false},
		{"RESTORE_BUDGET_FILE", missing, show, true},
		{"RESTORE_BUDGET_FILE", missing, append(slices.Clone(show), "--n-vis", "auto:64"), false},
		{"RESTORE_OVERLAY", missing + "/x.png", text, true},
		{"RESTORE_OVERLAY", missing + "/x.png", show, false},
		{"RESTORE_PROMPT", "@" + missing, []string{"run", "-n", "2"}, false},
		{"RESTORE_SYSTEM_PROMPT", "@" + missing, text, false},
		{"RESTORE_IMAGE", missing, text, false},
		{"RESTORE_MODEL", missing, text, false},
		{"RESTORE_MODEL", "nobody/nothing", text, false},
		{"RESTORE_MODEL", "nobody/nothing", []string{"show", "--shape", "llava-1.5-7b"}, true},
	} {
		env := map[string]string{c.variable: c.value, "HOME": t.TempDir()}
		r := with(context.Background(), env, "", c.args...)
		if (r.Code == cli.ExitOK) != c.ignored ||
			!c.ignored && !strings.HasSuffix(r.Err, " ("+c.variable+")\n") {
			t.Errorf("%+v: exit %d, stderr %q", c, r.Code, r.Err)
		}
	}
	env := map[string]string{"RESTORE_FITPRUNE_RECIPE": missing, "RESTORE_BUDGET_FILE": missing}
	if r := with(context.Background(), env, "", show...); r.Code != cli.ExitOK {
		t.Errorf("two variables without effect: %+v", r)
	}
}

// Ensure that variables that look like those of flags are named once, and those of the other
// program's flags are not; that the list of them has all of both programs.
func TestUnknownVariables(t *testing.T) {
	var out, errOut bytes.Buffer
	a := cli.NewApp(thisProgram, strings.NewReader(""), &out, &errOut, clitest.Unset)
	a.Environ = func() []string {
		return []string{"RESTORE_NVIS=3", "RESTORE_FOO=1", "RESTORE_EMPTY=", "RESTORE_N_VIS=64",
			"RESTORE_CLIENTS=4", "PATH=/bin"}
	}
	code := cli.Execute(t.Context(), a, []string{"methods"})
	want := "restore: note: no flag has the variable RESTORE_FOO, did you mean RESTORE_FPS?; " +
		"RESTORE_NVIS, did you mean RESTORE_N_VIS?\n"
	if got := errOut.String(); code != cli.ExitOK || got != want {
		t.Errorf("exit %d, stderr %q, want %q", code, got, want)
	}
	if errOut.Reset(); cli.Execute(t.Context(), a, []string{"run", "-q", "-p", "Hello", "-n",
		"2"}) != cli.ExitOK || errOut.Len() > 0 {
		t.Errorf("with --quiet: %q", &errOut)
	}
	pages := t.TempDir()
	if r := commandLine("man", pages); r.Code != cli.ExitOK {
		t.Fatal(r)
	}
	other := process("inspect") // builds the other program
	other.Args = []string{other.Args[0], "man", pages}
	if r := clitest.Finish(t, other); r.Code != cli.ExitOK {
		t.Fatal(r)
	}
	files, err := filepath.Glob(filepath.Join(pages, "*.1"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%q, %v", files, err)
	}
	var have []string
	names := regexp.MustCompile(`RESTORE_[A-Z0-9_]+`)
	for _, file := range files {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		have = append(have, names.FindAllString(string(page), -1)...)
	}
	listed := cli.ListedVariables()
	for _, name := range listed {
		if !slices.Contains(have, name) {
			t.Errorf("%s is listed, but no flag has it", name)
		}
	}
	for _, name := range have {
		if !slices.Contains(listed, name) {
			t.Errorf("%s is not listed", name)
		}
	}
}

// Ensure that a Git LFS pointer in place of any file of a model says how to get the file, and that
// a pipe in its place is refused and not waited for.
func TestFilesInPlaceOfOthers(t *testing.T) {
	names := []string{"config.json", "model.safetensors", "tokenizer.json",
		"preprocessor_config.json", "generation_config.json"}
	for _, name := range names {
		dir := clitest.ModelCopy(t, func(string) string { return "" })
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(lfs), 0o600); err != nil {
			t.Fatal(err)
		}
		ask := []string{"run", "-m", dir, "-p", "Hello", "-n", "2"}
		if r := commandLine(ask...); r.Code != cli.ExitFailure || strings.Count(r.Err, name) != 1 ||
			!strings.Contains(r.Err, "Git LFS pointer") ||
			!strings.Contains(r.Err, "git lfs pull") {
			t.Errorf("%s as a pointer: exit %d, %q", name, r.Code, r.Err)
		}
		if runtime.GOOS == "windows" {
			continue
		}
		makePipe(t, file)
		if r := commandLine(ask...); r.Code != cli.ExitFailure ||
			!strings.Contains(r.Err, name+": got a special file, want a file") {
			t.Errorf("%s as a pipe: exit %d, %q", name, r.Code, r.Err)
		}
	}
	gguf := clitest.Written(t, "model.gguf", lfs)
	r := commandLine("run", "-m", gguf, "-p", "Hello")
	if r.Code != cli.ExitFailure || strings.Count(r.Err, "model.gguf") != 1 ||
		!strings.Contains(r.Err, "git lfs pull") {
		t.Errorf("a GGUF file as a pointer: exit %d, %q", r.Code, r.Err)
	}
	r = commandLine("run", "-p", "@"+clitest.Written(t, "question.txt", lfs))
	if r.Code != cli.ExitFailure || !strings.Contains(r.Err, "git lfs pull") {
		t.Errorf("a question as a pointer: exit %d, %q", r.Code, r.Err)
	}
}

// Ensure that no message has types of Go or calls of the system, that numbers out of range are not
// called invalid JSON, that no single letter is suggested, and that a picture without its flag
// names it.
func TestMessages(t *testing.T) {
	dir := clitest.ModelCopy(t, func(string) string { return "" })
	tokenizer := filepath.Join(dir, "tokenizer.json")
	text, err := os.ReadFile(tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	first := regexp.MustCompile(`("vocab": *\{\s*"[^"]*": *)(\d+)`)
	big := first.ReplaceAll(text, []byte("${1}99999999999999999999"))
	if bytes.Equal(big, text) {
		t.Fatal("the vocabulary has another form")
	}
	if err := os.WriteFile(tokenizer, big, 0o600); err != nil {
		t.Fatal(err)
	}
	picture := clitest.Drawn(t, clitest.NumberSeed)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"got 99999999999999999999 at byte", []string{"run", "-m", dir, "-p", "Hello"}},
		{`"vision_config.hidden_size": got a list, want a whole number`, []string{"show", "--shape",
			clitest.Written(t, "shape.json", `{"vision_config": {"hidden_size": [1]}}`)}},
		{"presets.json: got a list, want an object", []string{"serve", "--preset",
			"@" + clitest.Written(t, "presets.json", `[1]`)}},
		{"unknown flag: --x\n", []string{"run", "--x"}},
		{"doctor|version|completion\n", []string{"r"}},
		{"as in --image " + picture, []string{"run", picture}},
		{"as in --image " + picture, []string{"run", "--image", picture, picture, "-p", "Hello"}},
	} {
		r := commandLine(c.args...)
		if r.Code == cli.ExitOK || !strings.Contains(r.Err, c.want) {
			t.Errorf("%v: exit %d, %q, want %q", c.args, r.Code, r.Err, c.want)
		}
		for _, bad := range []string{" json:", "Go ", "openat", "invalid json",
			"cannot unmarshal"} {
			if strings.Contains(r.Err, bad) {
				t.Errorf("%v: %q has %q", c.args, r.Err, bad)
			}
		}
	}
}
