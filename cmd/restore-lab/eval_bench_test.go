package main

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/compare"
)

// benchData is a folder of small data sets in the layouts of the hub and of LLaVA.
const benchData = "../../eval/bench/testdata/"

// Ensure that prompts and scores come out as documented, from files and from streams.
func TestEvalBenchmark(t *testing.T) {
	out := filepath.Join(t.TempDir(), "prompts.jsonl")
	r := commandLine("eval", "pope", "--data", benchData+"llava/pope", "--limit", "2",
		"--print-prompts",
		out)
	if r.Code != cli.ExitOK || r.Out+r.Err != "" {
		t.Fatalf("%+v", r)
	}
	got, err := os.ReadFile(out)
	want := `{"id":0,"key":1,"text":"Is there a red diamond in the image?\n` +
		`Answer the question using a single word or phrase.","images":["COCO_val2014_000000131099.jpg"]}`
	if err != nil || !strings.HasPrefix(string(got), want+"\n") ||
		strings.Count(string(got), "\n") != 2 {
		t.Errorf("%v: %s, want %s", err, got, want)
	}

	answers := `{"id": 0, "answer": "No, there is not."}` + "\n" + `{"id": 1, "answer": " no "}` +
		"\n"
	r = with(t.Context(), nil, answers, "eval", "pope", "--data", benchData+"hub", "--protocol",
		"lmms", "--limit", "2", "--answers", "-", "--json")
	var result struct {
		Benchmark, Protocol, Split string
		Questions, Unparsed        int
		Metrics                    map[string]float64
		Scores                     []struct {
			ID     int
			Parsed string
			Score  float64
		}
	}
	if err := json.Unmarshal([]byte(r.Out), &result); err != nil || r.Code != cli.ExitOK ||
		r.Err != "" {
		t.Fatalf("%v: %+v", err, r)
	}
	if result.Benchmark != "pope" || result.Protocol != "lmms" || result.Split != "test" ||
		result.Questions != 2 || result.Unparsed != 1 || result.Metrics["pope_accuracy"] != 0.5 ||
		result.Scores[0].Parsed != "no, there is not." || result.Scores[1].Score != 1 {
		t.Errorf("%s", r.Out)
	}
}

// Ensure that a result says how many questions have no answer, where the benchmark's script leaves
// them out of its figure.
func TestEvalBenchmarkMissing(t *testing.T) {
	answers := `{"id": 0, "answer": "A"}` + "\n" + `{"id": 1, "answer": "A"}`
	r := with(t.Context(), nil, answers, "eval", "scienceqa", "--data", benchData+"llava/scienceqa",
		"--answers", "-")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "44 questions, 42 have no answer\n") {
		t.Errorf("%+v", r)
	}
}

// Ensure that a damaged picture does not end a run before the other questions are answered.
func TestEvalBenchmarkDamaged(t *testing.T) {
	dir, images := t.TempDir(), t.TempDir()
	drawn, err := os.ReadFile(clitest.Drawn(t, 7))
	if err != nil {
		t.Fatal(err)
	}
	cut := "COCO_val2014_000000131099.jpg" // the first question's
	for name, data := range map[string][]byte{
		cut: drawn[:len(drawn)/2], "COCO_val2014_000000131113.jpg": drawn,
	} {
		if err := os.WriteFile(filepath.Join(images, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ask := []string{"eval", "pope", "--data", benchData + "llava/pope", "--images", images,
		"--limit", "2", "--records", dir}
	r := commandLine(ask...)
	if r.Code != cli.ExitFailure || r.Out != "" || !strings.Contains(r.Err, "1 of 2 questions "+
		"have no answer, since their pictures are damaged: ") || !strings.Contains(r.Err, cut) ||
		!strings.Contains(r.Err, "the other answers are in "+dir) {
		t.Errorf("got %+v", r)
	}
	if err := os.WriteFile(filepath.Join(images, cut), drawn, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := commandLine(ask...); r.Code != cli.ExitOK || !strings.Contains(r.Out, ": 2 questions") {
		t.Errorf("with the picture mended: got %+v", r)
	}
}

// Ensure that a split without public answers gives the submission file and no figure.
func TestEvalBenchmarkSubmission(t *testing.T) {
	file := filepath.Join(t.TempDir(), "upload.json")
	var answers strings.Builder
	for i := range 8 {
		answers.WriteString(`{"id": ` + string(rune('0'+i)) + `, "answer": "The red."}` + "\n")
	}
	r := with(t.Context(), nil, answers.String(), "eval", "vqav2", "--data",
		benchData+"llava/vqav2", "--answers", "-", "--submission", file, "--json")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, `"metrics":{}`) ||
		!strings.Contains(r.Out, `"score":null`) {
		t.Fatalf("%+v", r)
	}
	var upload []struct {
		ID     int `json:"question_id"`
		Answer string
	}
	data, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(data, &upload) != nil || len(upload) != 15 {
		t.Fatalf("%v: %s", err, data)
	}
	asked := 0
	for _, u := range upload {
		if u.Answer == "red" {
			asked++
		}
	}
	if asked != 8 { // the other seven ids of test were not asked
		t.Errorf("%d answers: %s", asked, data)
	}
}

// Ensure that the default file of a submission replaces none of another run.
func TestEvalBenchmarkSubmissions(t *testing.T) {
	data, err := filepath.Abs(benchData + "llava/vqav2")
	if err != nil {
		t.Fatal(err)
	}
	drawn, err := os.ReadFile(clitest.Drawn(t, 7))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	prompts := commandLine("eval", "vqav2", "--data", data, "--limit", "1", "--print-prompts", "-")
	var first struct{ Images []string }
	if err := json.Unmarshal([]byte(prompts.Out), &first); err != nil {
		t.Fatalf("%v: %+v", err, prompts)
	}
	if err := os.WriteFile(first.Images[0], drawn, 0o600); err != nil {
		t.Fatal(err)
	}
	runs := [][]string{{"--base", "none"}, {"--base", "grid", "--n-vis", "64"}, {"--base", "none"}}
	for _, how := range runs {
		r := commandLine(append([]string{"eval", "vqav2", "--data", data, "--images", ".",
			"--limit", "1"}, how...)...)
		if r.Code != cli.ExitOK {
			t.Fatalf("%v: %+v", how, r)
		}
	}
	files, err := filepath.Glob("vqav2-testdev-paper-*-submission.json")
	if err != nil || len(files) != 2 {
		t.Errorf("got %q, %v, want a file for each of two runs", files, err)
	}
	score := func() clitest.Result {
		return with(t.Context(), nil, `{"id": 0, "answer": "x"}`, "eval", "vqav2", "--data", data, "--limit", "1",
			"--answers", "-")
	}
	if r := score(); r.Code != cli.ExitOK {
		t.Errorf("got %+v", r)
	}
	if r := score(); r.Code != cli.ExitUsage || !strings.Contains(r.Err,
		"--submission: missing, and vqav2-testdev-submission.json exists, want another file") {
		t.Errorf("again: got %+v", r)
	}
}

// Ensure that errors are one line, with file, row and column if they are about a cell.
func TestEvalBenchmarkErrors(t *testing.T) {
	broken := t.TempDir()
	row := `{"question_id": "%", "image": "a.jpg", "text": "Red?\nAnswer the question using a single word or phrase."}`
	text := strings.Replace(row, "%", "1",
		1) + "\n" + `{"question_id": "2", "image": "a.jpg"}` + "\n"
	if err := os.WriteFile(filepath.Join(broken, "llava_gqa_testdev_balanced.jsonl"), []byte(text),
		0o600); err != nil {
		t.Fatal(err)
	}
	empty := t.TempDir()
	for name, c := range map[string]struct {
		code int
		want string
		args []string
	}{
		"column": {cli.ExitFailure, `llava_gqa_testdev_balanced.jsonl: row 1 (line 2), column "text": missing`,
			[]string{"gqa", "--data", broken, "--print-prompts", "-"}},
		"split": {cli.ExitUsage, `--split: got dev, want testdev`, []string{"gqa", "--data", broken, "--split", "dev", "--print-prompts", "-"}},
		"split that is not there": {cli.ExitFailure, `split "test": no parquet files of it, got default/dev`,
			[]string{
				"mmbench-en", "--data", benchData + "hub/lmms-lab/MMBench_EN", "--split", "test", "--print-prompts", "-",
			}},
		"protocol": {cli.ExitUsage, `--protocol: got "x", want paper|lmms`, []string{"gqa", "--data", broken, "--protocol", "x", "--print-prompts", "-"}},
		"no data":  {cli.ExitUsage, `--data: missing`, []string{"gqa", "--print-prompts", "-"}},
		"no files": {cli.ExitFailure, "no parquet files of lmms-lab/GQA, and no LLaVA question file", []string{"gqa", "--data", empty, "--print-prompts", "-"}},
		"no truth": {cli.ExitFailure, "testdev_balanced_questions.json: not there", []string{"gqa", "--data", broken, "--answers", "-"}},
		"limit":    {cli.ExitUsage, "--limit: out of range, got 0", []string{"gqa", "--data", broken, "--limit", "0", "--print-prompts", "-"}},
		"shard":    {cli.ExitUsage, "--shard: cannot be used, got \"3/2\"", []string{"gqa", "--data", broken, "--shard", "3/2", "--print-prompts", "-"}},
		"missing":  {cli.ExitFailure, "45 of 45 questions have no answer, the first is id 0 (key 281819060)", []string{"gqa", "--data", benchData + "hub", "--answers", "-"}},
		"judge":    {cli.ExitUsage, "--judge: has no use with --protocol paper", []string{"mmbench-en", "--data", benchData + "hub", "--judge", "http://x", "--answers", "-"}},
	} {
		r := commandLine(append([]string{"eval"}, c.args...)...)
		line, rest, _ := strings.Cut(r.Err, "\n")
		if r.Code != c.code || !strings.Contains(line, c.want) ||
			c.code == cli.ExitFailure && rest != "" ||
			r.Out != "" {
			t.Errorf("%s: %+v, want %d and %q", name, r, c.code, c.want)
		}
	}
	for want, in := range map[string]string{
		"stdin: line 2: id 0 is answered twice":                `{"id":0,"answer":"a"}` + "\n" + `{"id":0,"answer":"b"}`,
		`stdin: line 1: "id": got string, want a whole number`: `{"id":"0","answer":"a"}`,
		"stdin: line 1: got array, want an object":             `[0,"a"]`,
		`stdin: line 1: no "answer"`:                           `{"id":0,"answer":null}`,
		`stdin: line 1: no "id"`:                               `{"answer":"x"}`,
		"stdin: line 1: ":                                      `{"id":`,
		"1 answers are to ids that are not":                    `{"id":99,"answer":"x"}`,
	} {
		r := with(t.Context(), nil, in, "eval", "scienceqa", "--data", benchData+"llava/scienceqa",
			"--answers", "-")
		if r.Code != cli.ExitFailure || !strings.Contains(r.Err, want) {
			t.Errorf("%s: %+v, want %q", in, r, want)
		}
	}
}

// Ensure that a run that is killed ten times, as a process, gives the same answers and result as an
// undisturbed one, with any number of parallel pictures.
func TestEvalBenchmarkKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a dozen processes")
	}
	args := func(dir string, more ...string) []string {
		return append(
			[]string{"eval", "pope", "--data", benchData + "hub", "--base", "grid", "--n-vis", "64",
				"--json", "--records", dir},
			more...)
	}
	whole, killed := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	want := commandLine(args(whole, "--threads", "1")...)
	if want.Code != cli.ExitOK {
		t.Fatalf("%+v", want)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 10 {
		cmd := process(args(killed, "--parallel", "3")...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(50+random.IntN(350)) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
	}
	got := commandLine(args(killed, "--threads", "2")...)
	if got.Code != cli.ExitOK || strings.ReplaceAll(got.Out, killed, whole) != want.Out {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	answers := func(dir string) map[int]string {
		r, err := eval.ReadRecords(dir)
		if err != nil {
			t.Fatal(err)
		}
		out := map[int]string{}
		for _, x := range r.List {
			out[x.ID] = x.Text + "\x00" + x.Finish
		}
		return out
	}
	if a, b := answers(whole), answers(killed); len(a) != 46 || !maps.Equal(a, b) {
		t.Errorf("%d and %d answers, or other ones", len(a), len(b))
	}
}

// Ensure that flags of another way to use the command are refused.
func TestEvalBenchmarkFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--base: has no use with --print-prompts, got holov":  {"--print-prompts", "-", "--base", "holov"},
		"--model: has no use with --answers, got x":           {"--answers", "-", "-m", "x"},
		"--answers: has no use with --print-prompts, got -":   {"--print-prompts", "-", "--answers", "-"},
		"--lmms-out: has no use with --protocol paper, got x": {"--lmms-out", "x"},
		"--quant: has no use with --openai, got q4":           {"--openai", "http://x", "--quant", "q4"},
		"--mixed: has no use without --nats":                  {"--mixed"},
		"--model: missing, want the name that the server":     {"--openai", "http://x"},
		"--parallel: out of range, got 0":                     {"--parallel", "0"},
		"--submission: pope has no such file, got x":          {"--answers", "-", "--submission", "x"},
		"--seed: has no use without --base random, got 3":     {"--seed", "3"},
		"--n-vis: missing, want a budget of tokens for holov": {"--base", "holov"},
	} {
		r := commandLine(append([]string{"eval", "pope", "--data", benchData + "hub"}, args...)...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: %+v, want %q", args, r, want)
		}
	}
}

// Ensure that recorded runs are compared in every format, and plotted.
func TestEvalCompare(t *testing.T) {
	dirs := []string{filepath.Join(t.TempDir(), "full"), filepath.Join(t.TempDir(), "grid")}
	for i, how := range [][]string{nil, {"--base", "grid", "--n-vis", "64", "--restore=false"}} {
		args := append(
			[]string{
				"eval",
				"pope",
				"--data",
				benchData + "hub",
				"--limit",
				"12",
				"--records",
				dirs[i],
			},
			how...)
		if r := commandLine(args...); r.Code != cli.ExitOK {
			t.Fatalf("%+v", r)
		}
	}
	plot := filepath.Join(t.TempDir(), "p.svg")
	empty := filepath.Join(t.TempDir(), "empty") // as a run leaves it that had no answer
	if err := errors.Join(os.CopyFS(empty, os.DirFS(dirs[0])),
		os.Truncate(filepath.Join(empty, "records.jsonl"), 0)); err != nil {
		t.Fatal(err)
	}
	none := commandLine("eval", "compare", empty, dirs[0], dirs[1])
	if none.Code != cli.ExitOK || !strings.Contains(none.Out, "against unreduced\ngrid 64") ||
		!strings.HasSuffix(none.Err, "empty: holds no answer, left out\n") {
		t.Errorf("%+v", none)
	}
	for format, want := range map[string]string{
		"text": "grid 64", "markdown": "| grid 64 |", "csv": "grid 64,f1,",
		"latex": "grid 64 & f1 &", "json": `"run":"grid 64"`} {
		r := commandLine("eval", "compare", dirs[0], dirs[1], "--format", format, "--plot", plot)
		if r.Code != cli.ExitOK || !strings.Contains(r.Out, want) || r.Err != "" {
			t.Errorf("%s: %+v, want %q", format, r, want)
		}
	}
	if data, err := os.ReadFile(plot); err != nil || !strings.Contains(string(data), "</svg>") {
		t.Errorf("%v, %d bytes", err, len(data))
	}
	// The variable of the benchmarks' --split is another one.
	env := map[string]string{"RESTORE_SPLIT": "random", "RESTORE_COMPARE_SPLIT": "grid"}
	r := with(t.Context(), env, "", "eval", "compare", dirs[0], dirs[1])
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, "that grid 64 answers") {
		t.Errorf("%+v", r)
	}
	for format, want := range map[string]string{
		"text": "that grid 64 answers", "markdown": "| unreduced |",
		"json": `"by":"grid 64","visual_tokens":64,`,
	} {
		r := commandLine("eval", "compare", dirs[0], dirs[1], "--split", "grid", "--format", format)
		if r.Code != cli.ExitOK || !strings.Contains(r.Out, want) || r.Err != "" {
			t.Errorf("--split: %s: %+v, want %q", format, r, want)
		}
	}
	for want, args := range map[string][]string{
		"--split: got \"x\"":                 {dirs[0], dirs[1], "--split", "x"},
		"no run of downsample alone":         {dirs[0], dirs[1], "--split", "downsample"},
		"--plot: has no use with --split":    {dirs[0], dirs[1], "--split", "grid", "--plot", plot},
		"got 1 folder(s), want at least two": {dirs[0]},
		"x: no such file or folder":          {dirs[0], "x"},
	} {
		if r := commandLine(append([]string{"eval", "compare"},
			args...)...); r.Code == cli.ExitOK ||
			!strings.Contains(r.Err, want) {
			t.Errorf("%+v, want %q", r, want)
		}
	}
	unknownCounts(t, dirs[1])
	if r := commandLine("eval", "compare", dirs[0], dirs[1], "--plot", plot); r.Code != cli.ExitOK {
		t.Errorf("%+v", r)
	}
	if data, err := os.ReadFile(plot); err != nil || strings.Contains(string(data), "NaN") {
		t.Errorf("a plot with a run whose tokens are not known: %v\n%s", err, data)
	}
	unknownCounts(t, dirs[0])
	r = commandLine("eval", "compare", dirs[0], dirs[1])
	if r.Code != cli.ExitOK || strings.Contains(r.Out, " 0.0 ") {
		t.Errorf("%+v, want no visual tokens", r)
	}
	r = commandLine("eval", "compare", dirs[0], dirs[1], "--plot", plot)
	if want := "--plot: want runs whose server"; r.Code != cli.ExitUsage ||
		!strings.Contains(r.Err, want) {
		t.Errorf("%+v", r)
	}
}

// Ensure that a line of a plot goes from few tokens to many, whatever the order of the folders.
func TestRetainedPanels(t *testing.T) {
	c := &compare.Comparison{Retained: []compare.Retained{
		{Line: "grid", After: 64, FirstToken: 2, Percent: 80},
		{Line: "grid", After: 16, FirstToken: 1, Percent: 60},
		{Line: "unreduced", After: 576, FirstToken: 9, Percent: 100},
		{Line: "grid", After: 192, FirstToken: 4, Percent: 90},
	}}
	panels := retainedPanels(c)
	for i, want := range [][]float64{{16, 64, 192}, {1, 2, 4}} {
		s := panels[i].Series[0]
		if s.Name != "grid" || !slices.Equal(s.X, want) ||
			!slices.Equal(s.Y, []float64{60, 80, 90}) {
			t.Errorf("%+v, want x %v", s, want)
		}
	}
}

// unknownCounts changes the records of a run as if its server reported neither visual tokens nor
// times.
func unknownCounts(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "records.jsonl")
	data, err := os.ReadFile(path)
	if err == nil {
		known := regexp.MustCompile(`"(before|after|encode|first_token)":[^,}]+`)
		err = os.WriteFile(path, known.ReplaceAll(data, []byte(`"$1":0`)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
