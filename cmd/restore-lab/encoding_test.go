package main

import (
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/cli/programtest"
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
func TestEncodings(t *testing.T) { tested.ReadsUTF8(t, textCases(t)) }

// textCases are the texts that commands read.
func textCases(t *testing.T) map[string]programtest.Text {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	out := filepath.Join(t.TempDir(), "out.safetensors")
	inspect := func(args ...string) []string { return append([]string{"inspect"}, args...) }
	template := clitest.Written(t, "t.jinja",
		"{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}")
	messages := `[{"role": "user", "content": "é"}]`
	said := clitest.Written(t, "messages.json", messages)
	return map[string]programtest.Text{
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
