package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// chatLine is a line of a file of requests.
func chatLine(id, question string) string {
	line, err := json.Marshal(map[string]any{"custom_id": id, "url": "/v1/chat/completions",
		"body": map[string]any{"max_tokens": 2,
			"messages": []any{map[string]any{"role": "user", "content": question}}}})
	if err != nil {
		panic(err)
	}
	return string(line) + "\n"
}

// inFolder writes files into a new folder.
func inFolder(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Ensure that only files can be the input and the output, which is another one, that a run that
// cannot begin leaves nothing, and that no file is changed that the journal did not write.
func TestBatchOutput(t *testing.T) {
	dir := inFolder(t, map[string]string{"in.jsonl": chatLine("a", "Hello")})
	t.Chdir(dir)
	before := clitest.Names(t, dir)
	for _, out := range []string{"-", "/dev/null", "/dev/stdout", "/dev/stderr", dir, "in.jsonl"} {
		if r := commandLine("batch", "--in", "in.jsonl", "--out", out); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, "--out: got "+out) {
			t.Errorf("%s: exit %d, %s", out, r.Code, r.Err)
		}
	}
	for _, in := range []string{"-", "/dev/null", dir} {
		if r := commandLine("batch", "--in", in, "--out", "out"); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, "--in: got "+in) {
			t.Errorf("%s: exit %d, %s", in, r.Code, r.Err)
		}
	}
	for want, args := range map[string][]string{
		"no folder none": {"--out", "none/out"},
		"none.gguf":      {"--out", "out", "-m", "none.gguf"},
		"--media-path":   {"--out", "out", "--media-path", "none"},
		"log: is a file": {"--out", "out.journal/log", "--journal", "out.journal"},
	} {
		r := commandLine(append([]string{"batch", "--in", "in.jsonl"}, args...)...)
		if r.Code == cli.ExitOK || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, %s, want %s", args, r.Code, r.Err, want)
		}
	}
	for _, place := range []string{dir, "/dev"} {
		for _, name := range clitest.Names(t, place) {
			if place == dir && !slices.Contains(before, name) ||
				strings.HasSuffix(name, ".journal") {
				t.Errorf("%s is left in %s", name, place)
			}
		}
	}
	run := func(args ...string) clitest.Result {
		return commandLine(append([]string{"batch", "--in", "in.jsonl"}, args...)...)
	}
	if r := run("--out", "out"); r.Code != cli.ExitOK {
		t.Fatalf("exit %d: %s", r.Code, r.Err)
	}
	const letter = "Dear Sir or Madam,\n"
	if err := os.WriteFile("letter", []byte(letter), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := run("--journal", "out.journal", "--out", "letter"); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "belongs to the output out, got letter") {
		t.Errorf("another output: exit %d, %s", r.Code, r.Err)
	}
	if data, err := os.ReadFile("letter"); err != nil || string(data) != letter {
		t.Errorf("the letter is %q now, %v", data, err)
	}
	if err := os.Remove("out"); err != nil {
		t.Fatal(err)
	}
	if r := run("--out", "out"); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "out: is gone, and journal out.journal has written") {
		t.Errorf("no output: exit %d, %s", r.Code, r.Err)
	}
}

// Ensure that custom_ids that occur twice are refused, that blank lines do not count, and that a
// run without an answer says so.
func TestBatchInput(t *testing.T) {
	a, b := chatLine("a", "Hello"), chatLine("b", "Hello")
	dir := inFolder(t, map[string]string{
		"twice":   a + "\n" + b + a,
		"blank":   "\n" + a + " \n\r\n" + b + "\n",
		"bad":     "{}\n{\"custom_id\":1}\n[]\n",
		"refused": strings.ReplaceAll(a, "chat/completions", "none"),
		"half":    a + "{}\n",
	})
	run := func(name string) (r clitest.Result, sum batch.Summary) {
		t.Helper()
		r = commandLine("batch", "--in", filepath.Join(dir, name), "--out",
			filepath.Join(dir, name+".out"))
		if r.Code == cli.ExitOK {
			if err := json.Unmarshal([]byte(r.Out), &sum); err != nil {
				t.Fatal(err)
			}
		}
		return r, sum
	}
	if r, _ := run("twice"); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "lines 1 and 4 have the same custom_id") {
		t.Errorf("twice: exit %d, %s", r.Code, r.Err)
	}
	if slices.ContainsFunc(clitest.Names(t, dir), func(name string) bool {
		return strings.HasPrefix(name, "twice.")
	}) {
		t.Errorf("twice: left %v", clitest.Names(t, dir))
	}
	if r, sum := run("blank"); r.Code != cli.ExitOK || sum.Lines != 2 || sum.Answers != 2 ||
		r.Err != "" {
		t.Errorf("blank: exit %d, %+v, %s", r.Code, sum, r.Err)
	}
	for name, want := range map[string]string{
		"bad": "none of the 3 lines has an answer: 2 invalid_type, " +
			"1 missing_required_parameter",
		"refused": "none of the 1 lines has an answer: 1 ",
		"half":    "",
	} {
		for range 2 { // the second run finds the results of the first
			if r, _ := run(name); r.Code != cli.ExitOK || !strings.Contains(r.Err, want) ||
				want == "" && r.Err != "" {
				t.Errorf("%s: exit %d, %s, want %q", name, r.Code, r.Err, want)
			}
			want, _, _ = strings.Cut(want, ":")
		}
	}
}

// Ensure that a file is not continued when a picture has changed that it has answers about, and
// that a changed picture is noticed on every route that takes one.
func TestBatchPictureChanged(t *testing.T) {
	const chat = `{"custom_id":"a","url":"/v1/chat/completions","body":{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:p.png"}},{"type":"text","text":"?"}]}]}}`
	for name, line := range map[string]string{
		"chat":      chat,
		"escapes":   strings.Replace(chat, "file:p", `\u0046i\u006ce\u003ap`, 1),
		"responses": `{"custom_id":"a","url":"/v1/responses","body":{"max_output_tokens":16,"input":[{"role":"user","content":[{"type":"input_image","image_url":"file://p.png"},{"type":"input_text","text":"?"}]}]}}`,
		"ollama":    `{"custom_id":"a","url":"/api/generate","body":{"prompt":"?","stream":false,"images":["file:///p.png"],"options":{"num_predict":1}}}`,
	} {
		dir := inFolder(t, map[string]string{"in.jsonl": line + "\n"})
		picture := func(seed int64) {
			t.Helper()
			data, err := os.ReadFile(clitest.Drawn(t, seed))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "p.png"), data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		picture(1)
		for range 2 {
			if r := commandLine(batchArgs(dir, "out")...); r.Code != cli.ExitOK || r.Err != "" {
				t.Fatalf("%s: exit %d, %s", name, r.Code, r.Err)
			}
		}
		picture(2)
		if r := commandLine(batchArgs(dir, "out")...); r.Code != cli.ExitFailure ||
			!strings.Contains(r.Err, "the pictures of its first 1 lines are not those") {
			t.Errorf("%s: another picture: exit %d, %s", name, r.Code, r.Err)
		}
	}
}

// Ensure that a run is continued only with the same settings, that the error shows those that
// differ and no others, and that flags without influence on answers may differ.
func TestBatchSettings(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	dir := inFolder(t, map[string]string{"in.jsonl": chatLine("a", "Hello")})
	for name, mean := range map[string]string{"1": "16", "2": "16,26"} { // files of thresholds
		pictures := filepath.Dir(clitest.Drawn(t, int64(len(name))))
		file := filepath.Join(dir, "budget.json")
		r := commandLine("budget", "--images", pictures, "--mean", mean, "-o", file)
		if r.Code != cli.ExitOK {
			t.Fatal(r.Err)
		}
		if err := os.Rename(file, filepath.Join(dir, "budget"+name)); err != nil {
			t.Fatal(err)
		}
	}
	budget := filepath.Join(dir, "budget.json")
	use := func(name string) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = os.WriteFile(budget, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	use("budget1")
	first := []string{"--n-vis", "auto:16", "--budget-file", budget, "--n-predict", "3"}
	if r := commandLine(batchArgs(dir, "out", first...)...); r.Code != cli.ExitOK {
		t.Fatalf("exit %d: %s", r.Code, r.Err)
	}
	for want, more := range map[string][]string{
		`quant was "stored", now "q8"`:            {"--quant", "q8", "--cache-type", "f32"},
		`encoder-quant was "stored", now "f16"`:   {"--encoder-quant", "f16"},
		`cache-type was "f32", now "f16"`:         {"--cache-type", "f16"},
		`n-predict was 3, now 4; temp was 0, now`: {"--temp", "0.5", "-n", "4"},
		`gamma was not set, now 0.25`:             {"--gamma", "0.25"},
		`exif was true, now false`:                {"--exif=false"},
		`max-images was 16, now 3`:                {"--max-images", "3"},
		`allowed-media-domains was null, now`:     {"--allowed-media-domains", "a.example"},
	} {
		r := commandLine(batchArgs(dir, "out", append(first, more...)...)...)
		_, list, _ := strings.Cut(r.Err, "other settings: ")
		list, _, _ = strings.Cut(list, ": use the")
		if r.Code != cli.ExitFailure || !strings.Contains(list, want) ||
			strings.Count(list, " was ") != strings.Count(want, " was ") {
			t.Errorf("%v: exit %d, %s, want %s", more, r.Code, r.Err, want)
		}
	}
	if r := commandLine(batchArgs(dir, "out", append(first, "--threads", "1", "--parallel", "2",
		"--unordered", "--cache-mb", "1", "--kv-mb", "50")...)...); r.Code != cli.ExitOK {
		t.Errorf("flags without influence: exit %d, %s", r.Code, r.Err)
	}
	use("budget2")
	if r := commandLine(batchArgs(dir, "out", first...)...); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "settings: budget-file was \"sha256:") {
		t.Errorf("another budget file: exit %d, %s", r.Code, r.Err)
	}
}

// Ensure that every flag of the command is a setting that must agree, or listed here with the
// reason why answers do not depend on it.
func TestBatchFlags(t *testing.T) {
	without := map[string]string{
		"in": "lines have keys", "out": "in the journal", "journal": "itself",
		"unordered": "order only", "strict": "ends the run",
		"nats": "kernel", "nats-creds": "", "nats-ca": "", "nats-replicas": "",
		"model": "digest", "mmproj": "digest", "pull": "",
		"threads": "deterministic", "parallel": "deterministic",
		"memory": "a refusal is no answer", "kv-mb": "a refusal is no answer",
		"cache-mb": "speed only", "cache-dir": "speed only",
		"cache-dir-mb": "speed only",
		"media-path":   "pictures have hashes", "fetch-timeout": "a refusal is no answer",
	}
	o := new(batchOptions)
	fs := pflag.NewFlagSet("batch", pflag.ContinueOnError)
	o.add(fs)
	o.journal = t.TempDir()
	a := cli.NewApp(thisProgram, nil, t.Output(), t.Output(), clitest.Unset)
	b, err := o.open(t.Context(), a, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.close(); err != nil {
		t.Fatal(err)
	}
	fs.VisitAll(func(f *pflag.Flag) {
		_, reduction := f.Value.(*cli.ParameterFlag)
		_, setting := b.settings[f.Name]
		_, known := without[f.Name]
		if !reduction && setting == known && f.Name != "model" {
			t.Errorf("--%s: a setting %v, without influence %v, want one of both", f.Name, setting,
				known)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(b.settings)) {
		if fs.Lookup(name) == nil && name != "digest" && name != "kernel" && name != "version" {
			t.Errorf("setting %s: there is no such flag", name)
		}
	}
}

// Ensure that Ctrl-C leaves one line on stderr, and that the same command continues.
func TestBatchInterrupted(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	var in strings.Builder
	const lines = 150
	for i := range lines {
		in.WriteString(strings.Replace(chatLine(fmt.Sprint(i), fmt.Sprint("Say ", i)),
			`"max_tokens":2`, `"max_tokens":60,"ignore_eos":true`, 1))
	}
	dir := inFolder(t, map[string]string{"in.jsonl": in.String()})
	cmd := process(batchArgs(dir, "out")...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for range 6000 {
		info, err := os.Stat(filepath.Join(dir, "out"))
		if err == nil && info.Size() > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if err == nil || strings.Count(stderr.String(), "\n") != 1 ||
		!strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("%v, stderr:\n%s", err, stderr.String())
	}
	r := commandLine(batchArgs(dir, "out")...)
	var sum batch.Summary
	if err := json.Unmarshal([]byte(r.Out), &sum); r.Code != cli.ExitOK || err != nil ||
		sum.Before == 0 || sum.Before+sum.Answers != lines {
		t.Errorf("continued: exit %d, %v, %s%s", r.Code, err, r.Out, r.Err)
	}
}
