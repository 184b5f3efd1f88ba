package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// result is the output and exit code of a command line.
type result struct {
	code     int
	out, err string
}

// with runs a command line in process, with an environment and an input.
func with(ctx context.Context, env map[string]string, in string, args ...string) result {
	var out, errOut bytes.Buffer
	a := &app{
		in: strings.NewReader(in), out: &out, err: &errOut, getenv: func(k string) string {
			return env[k]
		},
	}
	code := execute(ctx, a, args)
	return result{code, out.String(), errOut.String()}
}

// cli runs a command line with an empty environment and no input.
func cli(args ...string) result { return with(context.Background(), nil, "", args...) }

// drawn writes the scene of a seed into a folder of the test.
func drawn(t *testing.T, seed int64) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scene.png")
	if r := cli("scene", "--seed", strconv.FormatInt(seed, 10), "-o", file); r.code != exitOK {
		t.Fatal(r.err)
	}
	return file
}

// written writes a file into a folder of the test.
func written(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// filled makes a file with fill's output.
func filled(t *testing.T, file string, fill func(io.Writer) error) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fill(f), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Ensure that every error in a command line gives exit code 2, one line with the reason, and a hint
// at the help.
func TestUsageErrors(t *testing.T) {
	picture := drawn(t, 7)
	for name, c := range map[string]struct {
		args []string
		want string // part of the first line
	}{
		"unknown command":         {[]string{"rum"}, `unknown command, got "rum", want run|`},
		"unknown with flags":      {[]string{"atention", "--image", "x"}, `unknown command, got "atention", want run|`},
		"flag written out":        {[]string{"run", "-p", "?", "--temperature", "1"}, "unknown flag: --temperature, did you mean --temp?"},
		"unknown below":           {[]string{"bench", "kernals", "--m", "1"}, `unknown command, got "kernals", want kernels|methods|sequences, did you mean kernels?`},
		"unknown subcommand":      {[]string{"inspect", "token"}, `want tokens|chat|image`},
		"no subcommand":           {[]string{"eval"}, "eval: no command given"},
		"unknown flag":            {[]string{"run", "--imagee", "x"}, "unknown flag: --imagee"},
		"fps alone":               {[]string{"run", "-p", "?", "--fps", "3"}, "--fps: has no use without --video-frames, got 3"},
		"no fps":                  {[]string{"run", "-p", "?", "--video-frames", picture, "--fps", "0"}, "--fps: out of range, got 0"},
		"frames both ways":        {[]string{"run", "-p", "?", "--video-frames", picture, "--video-frames", picture, picture}, "--video-frames: repeated"},
		"overlay of a video":      {[]string{"run", "-p", "?", "--video-frames", picture, picture, "--overlay", "x.png"}, "--overlay: cannot be drawn with --video-frames, got 2"},
		"argument":                {[]string{"run", picture}, "run: unexpected argument"},
		"not a number":            {[]string{"run", "--n-vis", "many"}, `--n-vis: got "many", want a whole number`},
		"both budgets":            {[]string{"run", "--image", picture, "-p", "?", "--n-vis", "64", "--keep-ratio", "0.1"}, "--n-vis: got 64, want one budget (keep-ratio 0.1 is given too)"},
		"no token":                {[]string{"run", "-p", "?", "--n-vis", "0"}, "--n-vis: got 0, want at least 1"},
		"no token over PruMerge":  {[]string{"run", "-p", "?", "--base", "prumerge", "--n-vis", "0"}, "--n-vis: got 0, want at least 1"},
		"no share":                {[]string{"run", "-p", "?", "--keep-ratio", "0"}, "--keep-ratio: got 0, want more than 0 and at most 1"},
		"share above 1":           {[]string{"run", "-p", "?", "--keep-ratio", "1.5"}, "--keep-ratio: got 1.5, want more than 0 and at most 1"},
		"unknown method":          {[]string{"run", "-p", "?", "--base", "holo"}, `base: got "holo", want one of none, holov`},
		"unknown value":           {[]string{"run", "-p", "?", "--anchors", "best"}, `anchors: got "best", want one of`},
		"gamma":                   {[]string{"run", "-p", "?", "--gamma", "2"}, "gamma: got 2, want 0 to 1"},
		"useless switch":          {[]string{"run", "-p", "?", "--restore=false", "--anchors", "paper"}, "anchors: got paper, which has no effect with restore=false"},
		"switch of another":       {[]string{"run", "-p", "?", "--base", "grid", "--holov-overflow", "zero"}, "holov-overflow"},
		"budget above tokens":     {[]string{"run", "-p", "?", "--image", picture, "--n-vis", "577"}, "--n-vis: got 577, want at most 576 (the picture's tokens)"},
		"schedule too deep":       {[]string{"run", "-p", "?", "--image", picture, "--base", "fastv", "--schedule", "6:9"}, "--schedule: got layer 6, want 1 to 5 (for fastv: the model has 6 layers)"},
		"budget too small":        {[]string{"run", "-p", "?", "--image", picture, "--base", "fastv", "--n-vis", "64"}, "want at least 96.83, the least (with fastv's stages in 6 layers"},
		"runs above tokens":       {[]string{"run", "-p", "?", "--image", picture, "--holov-patches", "577"}, "--holov-patches: got 577, want at most 576 (the picture's tokens)"},
		"pivots above share":      {[]string{"run", "-p", "?", "--image", picture, "--base", "dart", "--dart-pivots", "33"}, "--dart-pivots: got 33, want at most 32 (the tokens that dart keeps itself)"},
		"merges above half":       {[]string{"run", "-p", "?", "--image", picture, "--base", "tome", "--tome-r", "300"}, "--tome-r: got 300, want at most 288 in block 0"},
		"step above a pass":       {[]string{"run", "-p", "?", "--image", picture, "--base", "vispruner", "--vispruner-step", "400"}, "--vispruner-step: got 400, want at most 280"},
		"seed without drawing":    {[]string{"trace", "-p", "?", "--out", "x", "--base", "grid", "--n-vis", "4", "--seed", "3"}, "--seed: has no use without --base random"},
		"switch without base":     {[]string{"run", "-p", "?", "--base", "none", "--gamma", "1"}, "--gamma: got 1, which has no effect without a base"},
		"overlay without base":    {[]string{"run", "-p", "?", "--base", "none", "--overlay", "x.png"}, "--overlay: has nothing to show"},
		"schedule and budget":     {[]string{"run", "-p", "?", "--base", "fastv", "--n-vis", "64", "--schedule", "2:64"}, "--schedule: got 2:64, want one budget (n-vis 64 is given too)"},
		"schedule outside":        {[]string{"run", "-p", "?", "--schedule", "2:64"}, "schedule: got 2:64, which has no effect with base holov"},
		"schedule without base":   {[]string{"trace", "-p", "?", "--out", "x", "--schedule", "2:64"}, "--schedule: got 2:64, which has no effect without a base"},
		"broken schedule":         {[]string{"run", "-p", "?", "--base", "pdrop", "--schedule", "2:0.5,1:9"}, "layer 1 does not come after 2"},
		"layer of another":        {[]string{"run", "-p", "?", "--base", "pdrop", "--fastv-layer", "2"}, "fastv-layer: got 2, which has no effect with base pdrop (it belongs to fastv)"},
		"layer 0":                 {[]string{"run", "-p", "?", "--base", "fastv", "--fastv-layer", "0"}, "--fastv-layer: got 0, want at least 1"},
		"no step":                 {[]string{"run", "-p", "?", "--base", "vispruner", "--vispruner-step", "0"}, "--vispruner-step: got 0, want at least 1"},
		"seed of nothing":         {[]string{"trace", "-p", "?", "--out", "x", "--base", "grid", "--n-vis", "4", "--seed", "3"}, "--seed: has no use without --base random, got 3"},
		"overlay of no picture":   {[]string{"run", "-p", "?", "--overlay", "x.png"}, "--overlay: has nothing to show, got x.png, want a picture"},
		"stages of no picture":    {[]string{"run", "-p", "?", "--base", "fastv", "--n-vis", "192", "--overlay-stages", "x.png"}, "--overlay-stages: has nothing to show, got x.png, want a picture"},
		"broken layers":           {[]string{"run", "-p", "?", "--base", "pdrop", "--pdrop-layers", "3,3"}, `pdrop-layers: got "3,3", want ascending layers`},
		"newlines inside":         {[]string{"run", "-p", "?", "--base", "fastv", "--newlines", "skip"}, "--newlines: got skip, want no say about newlines (fastv acts inside the decoder"},
		"stages outside":          {[]string{"run", "-p", "?", "--overlay-stages", "x.png"}, "--overlay-stages: has nothing to show, got --base holov, want a method inside the encoder or the decoder"},
		"empty prompt":            {[]string{"run", "-p", " "}, "--prompt: empty"},
		"temperature":             {[]string{"run", "-p", "?", "--temp", "-1"}, "temp: out of range, got -1"},
		"top-p":                   {[]string{"run", "-p", "?", "--top-p", "0"}, "--top-p: out of range, got 0"},
		"min-p":                   {[]string{"run", "-p", "?", "--min-p", "2"}, "min-p: out of range, got 2"},
		"no answer":               {[]string{"run", "-p", "?", "-n", "0"}, "--n-predict: out of range, got 0"},
		"no threads":              {[]string{"run", "-p", "?", "--threads", "0"}, "--threads: out of range, got 0, want 1 to"},
		"quant":                   {[]string{"run", "-p", "?", "--quant", "q5"}, `--quant: got "q5", want q4|q8|bf16|f16|f32`},
		"cache-type":              {[]string{"run", "--cache-type", "q8", "-p", "x"}, `--cache-type: got "q8", want f32|f16`},
		"encoder-quant":           {[]string{"show", "--encoder-quant", "q4"}, `--encoder-quant: got "q4", want q8|q12|bf16|f16|f32`},
		"picture's size":          {[]string{"show", "--picture", "40x"}, `--picture: got "40x", want WIDTHxHEIGHT`},
		"pack without output":     {[]string{"pack", "--quant", "q4"}, "pack: --output is missing"},
		"no pixels":               {[]string{"run", "-p", "?", "--image", picture, "--max-image-pixels", "0"}, "--max-image-pixels: out of range"},
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
		"method nobody knows":     {[]string{"methods", "magic"}, `methods: unknown method, got "magic", want none|holov`},
		"eval of nothing":         {[]string{"eval", "scenes", "--n", "0"}, "--n: out of range, got 0"},
		"eval of negative budget": {[]string{"eval", "scenes", "--n-vis", "-3"}, "--n-vis: got -3, want at least 1"},
	} {
		r := cli(c.args...)
		lines := strings.Split(strings.TrimSuffix(r.err, "\n"), "\n")
		if r.code != exitUsage || r.out != "" || len(lines) != 2 ||
			!strings.HasPrefix(lines[0], "restore: ") || !strings.Contains(lines[0], c.want) ||
			!strings.HasPrefix(lines[1], "see 'restore ") ||
			!strings.HasSuffix(lines[1], "--help'") {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want exit 2 and a line with %q", name,
				r.code, r.out, r.err, c.want)
		}
	}
}

// Ensure that errors in files give exit code 1 and exactly one line that names the file and the
// reason.
func TestFailures(t *testing.T) {
	picture, empty := drawn(t, 7), t.TempDir()
	text, out := written(t, "text.png", "this is no picture\n"), filepath.Join(empty, "x")
	strings_ := written(t, "strings.json", `["a"] trailing`)
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"missing picture":      {[]string{"run", "-p", "?", "--image", "no/such.png"}, []string{"no/such.png", "no such file"}},
		"text named png":       {[]string{"run", "-p", "?", "--image", text}, []string{"text.png"}},
		"folder as picture":    {[]string{"run", "-p", "?", "--image", empty}, []string{empty, "is a folder"}},
		"picture too large":    {[]string{"run", "-p", "?", "--image", picture, "--max-image-pixels", "1000"}, []string{"scene.png", "336", "1000", "max-image-pixels"}},
		"missing model":        {[]string{"run", "-p", "?", "-m", "no/such"}, []string{"no/such"}},
		"empty folder":         {[]string{"run", "-p", "?", "-m", empty}, []string{"config.json"}},
		"file as model":        {[]string{"show", "-m", picture}, []string{"scene.png"}},
		"missing features":     {[]string{"reduce", "--base", "grid", "--n-vis", "4", "--in", "no.safetensors", "--out", out}, []string{"no.safetensors", "no such file"}},
		"features of a png":    {[]string{"reduce", "--base", "grid", "--n-vis", "4", "--in", picture, "--out", out}, []string{"scene.png"}},
		"trace of a png":       {[]string{"trace", "--in", picture, "--out", out}, []string{"scene.png"}},
		"output nowhere":       {[]string{"scene", "-o", "no/such/folder/x.png"}, []string{"no/such/folder", "no such file"}},
		"tokenizer of a png":   {[]string{"inspect", "tokens", "--tokenizer", picture, "--in", text}, []string{"scene.png"}},
		"processor of a png":   {[]string{"inspect", "image", "--processor", picture, "--image", picture, "--out", out}, []string{"scene.png"}},
		"messages of a png":    {[]string{"inspect", "chat", "--template", text, "--in", picture}, []string{"scene.png", "JSON"}},
		"two JSON values":      {[]string{"inspect", "chat", "--template", text, "--in", strings_}, []string{"strings.json"}},
		"data folder is empty": {[]string{"eval", "scenes", "--data", empty}, []string{"questions.json"}},
	} {
		r := with(t.Context(), map[string]string{"HF_HOME": empty}, "", c.args...)
		line, rest, _ := strings.Cut(r.err, "\n")
		ok := r.code == exitFailure && r.out == "" && rest == "" &&
			strings.HasPrefix(line, "restore: ")
		for _, w := range c.want {
			ok = ok && strings.Contains(line, w)
		}
		if !ok {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want exit 1 and a line with %q", name,
				r.code, r.out, r.err, c.want)
		}
	}
}

// Ensure that the help of every command names each flag, its default and its environment variable,
// on stdout.
func TestHelp(t *testing.T) {
	root := newRoot(&app{})
	var visit func(c *cobra.Command, args []string)
	visit = func(c *cobra.Command, args []string) {
		r := cli(append(args, "--help")...)
		if r.code != exitOK || r.err != "" {
			t.Errorf("%v --help: exit %d, stderr %q", args, r.code, r.err)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if hasVariable(f) && !strings.Contains(r.out, "env "+envName(f)+")") {
				t.Errorf("%v --help: --%s is not explained with its variable", args, f.Name)
			}
		})
		for _, s := range c.Commands() {
			visit(s, append(args[:len(args):len(args)], s.Name()))
			if !strings.Contains(r.out, s.Short) {
				t.Errorf("%v --help: %s is not listed", args, s.Name())
			}
		}
	}
	visit(root, nil)
	if got, want := cli().out, cli("--help").out; got != want {
		t.Errorf("no arguments: got %q, want the help text", got)
	}
	for _, want := range []string{
		"--n-vis N|auto:N\n", "(default 64, env RESTORE_N_VIS)", "-m, --model folder", "--anchors auto|covered|paper|released|uniform", "(default auto, env RESTORE_ANCHORS)", "--join auto|rest|all|count",
	} {
		if !strings.Contains(cli("run", "--help").out, want) {
			t.Errorf("run --help: lacks %q", want)
		}
	}
}

// Ensure that a flag wins over its variable, the variable over the default, and that an unusable
// variable is named.
func TestEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		env      map[string]string
		args     []string
		nVis     int
		ratio    float64
		base     string
		compat   string
		restored bool
	}{
		"defaults":                            {nil, nil, 64, 0, "holov", "", true},
		"variable":                            {map[string]string{"RESTORE_N_VIS": "32", "RESTORE_BASE": "grid"}, nil, 32, 0, "grid", "", true},
		"drawn":                               {nil, []string{"--base", "random"}, 64, 0, "random", "", true},
		"base variable and a switch":          {map[string]string{"RESTORE_BASE": "none"}, []string{"--gamma", "0.25"}, 64, 0, "holov", "", true},
		"gamma variable without RESTORE":      {map[string]string{"RESTORE_GAMMA": "0.25"}, []string{"--restore=false"}, 64, 0, "holov", "", false},
		"budget variable and a schedule":      {map[string]string{"RESTORE_N_VIS": "32"}, []string{"--base", "fastv", "--schedule", "2:9"}, 0, 0, "fastv", "", true},
		"a leading zero":                      {nil, []string{"--n-vis", "064"}, 64, 0, "holov", "", true},
		"empty variable":                      {map[string]string{"RESTORE_N_VIS": ""}, nil, 64, 0, "holov", "", true},
		"flag over variable":                  {map[string]string{"RESTORE_N_VIS": "32"}, []string{"--n-vis", "16"}, 16, 0, "holov", "", true},
		"ratio over default":                  {nil, []string{"--keep-ratio", "0.25"}, 0, 0.25, "holov", "", true},
		"ratio flag over budget variable":     {map[string]string{"RESTORE_N_VIS": "32"}, []string{"--keep-ratio", "0.25"}, 0, 0.25, "holov", "", true},
		"budget flag over ratio variable":     {map[string]string{"RESTORE_KEEP_RATIO": "0.5"}, []string{"--n-vis", "9"}, 9, 0, "holov", "", true},
		"boolean variable":                    {map[string]string{"RESTORE_OVER_BASE": "false", "RESTORE_COMPAT": "released"}, nil, 64, 0, "holov", "released", false},
		"variables of a reduction turned off": {map[string]string{"RESTORE_COMPAT": "paper", "RESTORE_N_VIS": "5"}, []string{"--base", "none"}, 0, 0, "none", "", false},
	} {
		var r reductionFlags
		fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
		r.add(fs, "holov", 64)
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if err := readEnvironment(fs, func(k string) string { return c.env[k] }); err != nil {
			t.Fatal(err)
		}
		r.seed = 3
		o, err := r.options()
		if err != nil || o.NVis != c.nVis || o.KeepRatio != c.ratio || o.Base != c.base ||
			o.Compat != c.compat || o.Restore != c.restored ||
			(o.Base == "random") != (o.Seed != nil) || o.Seed != nil && *o.Seed != 3 {
			t.Errorf("%s: got %+v, %v", name, o, err)
		}
	}
	r := with(context.Background(), map[string]string{"RESTORE_N_VIS": "many"}, "", "run", "-p",
		"?")
	if r.code != exitUsage || !strings.Contains(r.err, `RESTORE_N_VIS: got "many", want a whole number`) {
		t.Errorf("unusable variable: exit %d, stderr %q", r.code, r.err)
	}
	r = with(context.Background(),
		map[string]string{"RESTORE_N_VIS": "9", "RESTORE_KEEP_RATIO": "0.5"}, "", "run", "-p", "?")
	if r.code != exitUsage || !strings.Contains(r.err, "one budget") {
		t.Errorf("two variables: exit %d, stderr %q", r.code, r.err)
	}
}

// Ensure that a switch without a flag keeps the default of package methods, and that a given one is
// passed on unchanged.
func TestOnlyGivenSwitches(t *testing.T) {
	var r reductionFlags
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	r.add(fs, "holov", 64)
	if err := fs.Parse([]string{"--gamma", "0", "--calibrate", "size"}); err != nil {
		t.Fatal(err)
	}
	o, err := r.options()
	if err != nil || o.Gamma == nil || *o.Gamma != 0 || o.Calibrate != "size" ||
		o.Positions+o.Anchors != "" || o.DecodeDistance != nil {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestOneLine(t *testing.T) {
	if got, want := oneLine("a\nb\r\nc\x1b[31m\u009b"), "a; b; c?[31m?"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
