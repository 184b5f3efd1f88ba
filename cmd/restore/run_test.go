package main

import (
	"bytes"
	"context"
	"encoding/json"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// Ensure that only the answer goes to stdout and the report to stderr, and that 64 of 576 tokens
// are the default.
func TestRun(t *testing.T) {
	r := commandLine("run", "-v", "--image", clitest.Drawn(t, clitest.NumberSeed), "-p",
		clitest.Number)
	if r.Code != cli.ExitOK || r.Out != clitest.NumberAnswer+"\n" {
		t.Errorf("exit %d, stdout %q, stderr %q, want %q", r.Code, r.Out, r.Err,
			clitest.NumberAnswer)
	}
	for _, want := range []string{
		"576 -> 32 kept + 32 merged", "RESTORE over holov, n-vis 64, gamma 0.5", "prepare", "encode", "select", "merge",
		"prefill", "first token", "tokens/s", "MB at peak"} {
		if !strings.Contains(r.Err, want) {
			t.Errorf("the table lacks %q:\n%s", want, r.Err)
		}
	}
	if strings.ContainsAny(r.Err, "\r\x1b") {
		t.Errorf("stderr off a terminal holds control characters: %q", r.Err)
	}
}

// Ensure that the report is one line by default, none with --quiet, and that flags that exclude
// each other are refused on the command line alone.
func TestRunReports(t *testing.T) {
	ask := []string{"run", "--image", clitest.Drawn(t, clitest.NumberSeed), "-p", clitest.Number}
	line := regexp.MustCompile(`^576 → 64 tokens · first token [0-9.]+ m?s · [0-9.]+ tok/s\n$`)
	if r := commandLine(ask...); r.Code != cli.ExitOK || !line.MatchString(r.Err) {
		t.Errorf("exit %d, stderr %q", r.Code, r.Err)
	}
	for _, quiet := range [][]string{append(ask, "-q"), {"run", "-q", "-p", "Hello"}} {
		if r := commandLine(quiet...); r.Code != cli.ExitOK || r.Err != "" || r.Out == "" {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", quiet, r.Code, r.Out, r.Err)
		}
	}
	for want, args := range map[string][]string{
		"--verbose: has no effect with --json":   append(ask, "-v", "--json"),
		"--verbose: has no effect with --quiet":  append(ask, "-v", "-q"),
		"--history: has no effect with --prompt": append(ask, "--history"),
	} {
		if r := commandLine(args...); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
		}
	}
	for _, c := range []struct {
		variable, flag, want string
	}{
		{"RESTORE_QUIET", "--verbose", "at peak"}, {"RESTORE_VERBOSE", "--quiet", ""},
		{"RESTORE_VERBOSE", "--json", ""}, {"RESTORE_HISTORY", "-v", "at peak"},
	} {
		r := with(context.Background(), map[string]string{c.variable: "1"}, "",
			append(ask, c.flag)...)
		if r.Code != cli.ExitOK || !strings.Contains(r.Err, c.want) || c.want == "" && r.Err != "" {
			t.Errorf("%+v: exit %d, stderr %q", c, r.Code, r.Err)
		}
	}
}

// Ensure that the speed of decoding counts the tokens that were decoded.
func TestTokensPerSecond(t *testing.T) {
	for _, c := range []struct {
		generated int
		finish    restore.Finish
		want      float64
	}{
		{4, restore.FinishStop, 4}, // the token that ends the answer was decoded too
		{4, restore.FinishLength, 3},
		{1, restore.FinishLength, 0},
		{0, restore.FinishStop, 0},
		{3, restore.FinishCancelled, 2},
	} {
		ans := &restore.Answer{Finish: c.finish, Usage: restore.Usage{Generated: c.generated},
			Timings: restore.Timings{Decode: time.Second}}
		if got := tokensPerSecond(ans); got != c.want {
			t.Errorf("%d tokens in a second, %s: got %g, want %g", c.generated, c.finish, got,
				c.want)
		}
	}
}

// Ensure that --base none reads every token, and that a question without a picture is answered.
func TestRunWithoutReduction(t *testing.T) {
	r := commandLine("run", "--image", clitest.Drawn(t, clitest.NumberSeed), "-p", clitest.Number,
		"--base", "none")
	if r.Code != cli.ExitOK || r.Out != clitest.NumberAnswer+"\n" ||
		!strings.HasPrefix(r.Err, "576 tokens · first token ") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	if r = commandLine("run", "-p", "Hello", "-n", "3"); r.Code != cli.ExitOK ||
		strings.Contains(r.Err, "visual") {
		t.Errorf("text only: exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
}

// Ensure that --json prints one object with everything, and nothing on stderr.
func TestRunJSON(t *testing.T) {
	a, b := clitest.Drawn(t, clitest.NumberSeed), clitest.Drawn(t, 8)
	kept := filepath.Join(t.TempDir(), "kept.png")
	r := commandLine("run", "--image", a, "--image", b, "-p", clitest.Number, "--base", "divprune",
		"--n-vis",
		"128", "--overlay", kept, "--json")
	var j answerJSON
	d := json.NewDecoder(strings.NewReader(r.Out))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); r.Code != cli.ExitOK || r.Err != "" || err != nil ||
		strings.Count(r.Out, "\n") != 1 {
		t.Fatalf("exit %d, stdout %q, stderr %q, %v", r.Code, r.Out, r.Err, err)
	}
	if len(j.Images) != 2 || j.Images[0].File != a || j.VisualTokens.Before != 2*576 ||
		j.VisualTokens.Kept != 128 || j.VisualTokens.Merged != 128 ||
		len(j.Tokens) == 0 || j.Answer == "" || j.Finish == "" || j.PeakRSS < 0 ||
		j.PromptTokens < 256 || j.Times["first_token"] <= 0 ||
		j.Encoder == nil || *j.Encoder != (restore.Encoder{Type: "stored"}) {
		t.Errorf("got %+v", j)
	}
	for i, name := range []string{"kept-1.png", "kept-2.png"} {
		f, err := os.ReadFile(filepath.Join(filepath.Dir(kept), name))
		if err != nil || j.Images[i].Overlay != filepath.Join(filepath.Dir(kept), name) {
			t.Fatalf("overlay %d: %v, reported as %q", i, err, j.Images[i].Overlay)
		}
		if _, err := png.Decode(bytes.NewReader(f)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Ensure that the same flags give the same answer with any number of threads, and that a seed fixes
// the sampling.
func TestRunIsRepeatable(t *testing.T) {
	picture := clitest.Drawn(t, 12)
	for _, flags := range [][]string{
		nil, {"--temp", "1.5", "--seed", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0"},
	} {
		var first string
		for _, threads := range []string{"1", "2", "2"} {
			r := commandLine(
				append(
					[]string{
						"run", "--image", picture, "-p", "Describe the image.", "-n", "20", "--threads", threads,
					}, flags...)...)
			if first == "" {
				first = r.Out
			}
			if r.Code != cli.ExitOK || r.Out != first || !utf8.ValidString(r.Out) {
				t.Errorf("%v with %s threads: exit %d, stdout %q, want %q", flags, threads, r.Code,
					r.Out, first)
			}
		}
	}
}

// Ensure that without -p each line of the input is a question, that pictures can be added, and that
// earlier tokens are reused.
func TestConversation(t *testing.T) {
	second := clitest.Drawn(t, 8)
	in := "\n" + clitest.Number + "\n\n" + clitest.Number + "\n/image " + second + "\n" +
		clitest.Number +
		"\n/exit\nnot asked\n"
	r := with(context.Background(), nil, in, "run", "-v", "--image",
		clitest.Drawn(t, clitest.NumberSeed))
	answers := strings.Split(strings.TrimSuffix(r.Out, "\n"), "\n")
	if r.Code != cli.ExitOK || len(answers) != 3 || answers[0] != clitest.NumberAnswer {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	if strings.Contains(r.Err, "> ") && strings.Contains(r.Err, "\n> ") ||
		strings.Count(r.Err, "of them cached") != 2 ||
		strings.Count(r.Err, "576 -> 32 kept") != 2 {
		t.Errorf("stderr %q", r.Err)
	}
	r = with(context.Background(), nil, clitest.Number+"\n"+clitest.Number, "run", "--json",
		"--image", second)
	if lines := strings.Split(strings.TrimSpace(r.Out), "\n"); r.Code != cli.ExitOK ||
		len(lines) != 2 || !json.Valid([]byte(lines[1])) {
		t.Errorf("json: exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	for line, want := range map[string]string{
		"/image no/such.png":           "no/such.png: no such file",
		"/image -\n" + clitest.Number:  "/image: -: is stdin, which holds the questions of the conversation, want a file",
		"/hepl":                        `unknown command, got "/hepl", want /image|/drop|/undo|/clear|/set|/save|/help|/exit, did you mean /help?`,
		strings.Repeat("x", maxLine+1): "question too long",
	} {
		if r = with(context.Background(), nil, line+"\n", "run"); r.Code != cli.ExitFailure ||
			!strings.Contains(r.Err, want) {
			t.Errorf("%.20q: exit %d, stderr %q, want %q", line, r.Code, r.Err, want)
		}
	}
}

// Ensure that what was read ahead is not read again, and that reading ahead can be cut at any time.
func TestReadAhead(t *testing.T) {
	m, err := restore.Open(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	d := &dialogue{s: m, r: restore.Request{MaxTokens: 1}}
	for name, end := range map[string]func(){
		"settled": func() { d.settle(t.Context()) }, "cut": d.cut,
	} {
		if err := d.restart(); err != nil {
			t.Fatal(err)
		}
		pic, err := restore.OpenPicture(clitest.Drawn(t, int64(len(name))), nil)
		if err != nil {
			t.Fatal(err)
		}
		q := &cli.Question{Pictures: []cli.ShownPicture{{Name: "drawn", Pic: pic}}}
		d.readAhead(t.Context(), q)
		if end(); d.ahead != nil {
			t.Fatalf("%s: is still reading", name)
		}
		q.Prompt = clitest.Number
		a, err := d.conv.Ask(t.Context(), d.request(q))
		if err != nil {
			t.Fatal(err)
		}
		if name == "settled" && a.Usage.Cached < a.Usage.Image {
			t.Errorf("%d of %d rows were read ahead, want the picture's %d", a.Usage.Cached,
				a.Usage.Prompt, a.Usage.Image)
		}
	}
}

// Ensure that a method inside the decoder reports and draws its stages, and that the report about a
// later question says that the choice was made for the first.
func TestInsideTheDecoder(t *testing.T) {
	dir := t.TempDir()
	stages, kept := filepath.Join(dir, "stages.png"), filepath.Join(dir, "kept.png")
	r := with(context.Background(), nil, clitest.Number+"\n"+clitest.Number+"\n", "run", "-v",
		"--image", clitest.Drawn(t, clitest.NumberSeed), "--base", "pdrop", "--n-vis", "192",
		"--overlay", kept, "--overlay-stages", stages)
	if r.Code != cli.ExitOK || r.Out != clitest.NumberAnswer+"\n"+clitest.NumberAnswer+"\n" {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	for _, want := range []string{
		"RESTORE over pdrop, schedule 1:231,2:115,4:57 (191.8 of 576 tokens a layer), gamma 0.5, positions original",
		"chosen before  1 of the pictures: their tokens were chosen for the question " +
			"they came with"} {
		if strings.Count(r.Err, want) != 1 {
			t.Errorf("stderr holds %q not once:\n%s", want, r.Err)
		}
	}
	var widths [2]int
	for i, name := range []string{kept, stages} {
		f, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		im, err := png.Decode(bytes.NewReader(f))
		if err != nil {
			t.Fatal(err)
		}
		widths[i] = im.Bounds().Dx()
	}
	if widths[1] < 3*widths[0] {
		t.Errorf("the stages' drawing is %d wide, want three of %d", widths[1], widths[0])
	}
	r = commandLine("run", "--image", clitest.Drawn(t, clitest.NumberSeed), "-p", clitest.Number,
		"--base", "fastv", "--schedule",
		"1:0.5,3:40", "--restore=false", "--json")
	var j answerJSON
	if err := json.Unmarshal([]byte(r.Out), &j); err != nil || r.Code != cli.ExitOK ||
		j.Images[0].Kept != 40 || j.Images[0].Mean != 212 || j.VisualTokens.Mean != 212 ||
		j.Method != "fastv, schedule 1:288,3:40 (212 of 576 tokens a layer), positions original" {
		t.Errorf("exit %d, %v, stdout %q, stderr %q", r.Code, err, r.Out, r.Err)
	}
}

// Ensure that a cancelled answer shows its text so far, says so, and fails.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out := writerFunc(func(p []byte) (int, error) {
		cancel() // at the first piece of the answer
		return len(p), nil
	})
	var errOut bytes.Buffer
	a := cli.NewApp(thisProgram, strings.NewReader(""), out, &errOut, clitest.Unset)
	code := cli.Execute(ctx, a,
		[]string{"run", "--image", clitest.Drawn(t, 12), "-p", "Describe the image."})
	got := errOut.String()
	if code != cli.ExitFailure || !strings.HasPrefix(got, "576 → 64 tokens · first token ") ||
		!strings.Contains(got, " · interrupted\n") ||
		!strings.HasSuffix(got, "restore: run: interrupted, the answer is not complete\n") {
		t.Errorf("exit %d, stderr %q", code, got)
	}
	r := with(ctx, nil, "question\n", "run")
	if r.Out != "" || strings.Count(r.Err, "\n") > 1 {
		t.Errorf("conversation after Ctrl-C: exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	questions, _ := io.Pipe()
	a = cli.NewApp(thisProgram, readerFunc(func(p []byte) (int, error) {
		cancel()
		return questions.Read(p)
	}), io.Discard, &errOut, clitest.Unset)
	if code := cli.Execute(ctx, a, []string{"run"}); code != cli.ExitFailure {
		t.Errorf("while a program's questions are read: exit %d, want %d", code, cli.ExitFailure)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Ensure that a packed file can replace a model's folder, and that a torn file is refused and
// leaves no other file behind.
func TestPack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.rst")
	if r := commandLine("pack", "--quant", "q8", "--encoder-quant", "q8", "-o",
		file); r.Code != cli.ExitOK ||
		!strings.HasPrefix(r.Out, file+"  ") || r.Err != "" {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	pic := clitest.Drawn(t, clitest.NumberSeed)
	if r := commandLine("run", "-m", file, "--image", pic, "-p",
		clitest.Number); r.Code != cli.ExitOK ||
		r.Out != clitest.NumberAnswer+"\n" {
		t.Errorf("exit %d, stdout %q, stderr %q, want %q", r.Code, r.Out, r.Err,
			clitest.NumberAnswer)
	}
	if r := commandLine("show", "-m", file); r.Code != cli.ExitOK ||
		!strings.Contains(r.Out, "F32, Q8") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	if r := commandLine("eval", "scenes", "-m", file, "--n", "1"); r.Code != cli.ExitOK ||
		!strings.Contains(r.Out, "keeps") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
	if r := commandLine("run", "-m", file, "--quant", "q4", "-p", "?"); r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, "--quant: got q4, want none or the packed type of builtin, q8") {
		t.Errorf("exit %d, stderr %q", r.Code, r.Err)
	}
	if err := os.Truncate(file, 1<<20); err != nil {
		t.Fatal(err)
	}
	if r := commandLine("run", "-m", file, "-p", "?"); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "torn") || strings.Count(r.Err, "\n") != 1 {
		t.Errorf("torn: exit %d, stderr %q", r.Code, r.Err)
	}
	if r := commandLine("pack", "-m", filepath.Dir(pic), "-o", file); r.Code != cli.ExitFailure ||
		r.Out != "" {
		t.Errorf("no model: exit %d, stdout %q", r.Code, r.Out)
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("files left: %v %v", left, err)
	}
}

// Ensure that a model, the methods and the version are described.
func TestDescriptions(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"embedded": {[]string{"show"}, []string{"LlavaForConditionalGeneration", "4.1 million", "text layers", "show --card",
			"memory at peak", "64 of its 576 tokens, 60 of text and 32 in the answer",
			"at --quant q4", "at peak, first token in"}},
		"memory": {
			[]string{"show", "--n-vis", "0", "--text", "5", "--gen", "7", "--picture", "40x30"},
			[]string{
				"with a picture of 40 x 30, 576 of its 576 tokens, 5 of text and 7 in the answer"}},
		"card":    {[]string{"show", "--card"}, []string{"# Model card", "What it cannot answer"}},
		"methods": {[]string{"methods"}, []string{"NAME", "holov", "divprune", "grid", "2510.02912", "over another method"}},
		"method":  {[]string{"methods", "vispruner"}, []string{"https://", "--vispruner-ratio", "cls_attn, hidden", "even and odd places", "list of odd length", "none of that code is included"}},
		"restore": {[]string{"methods", "restore"}, []string{"distinctive anchors", "--gamma", "Eq. 5", "GPL-3.0"}},
		"version": {[]string{"version"}, []string{"restore ", "kernel "}},
	} {
		r := commandLine(c.args...)
		for _, w := range c.want {
			if r.Code != cli.ExitOK || r.Err != "" ||
				!strings.Contains(clitest.Plain(r.Out), clitest.Plain(w)) {
				t.Errorf("%s: exit %d, stderr %q, lacks %q in %q", name, r.Code, r.Err, w, r.Out)
			}
		}
	}
	for _, args := range [][]string{{"methods", "--json"}, {"methods", "pool", "--json"}} {
		r := commandLine(args...)
		if r.Code != cli.ExitOK || !json.Valid([]byte(r.Out)) ||
			!strings.Contains(r.Out, `"needs_text":false,"reusable":true,"cost":"N·C"`) {
			t.Errorf("%s: exit %d, %q", strings.Join(args, " "), r.Code, r.Out)
		}
	}
	var j struct {
		Quants []struct {
			Quant   string
			Seconds engine.Times
		}
	}
	r := commandLine("show", "--json")
	if err := json.Unmarshal([]byte(r.Out), &j); err != nil || len(j.Quants) < 2 {
		t.Fatalf("show --json: %v in %q", err, r.Out)
	}
	for _, q := range j.Quants {
		if s := q.Seconds; !(s.Encode > 0 && s.Prefill > 0 && s.First > s.Encode && s.Token > 0) {
			t.Errorf("show --json: --quant %q: %+v", q.Quant, s)
		}
	}
}

// Ensure that the parameters of all methods are flags, and that 'restore methods' lists each with
// its variable and its JSON field.
func TestMethodFlags(t *testing.T) {
	flags := newRun(cli.NewApp(thisProgram, nil, nil, nil, nil)).Flags()
	for _, m := range append(methods.Methods(), methods.OnTop()) {
		help := clitest.Plain(commandLine("methods", m.Name).Out)
		for _, p := range m.Parameters {
			f := flags.Lookup(p.Name)
			if f == nil {
				t.Errorf("%s: --%s is no flag of run", m.Name, p.Name)
				continue
			}
			want := "env " + cli.EnvName(f)
			if p.Kind != reduce.File {
				want += ", JSON " + p.JSONName()
			}
			if !strings.Contains(help, want+")") {
				t.Errorf("methods %s: lacks %q of --%s", m.Name, want, p.Name)
			}
		}
	}
}
