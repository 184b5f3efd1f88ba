package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

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
			got, file := c.run(t, clitest.BOM+c.text)
			want.Out = strings.ReplaceAll(want.Out, wantFile, file)
			if clitest.Timeless(got) != clitest.Timeless(want) || want.Code != c.code {
				t.Errorf("with a mark %+v, without %+v", got, want)
			}
			for text, fault := range map[string]string{
				"\xff\xfe" + clitest.InUTF16(c.text): "is UTF-16: got the byte-order mark FF FE, want UTF-8",
				clitest.InUTF16(
					c.text): "is not text: got a zero byte at byte 1, as in",
				c.text + "\xe9": "is not UTF-8: got 0xe9 at byte ",
			} {
				r, file := c.run(t, text)
				if line, _, _ := strings.Cut(r.Err, "\n"); r.Code == cli.ExitOK || r.Out != "" ||
					!strings.Contains(line, c.named+file+": ") || !strings.Contains(line, fault) {
					t.Errorf("%.20q: %+v, want %q", text, r, c.named+file+": "+fault)
				}
			}
		})
	}
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
func (c *textCase) run(t *testing.T, text string) (clitest.Result, string) {
	t.Helper()
	if c.stdin {
		return with(context.Background(), nil, text, c.args...), "stdin"
	}
	file := clitest.Written(t, c.name, text)
	args := slices.Clone(c.args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "IN", file)
	}
	return commandLine(args...), file
}

// textCases are the texts that commands read.
func textCases(t *testing.T) map[string]textCase {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	out := filepath.Join(t.TempDir(), "out.safetensors")
	inspect := func(args ...string) []string { return append([]string{"inspect"}, args...) }
	template := clitest.Written(t, "t.jinja",
		"{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}")
	messages := `[{"role": "user", "content": "é"}]`
	said := clitest.Written(t, "messages.json", messages)
	return map[string]textCase{
		"strings":   {inspect("tokens", "--tokenizer", clitest.ModelCopy(t, func(string) string { return "" })+"/tokenizer.json", "--in", "IN"), `["a", "é"]`, false, "s.json", "", cli.ExitOK},
		"tokenizer": {inspect("tokens", "--tokenizer", "IN", "--in", clitest.Written(t, "s.json", `["a"]`)), clitest.BuiltinFile(t, "tokenizer.json"), false, "t.json", "", cli.ExitOK},
		"template":  {inspect("chat", "--template", "IN", "--in", said), "a{{ messages[0].content }}", false, "t.jinja", "", cli.ExitOK},
		"messages":  {inspect("chat", "--template", template, "--in", "IN"), messages, false, "m.json", "", cli.ExitOK},
		"tools":     {inspect("chat", "--template", template, "--in", said, "--tools", "IN"), "[1]", false, "m.json", "", cli.ExitOK},
		"specials":  {inspect("chat", "--template", template, "--in", said, "--special-tokens", "IN"), `{"bos_token": "<s>"}`, false, "s.json", "", cli.ExitOK},
		"processor": {inspect("image", "--processor", "IN", "--image", picture, "--out", out), clitest.BuiltinFile(t, "preprocessor_config.json"), false, "p.json", "", cli.ExitOK},
		"shape":     {[]string{"flops", "--shape", "IN"}, shapeText(t), false, "config.json", "", cli.ExitOK},
		"answers": {[]string{"eval", "scienceqa", "--data", benchData + "llava/scienceqa", "--answers", "IN"},
			`{"id": 99, "answer": "é"}`, false, "a.jsonl", "", cli.ExitFailure},
		"answers, stdin": {[]string{"eval", "scienceqa", "--data", benchData + "llava/scienceqa", "--answers", "-"},
			`{"id": 99, "answer": "é"}`, true, "", "", cli.ExitFailure},
	}
}
