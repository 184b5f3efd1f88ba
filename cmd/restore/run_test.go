package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	api "github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/scene"
)

// number is a question whose answer the embedded model reads off the plate of scene 7.
const (
	number       = "What number is written?"
	numberAnswer = "82"
	numberSeed   = 7
)

// Ensure that only the answer goes to stdout and the report to stderr, and that 64 of 576 tokens
// are the default.
func TestRun(t *testing.T) {
	r := cli("run", "--image", drawn(t, numberSeed), "-p", number)
	if r.code != exitOK || r.out != numberAnswer+"\n" {
		t.Errorf("exit %d, stdout %q, stderr %q, want %q", r.code, r.out, r.err, numberAnswer)
	}
	for _, want := range []string{
		"576 -> 32 kept + 32 merged", "RESTORE over holov, n-vis 64, gamma 0.5", "prepare", "encode", "select", "merge",
		"prefill", "first token", "tokens/s", "MB at peak"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("the table lacks %q:\n%s", want, r.err)
		}
	}
	if strings.ContainsAny(r.err, "\r\x1b") {
		t.Errorf("stderr off a terminal holds control characters: %q", r.err)
	}
}

// Ensure that --base none reads every token, and that a question without a picture is answered.
func TestRunWithoutReduction(t *testing.T) {
	r := cli("run", "--image", drawn(t, numberSeed), "-p", number, "--base", "none")
	if r.code != exitOK || r.out != numberAnswer+"\n" ||
		!strings.Contains(r.err, "576, not reduced") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	if r = cli("run", "-p", "Hello", "-n", "3"); r.code != exitOK ||
		strings.Contains(r.err, "visual") {
		t.Errorf("text only: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

// Ensure that --json prints one object with everything, and nothing on stderr.
func TestRunJSON(t *testing.T) {
	a, b := drawn(t, numberSeed), drawn(t, 8)
	kept := filepath.Join(t.TempDir(), "kept.png")
	r := cli("run", "--image", a, "--image", b, "-p", number, "--base", "divprune", "--n-vis",
		"128", "--overlay", kept, "--json")
	var j answerJSON
	d := json.NewDecoder(strings.NewReader(r.out))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); r.code != exitOK || r.err != "" || err != nil ||
		strings.Count(r.out, "\n") != 1 {
		t.Fatalf("exit %d, stdout %q, stderr %q, %v", r.code, r.out, r.err, err)
	}
	if len(j.Images) != 2 || j.Images[0].File != a || j.VisualTokens.Before != 2*576 ||
		j.VisualTokens.Kept != 128 || j.VisualTokens.Merged != 128 ||
		len(j.Tokens) == 0 || j.Answer == "" || j.Finish == "" || j.PeakRSS < 0 ||
		j.PromptTokens < 256 || j.Times["first_token"] <= 0 ||
		j.Encoder == nil || *j.Encoder != (engine.Encoder{Type: "stored"}) {
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
	picture := drawn(t, 12)
	for _, flags := range [][]string{
		nil, {"--temp", "1.5", "--seed", "4", "--top-k", "0", "--top-p", "1", "--min-p", "0"},
	} {
		var first string
		for _, threads := range []string{"1", "2", "2"} {
			r := cli(
				append(
					[]string{
						"run", "--image", picture, "-p", "Describe the image.", "-n", "20", "--threads", threads,
					}, flags...)...)
			if first == "" {
				first = r.out
			}
			if r.code != exitOK || r.out != first || !utf8.ValidString(r.out) {
				t.Errorf("%v with %s threads: exit %d, stdout %q, want %q", flags, threads, r.code,
					r.out, first)
			}
		}
	}
}

// Ensure that without -p each line of the input is a question, that pictures can be added, and that
// earlier tokens are reused.
func TestConversation(t *testing.T) {
	second := drawn(t, 8)
	in := "\n" + number + "\n\n" + number + "\n/image " + second + "\n" + number +
		"\n/exit\nnot asked\n"
	r := with(context.Background(), nil, in, "run", "--image", drawn(t, numberSeed))
	answers := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	if r.code != exitOK || len(answers) != 3 || answers[0] != numberAnswer {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	if strings.Contains(r.err, "> ") && strings.Contains(r.err, "\n> ") ||
		strings.Count(r.err, "of them cached") != 2 ||
		strings.Count(r.err, "576 -> 32 kept") != 2 {
		t.Errorf("stderr %q", r.err)
	}
	r = with(context.Background(), nil, number+"\n"+number, "run", "--json", "--image", second)
	if lines := strings.Split(strings.TrimSpace(r.out), "\n"); r.code != exitOK ||
		len(lines) != 2 || !json.Valid([]byte(lines[1])) {
		t.Errorf("json: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	for line, want := range map[string]string{
		"/image no/such.png":           "no/such.png: no such file",
		"/image -\n" + number:          "/image: -: is stdin, which holds the questions of the conversation, want a file",
		"/hepl":                        `unknown command, got "/hepl", want /image|/drop|/undo|/clear|/set|/save|/help|/exit, did you mean /help?`,
		strings.Repeat("x", maxLine+1): "question too long",
	} {
		if r = with(context.Background(), nil, line+"\n", "run"); r.code != exitFailure ||
			!strings.Contains(r.err, want) {
			t.Errorf("%.20q: exit %d, stderr %q, want %q", line, r.code, r.err, want)
		}
	}
}

// Ensure that a method inside the decoder reports and draws its stages, and that the report about a
// later question says that the choice was made for the first.
func TestInsideTheDecoder(t *testing.T) {
	dir := t.TempDir()
	stages, kept := filepath.Join(dir, "stages.png"), filepath.Join(dir, "kept.png")
	r := with(context.Background(), nil, number+"\n"+number+"\n", "run", "--image",
		drawn(t, numberSeed), "--base", "pdrop", "--n-vis", "192",
		"--overlay", kept, "--overlay-stages", stages)
	if r.code != exitOK || r.out != numberAnswer+"\n"+numberAnswer+"\n" {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	for _, want := range []string{
		"RESTORE over pdrop, schedule 1:231,2:115,4:57 (191.8 of 576 tokens a layer), gamma 0.5, positions original",
		"chosen before  1 of the pictures: their tokens were chosen for the question " +
			"they came with"} {
		if strings.Count(r.err, want) != 1 {
			t.Errorf("stderr holds %q not once:\n%s", want, r.err)
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
	r = cli("run", "--image", drawn(t, numberSeed), "-p", number, "--base", "fastv", "--schedule",
		"1:0.5,3:40", "--restore=false", "--json")
	var j answerJSON
	if err := json.Unmarshal([]byte(r.out), &j); err != nil || r.code != exitOK ||
		j.Images[0].Kept != 40 || j.Images[0].Mean != 212 || j.VisualTokens.Mean != 212 ||
		j.Method != "fastv, schedule 1:288,3:40 (212 of 576 tokens a layer), positions original" {
		t.Errorf("exit %d, %v, stdout %q, stderr %q", r.code, err, r.out, r.err)
	}
}

// Ensure that two stages are reported and drawn, and that a later question finds the picture read.
func TestTwoStages(t *testing.T) {
	stages := filepath.Join(t.TempDir(), "stages.png")
	r := with(context.Background(), nil, number+"\n"+number+"\n", "run", "--json", "--image",
		drawn(t, numberSeed), "--two-stages", "--n-vis", "32", "--overlay-stages", stages)
	var j [2]answerJSON
	lines := strings.SplitN(r.out, "\n", 2)
	for i := range j {
		if err := json.Unmarshal([]byte(lines[i]), &j[i]); err != nil {
			t.Fatalf("exit %d, %v, stdout %q, stderr %q", r.code, err, r.out, r.err)
		}
	}
	want := api.VisualTokens{Before: 576, Merged: 24, Mean: 32}
	if j[0].Answer != numberAnswer || j[1].Answer != numberAnswer ||
		j[0].VisualTokens.VisualTokens != want || j[1].ChosenBefore != 0 ||
		j[1].CachedTokens < 48 || j[1].Times["select"] != 0 {
		t.Errorf("first %+v\nsecond %+v", j[0], j[1])
	}
	f, err := os.ReadFile(stages)
	if err != nil {
		t.Fatal(err)
	}
	if im, err := png.Decode(bytes.NewReader(f)); err != nil || im.Bounds().Dx() < 2*24*28 {
		t.Errorf("drawing of both stages: %v, %v", im.Bounds(), err)
	}
}

// Ensure that a folder with only config.json and weights can be traced with a method inside the
// decoder, under the reference's names.
func TestTraceInsideTheDecoder(t *testing.T) {
	from := filepath.Join("..", "..", "internal", "engine", "testdata", "inmodel-tiny")
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out.safetensors")
	for flags, names := range map[string][]string{
		"--schedule 2:0.3333333333333333 --restore=false --compat released":  {"stage.0.score", "stage.0.keep", "stage.0.keep_original"},
		"--schedule 2:12 --compat paper --gamma 0.5 --decode-distance=false": {"stage.0.score", "stage.0.kept", "stage.0.size", "stage.0.position"},
	} {
		r := cli(
			append(
				[]string{
					"trace", "-m", dir, "--in", filepath.Join(from, "prompt.ref"), "--tokens", "3", "--out", out, "--base", "fastv",
				}, strings.Fields(flags)...)...)
		if r.code != exitOK {
			t.Fatalf("%s: exit %d, stderr %q", flags, r.code, r.err)
		}
		f, err := checkpoint.OpenSafetensors(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(names, "gen.tokens", "gen.logits", "cache.len") {
			if f.Tensors[name] == nil {
				t.Errorf("%s: no %s", flags, name)
			}
		}
		lens, err := f.Tensors["cache.len"].Int64s()
		if err != nil || fmt.Sprint(lens) != "[52 52 28 28 28 28 28 28]" {
			t.Errorf("%s: keys per layer: %v, %v", flags, lens, err)
		}
		f.Close()
	}
}

// Ensure that a cancelled answer shows its text so far, says so, and fails.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	a := &app{
		in: strings.NewReader(""), err: new(bytes.Buffer), getenv: func(string) string {
			return ""
		},
	}
	a.out = writerFunc(func(p []byte) (int, error) {
		cancel() // at the first piece of the answer
		return len(p), nil
	})
	code := execute(ctx, a, []string{"run", "--image", drawn(t, 12), "-p", "Describe the image."})
	got := fmt.Sprint(a.err)
	if code != exitFailure || !strings.Contains(got, "visual tokens") ||
		!strings.Contains(got, ", interrupted") ||
		!strings.HasSuffix(got, "restore: run: interrupted, the answer is not complete\n") {
		t.Errorf("exit %d, stderr %q", code, got)
	}
	r := with(ctx, nil, "question\n", "run")
	if r.out != "" || strings.Count(r.err, "\n") > 1 {
		t.Errorf("conversation after Ctrl-C: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Ensure that a trace can be the input of a trace, then gives the same tensors, and contains a
// reduction only if one is requested.
func TestTrace(t *testing.T) {
	dir, picture := t.TempDir(), drawn(t, numberSeed)
	trace := func(name string, args ...string) []byte {
		t.Helper()
		file := filepath.Join(dir, name)
		if r := cli(append([]string{"trace", "--out", file}, args...)...); r.code != exitOK ||
			r.out+r.err != "" {
			t.Fatalf("%v: exit %d, stdout %q, stderr %q", args, r.code, r.out, r.err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	full := trace("a", "--image", picture, "-p", number, "--tokens", "3")
	if !bytes.Equal(full, trace("b", "--in", filepath.Join(dir, "a"), "--tokens", "3")) {
		t.Error("a trace that is fed back gives another trace")
	}
	reduced := trace("c", "--in", filepath.Join(dir, "a"), "--base", "holov", "--n-vis", "64")
	for _, c := range []struct {
		what        string
		file        []byte
		has, hasNot []string
	}{
		{"unreduced", full, []string{"input_ids", "pixel_values", "vision.selected", "projector.out", "embeds", "logits", "gen.tokens", "gen.logits"},
			[]string{"reduce.kept"}},
		{"reduced", reduced, []string{"logits", "reduce.kept", "reduce.anchors", "reduce.group", "reduce.size", "reduce.position", "reduce.features"},
			[]string{"gen.tokens"}},
	} {
		tensors, err := checkpoint.ReadSafetensors(c.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.has {
			if tensors[name] == nil {
				t.Errorf("%s: lacks %s", c.what, name)
			}
		}
		for _, name := range c.hasNot {
			if tensors[name] != nil {
				t.Errorf("%s: holds %s", c.what, name)
			}
		}
	}
}

// Ensure that a packed file can replace a model's folder, and that a torn file is refused and
// leaves no other file behind.
func TestPack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.rst")
	if r := cli("pack", "--quant", "q8", "--encoder-quant", "q8", "-o", file); r.code != exitOK ||
		!strings.HasPrefix(r.out, file+"  ") || r.err != "" {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	pic := drawn(t, numberSeed)
	if r := cli("run", "-m", file, "--image", pic, "-p", number); r.code != exitOK ||
		r.out != numberAnswer+"\n" {
		t.Errorf("exit %d, stdout %q, stderr %q, want %q", r.code, r.out, r.err, numberAnswer)
	}
	if r := cli("show", "-m", file); r.code != exitOK || !strings.Contains(r.out, "F32, Q8") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	if r := cli("eval", "scenes", "-m", file, "--n", "1"); r.code != exitOK ||
		!strings.Contains(r.out, "keeps") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	if r := cli("run", "-m", file, "--quant", "q4", "-p", "?"); r.code != exitFailure ||
		!strings.Contains(r.err, `quant: got "q4", want none or the packed type of builtin, q8`) {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
	if err := os.Truncate(file, 1<<20); err != nil {
		t.Fatal(err)
	}
	if r := cli("run", "-m", file, "-p", "?"); r.code != exitFailure ||
		!strings.Contains(r.err, "torn") || strings.Count(r.err, "\n") != 1 {
		t.Errorf("torn: exit %d, stderr %q", r.code, r.err)
	}
	if r := cli("pack", "-m", filepath.Dir(pic), "-o", file); r.code != exitFailure || r.out != "" {
		t.Errorf("no model: exit %d, stdout %q", r.code, r.out)
	}
	if left, err := os.ReadDir(filepath.Dir(file)); err != nil || len(left) != 1 {
		t.Errorf("files left: %v %v", left, err)
	}
}

// Ensure that a scene's questions and answers are printed, one per line, and that its picture is
// the scene's.
func TestScene(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scene.png")
	r := cli("scene", "--seed", "7", "-o", file)
	want := ""
	for _, q := range scene.New(7).Questions() {
		want += q.Task + "\t" + q.Text + "\t" + q.Answer + "\n"
	}
	if r.code != exitOK || r.out != want || r.err != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	a, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(drawn(t, 7))
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("the picture is not the scene's (%v)", err)
	}
}

// Ensure that eval quant prints a line for every plan, and one object as JSON.
func TestEvalQuant(t *testing.T) {
	r := cli("eval", "quant", "--n", "1", "--plans", "q8,q4+q8")
	if r.code != exitOK || r.err != "" || strings.Count(r.out, "\n") != 5 ||
		!strings.Contains(r.out, "as stored") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	r = cli("eval", "quant", "--n", "1", "--plans", "f32", "--base", "none", "--json")
	var j struct {
		Rows []struct {
			Quant  string
			Change struct{ Lost, Gained int }
		}
	}
	if err := json.Unmarshal([]byte(r.out), &j); err != nil || len(j.Rows) != 1 ||
		j.Rows[0].Quant != "f32" || j.Rows[0].Change.Lost+j.Rows[0].Change.Gained != 0 {
		t.Errorf("exit %d, stdout %q, stderr %q: %v", r.code, r.out, r.err, err)
	}
	for _, plan := range []string{"q5", "q4+q4", "+q8", ""} {
		if r := cli("eval", "quant", "--plans", plan); r.code != exitUsage ||
			!strings.Contains(r.err, "--plans: ") {
			t.Errorf("%q: exit %d, stderr %q", plan, r.code, r.err)
		}
	}
}

// Ensure that the benchmark prints both accuracies as a table and as one JSON object.
func TestEvalScenes(t *testing.T) {
	r := cli("eval", "scenes", "--n", "2")
	if r.code != exitOK || r.err != "" || !strings.Contains(r.out, "unreduced") ||
		!strings.Contains(r.out, "all") {
		t.Errorf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	r = cli("eval", "scenes", "--n", "2", "--base", "grid", "--restore=false", "--distance",
		"--json")
	var j struct {
		Questions     map[string]int
		Full, Reduced map[string]float64
		Distance      float64
	}
	if err := json.Unmarshal([]byte(r.out), &j); r.code != exitOK || err != nil ||
		!(j.Distance > 0.05 && j.Distance < 1) || j.Full["all"] <= j.Reduced["all"] ||
		j.Reduced["vs_full"] == 0 {
		t.Errorf("exit %d, stdout %q, stderr %q, %v", r.code, r.out, r.err, err)
	}
}

// Ensure that a model, the methods and the version are described.
func TestDescriptions(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"embedded": {[]string{"show"}, []string{"LlavaForConditionalGeneration", "4.1 million", "text layers", "# Model card",
			"memory at peak", "64 of its 576 tokens, 60 of text and 32 in the answer",
			"at --quant q4", "at peak, first token in"}},
		"memory": {
			[]string{"show", "--n-vis", "0", "--text", "5", "--gen", "7", "--picture", "40x30"},
			[]string{
				"with a picture of 40 x 30, 576 of its 576 tokens, 5 of text and 7 in the answer"}},
		"methods": {[]string{"methods"}, []string{"NAME", "holov", "divprune", "grid", "2510.02912", "over another method"}},
		"method":  {[]string{"methods", "vispruner"}, []string{"https://", "--vispruner-ratio", "cls_attn, hidden", "even and odd places", "list of odd length", "none of that code is included"}},
		"restore": {[]string{"methods", "restore"}, []string{"distinctive anchors", "--gamma", "Eq. 5", "GPL-3.0"}},
		"version": {[]string{"version"}, []string{"restore ", "kernel "}},
	} {
		r := cli(c.args...)
		for _, w := range c.want {
			if r.code != exitOK || r.err != "" || !strings.Contains(r.out, w) {
				t.Errorf("%s: exit %d, stderr %q, lacks %q in %q", name, r.code, r.err, w, r.out)
			}
		}
	}
	for _, args := range [][]string{{"methods", "--json"}, {"methods", "pool", "--json"}} {
		r := cli(args...)
		if r.code != exitOK || !json.Valid([]byte(r.out)) || !strings.Contains(r.out, `"needs_text":false,"reusable":true,"cost":"N·C"`) {
			t.Errorf("%s: exit %d, %q", strings.Join(args, " "), r.code, r.out)
		}
	}
	var j struct {
		Quants []struct {
			Quant   string
			Seconds lab.Times
		}
	}
	r := cli("show", "--json")
	if err := json.Unmarshal([]byte(r.out), &j); err != nil || len(j.Quants) < 2 {
		t.Fatalf("show --json: %v in %q", err, r.out)
	}
	for _, q := range j.Quants {
		if s := q.Seconds; !(s.Encode > 0 && s.Prefill > 0 && s.First > s.Encode && s.Token > 0) {
			t.Errorf("show --json: --quant %q: %+v", q.Quant, s)
		}
	}
}

// Ensure that the parameters of all methods are flags, and that --help shows each with the default
// in the list.
func TestMethodFlags(t *testing.T) {
	help := cli("run", "--help").out
	for _, m := range append(methods.Methods(), methods.OnTop()) {
		for _, p := range m.Parameters {
			if !strings.Contains(help, "--"+p.Name+" ") &&
				!strings.Contains(help, "--"+p.Name+"\n") {
				t.Errorf("%s: --%s is no flag of run", m.Name, p.Name)
			}
		}
	}
}
