package main

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/cli/programtest"
)

// textCases are the texts that commands read.
func textCases(t *testing.T) map[string]programtest.Text {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	run := func(args ...string) []string {
		return append([]string{"run", "--image", picture, "-n", "6", "--base", "none"}, args...)
	}
	return map[string]programtest.Text{
		"prompt":        {run("-p", "@IN"), clitest.Number + " é\n", false, "q.txt", "--prompt: ", cli.ExitOK},
		"prompt, stdin": {run("-p", "-"), clitest.Number + "\n", true, "", "--prompt: ", cli.ExitOK},
		"system":        {run("-p", clitest.Number, "--system-prompt", "@IN"), "é", false, "s.txt", "--system-prompt: ", cli.ExitOK},
		"recipe": {[]string{"run", "--image", picture, "-n", "6", "-p", clitest.Number, "--base", "fitprune",
			"--n-vis", "192", "--fitprune-recipe", "IN"}, clitest.BuiltinFile(t, "fitprune.json"), false, "r.json", "", cli.ExitOK},
	}
}

// Ensure that a byte-order mark changes no result, and that a text in another encoding is refused
// by its flag, its file, and the byte that is wrong.
func TestEncodings(t *testing.T) { tested.ReadsUTF8(t, textCases(t)) }

// Ensure that a text on the command line or in a line of a conversation is checked as one in a file
// is, and that a mark in front of a command does not hide it.
func TestEncodingOfLines(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	r := commandLine("run", "--image", picture, "-p", clitest.BOM+clitest.Number)
	if r.Code != cli.ExitOK || r.Out != clitest.NumberAnswer+"\n" {
		t.Errorf("literal with a mark: %+v", r)
	}
	talk := func(in string) clitest.Result { return with(context.Background(), nil, in, "run") }
	if r := talk(clitest.BOM + "/image " + picture + "\n" + clitest.Number +
		"\n"); r.Code != cli.ExitOK ||
		r.Out != clitest.NumberAnswer+"\n" {
		t.Errorf("conversation with a mark: %+v", r)
	}
	const fault = "is not UTF-8: got 0xe9 at byte 3, want UTF-8"
	for name, r := range map[string]clitest.Result{
		"--prompt: " + fault:                                         commandLine("run", "--image", picture, "-p", "caf\xe9"),
		"--system-prompt: " + fault:                                  commandLine("run", "-p", "?", "--system-prompt", "caf\xe9"),
		"run: the question " + fault:                                 talk("caf\xe9\n" + clitest.Number + "\n"),
		"run: the question is UTF-16: got the byte-order mark FF FE": talk("\xff\xfe" + clitest.InUTF16(clitest.Number+"\n")),
	} {
		if r.Code == cli.ExitOK || r.Out != "" || !strings.Contains(r.Err, name) {
			t.Errorf("got %+v, want %q", r, name)
		}
	}
}

// Ensure that the text files of a model's folder may begin with a mark, and that a file in another
// encoding is named.
func TestEncodingOfModel(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	ask := func(dir string, args ...string) clitest.Result {
		return commandLine(append([]string{"run", "-m", dir, "--image", picture, "-p",
			clitest.Number}, args...)...)
	}
	marked := clitest.ModelCopy(t, func(string) string { return clitest.BOM })
	for _, args := range [][]string{nil, {"--base", "fitprune", "--n-vis", "192"},
		{"--n-vis", "auto:64"}} {
		if r := ask(marked, args...); r.Code != cli.ExitOK || r.Out != clitest.NumberAnswer+"\n" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	for _, name := range []string{
		"config.json", "chat_template.json", "tokenizer.json", "budget.json",
	} {
		dir := clitest.ModelCopy(t, func(file string) string {
			if file == name {
				return "\xff\xfe"
			}
			return ""
		})
		if r := ask(dir, "--n-vis", "auto:64"); r.Code != cli.ExitFailure ||
			!strings.Contains(r.Err, name+": is UTF-16") {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// Ensure that a mark in a file of keys is not part of the first key.
func TestEncodingOfKeys(t *testing.T) {
	file := clitest.Written(t, "keys", clitest.BOM+"secret # of a test\n")
	s := startServer(t, "--api-key", "@"+file)
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
	// The same value is the key of a client.
	for key, want := range map[string]int{"@" + file: cli.ExitOK, "secret,b": cli.ExitOK,
		"b,secret": cli.ExitFailure, "none": cli.ExitFailure, "": cli.ExitUsage} {
		r := commandLine("run", "--server", s.url, "--api-key", key, "-p", "?", "-n", "1")
		if r.Code != want {
			t.Errorf("--api-key %q: exit %d, %s, want %d", key, r.Code, r.Err, want)
		}
	}
	bad := clitest.Written(t, "keys", "secr\xe9t\n")
	if r := commandLine("serve", "--api-key", "@"+bad); r.Code == cli.ExitOK ||
		!strings.Contains(r.Err, "--api-key: "+bad+": is not UTF-8: got 0xe9 at byte 4") {
		t.Errorf("got %+v", r)
	}
}
