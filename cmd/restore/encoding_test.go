package main

import (
	"context"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/restore-vlm/restore/internal/builtin"
)

const bom = "\ufeff"

// inUTF16 is text in UTF-16 with the low bytes first.
func inUTF16(text string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(text)) {
		b.WriteByte(byte(u))
		b.WriteByte(byte(u >> 8))
	}
	return b.String()
}

// modelCopy writes the embedded model into a folder, each text file after what before returns for
// its name.
func modelCopy(t *testing.T, before func(name string) string) string {
	t.Helper()
	dir := t.TempDir()
	err := fs.WalkDir(builtin.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(builtin.FS(), name)
		if err == nil && filepath.Ext(name) == ".json" {
			data = append([]byte(before(name)), data...)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// builtinFile is a file of the embedded model.
func builtinFile(t *testing.T, name string) string {
	t.Helper()
	data, err := fs.ReadFile(builtin.FS(), name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// textCase is a command line that reads a text from a file, whose name is IN, or from stdin.
type textCase struct {
	args  []string
	text  string
	stdin bool
	name  string // of the file, with its extension
	named string // what an error names before the file
	code  int    // with the text
}

// run runs the command line with a text; it returns the name of the file too.
func (c *textCase) run(t *testing.T, text string) (result, string) {
	t.Helper()
	if c.stdin {
		return with(context.Background(), nil, text, c.args...), "stdin"
	}
	file := written(t, c.name, text)
	args := slices.Clone(c.args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "IN", file)
	}
	return cli(args...), file
}

// textCases are the texts that commands read.
func textCases(t *testing.T) map[string]textCase {
	picture := drawn(t, numberSeed)
	out := filepath.Join(t.TempDir(), "out.safetensors")
	run := func(args ...string) []string {
		return append([]string{"run", "--image", picture, "-n", "6", "--base", "none"}, args...)
	}
	inspect := func(args ...string) []string { return append([]string{"inspect"}, args...) }
	template := written(t, "t.jinja",
		"{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}")
	messages := `[{"role": "user", "content": "é"}]`
	said := written(t, "messages.json", messages)
	return map[string]textCase{
		"prompt":        {run("-p", "@IN"), number + " é\n", false, "q.txt", "--prompt: ", exitOK},
		"prompt, stdin": {run("-p", "-"), number + "\n", true, "", "--prompt: ", exitOK},
		"system":        {run("-p", number, "--system-prompt", "@IN"), "é", false, "s.txt", "--system-prompt: ", exitOK},
		"recipe": {[]string{"run", "--image", picture, "-n", "6", "-p", number, "--base", "fitprune",
			"--n-vis", "192", "--fitprune-recipe", "IN"}, builtinFile(t, "fitprune.json"), false, "r.json", "", exitOK},
		"strings":   {inspect("tokens", "--tokenizer", modelCopy(t, func(string) string { return "" })+"/tokenizer.json", "--in", "IN"), `["a", "é"]`, false, "s.json", "", exitOK},
		"tokenizer": {inspect("tokens", "--tokenizer", "IN", "--in", written(t, "s.json", `["a"]`)), builtinFile(t, "tokenizer.json"), false, "t.json", "", exitOK},
		"template":  {inspect("chat", "--template", "IN", "--in", said), "a{{ messages[0].content }}", false, "t.jinja", "", exitOK},
		"messages":  {inspect("chat", "--template", template, "--in", "IN"), messages, false, "m.json", "", exitOK},
		"tools":     {inspect("chat", "--template", template, "--in", said, "--tools", "IN"), "[1]", false, "m.json", "", exitOK},
		"specials":  {inspect("chat", "--template", template, "--in", said, "--special-tokens", "IN"), `{"bos_token": "<s>"}`, false, "s.json", "", exitOK},
		"processor": {inspect("image", "--processor", "IN", "--image", picture, "--out", out), builtinFile(t, "preprocessor_config.json"), false, "p.json", "", exitOK},
		"shape":     {[]string{"flops", "--shape", "IN"}, shapeText(t), false, "config.json", "", exitOK},
		"answers": {[]string{"eval", "scienceqa", "--data", benchData + "llava/scienceqa", "--answers", "IN"},
			`{"id": 99, "answer": "é"}`, false, "a.jsonl", "", exitFailure},
		"answers, stdin": {[]string{"eval", "scienceqa", "--data", benchData + "llava/scienceqa", "--answers", "-"},
			`{"id": 99, "answer": "é"}`, true, "", "", exitFailure},
	}
}

// shapeText is the configuration of a published shape.
func shapeText(t *testing.T) string {
	t.Helper()
	s, err := loadShape("llava-1.5-7b")
	if err != nil {
		t.Fatal(err)
	}
	return string(s.Config)
}

// Ensure that a byte-order mark changes no result, and that a text in another encoding is refused
// by its flag, its file, and the byte that is wrong.
func TestEncodings(t *testing.T) {
	for name, c := range textCases(t) {
		t.Run(name, func(t *testing.T) {
			want, wantFile := c.run(t, c.text)
			got, file := c.run(t, bom+c.text)
			want.out = strings.ReplaceAll(want.out, wantFile, file)
			if timeless(got) != timeless(want) || want.code != c.code {
				t.Errorf("with a mark %+v, without %+v", got, want)
			}
			for text, fault := range map[string]string{
				"\xff\xfe" + inUTF16(c.text): "is UTF-16: got the byte-order mark FF FE, want UTF-8",
				inUTF16(c.text):              "is not text: got a zero byte at byte 1, as in",
				c.text + "\xe9":              "is not UTF-8: got 0xe9 at byte ",
			} {
				r, file := c.run(t, text)
				if line, _, _ := strings.Cut(r.err, "\n"); r.code == exitOK || r.out != "" ||
					!strings.Contains(line, c.named+file+": ") || !strings.Contains(line, fault) {
					t.Errorf("%.20q: %+v, want %q", text, r, c.named+file+": "+fault)
				}
			}
		})
	}
}

// timeless is a result without the times of a report.
func timeless(r result) result {
	if before, _, found := strings.Cut(r.err, "visual tokens"); found {
		r.err = before
	}
	return r
}

// Ensure that a text on the command line or in a line of a conversation is checked as one in a file
// is, and that a mark in front of a command does not hide it.
func TestEncodingOfLines(t *testing.T) {
	picture := drawn(t, numberSeed)
	r := cli("run", "--image", picture, "-p", bom+number)
	if r.code != exitOK || r.out != numberAnswer+"\n" {
		t.Errorf("literal with a mark: %+v", r)
	}
	talk := func(in string) result { return with(context.Background(), nil, in, "run") }
	if r := talk(bom + "/image " + picture + "\n" + number + "\n"); r.code != exitOK ||
		r.out != numberAnswer+"\n" {
		t.Errorf("conversation with a mark: %+v", r)
	}
	const fault = "is not UTF-8: got 0xe9 at byte 3, want UTF-8"
	for name, r := range map[string]result{
		"--prompt: " + fault:                                         cli("run", "--image", picture, "-p", "caf\xe9"),
		"--system-prompt: " + fault:                                  cli("run", "-p", "?", "--system-prompt", "caf\xe9"),
		"run: the question " + fault:                                 talk("caf\xe9\n" + number + "\n"),
		"run: the question is UTF-16: got the byte-order mark FF FE": talk("\xff\xfe" + inUTF16(number+"\n")),
	} {
		if r.code == exitOK || r.out != "" || !strings.Contains(r.err, name) {
			t.Errorf("got %+v, want %q", r, name)
		}
	}
}

// Ensure that the text files of a model's folder may begin with a mark, and that a file in another
// encoding is named.
func TestEncodingOfModel(t *testing.T) {
	picture := drawn(t, numberSeed)
	ask := func(dir string, args ...string) result {
		return cli(append([]string{"run", "-m", dir, "--image", picture, "-p", number}, args...)...)
	}
	marked := modelCopy(t, func(string) string { return bom })
	for _, args := range [][]string{nil, {"--base", "fitprune", "--n-vis", "192"},
		{"--n-vis", "auto:64"}} {
		if r := ask(marked, args...); r.code != exitOK || r.out != numberAnswer+"\n" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	for _, name := range []string{
		"config.json", "chat_template.json", "tokenizer.json", "budget.json",
	} {
		dir := modelCopy(t, func(file string) string {
			if file == name {
				return "\xff\xfe"
			}
			return ""
		})
		if r := ask(dir, "--n-vis", "auto:64"); r.code != exitFailure ||
			!strings.Contains(r.err, name+": is UTF-16") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Ensure that a mark in a file of keys is not part of the first key.
func TestEncodingOfKeys(t *testing.T) {
	file := written(t, "keys", bom+"secret # of a test\n")
	s := startServer(t, "--api-key-file", file)
	req, err := http.NewRequest(http.MethodGet, s.url+"/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer secret")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("got %s with the key", resp.Status)
	}
	bad := written(t, "keys", "secr\xe9t\n")
	if r := cli("serve", "--api-key-file", bad); r.code == exitOK ||
		!strings.Contains(r.err, "--api-key-file: "+bad+": is not UTF-8: got 0xe9 at byte 4") {
		t.Errorf("got %+v", r)
	}
}
