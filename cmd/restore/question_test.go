package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that a question is read from stdin and from files, and pictures from stdin.
func TestSources(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	picture := clitest.Drawn(t, clitest.NumberSeed)
	shown, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	file := clitest.Written(t, "q.txt", clitest.Number+"\r\n")
	for name, c := range map[string]struct {
		in   string
		args []string
	}{
		"stdin":       {clitest.Number + "\n", []string{"--image", picture, "-p", "-"}},
		"file":        {"", []string{"--image", picture, "-p", "@" + file}},
		"at sign":     {"", []string{"--image", picture, "-p", "@@" + clitest.Number}},
		"picture":     {string(shown), []string{"--image", "-", "-p", clitest.Number}},
		"marker":      {"", []string{"--image", picture, "-p", "<image>\n" + clitest.Number}},
		"Qwen marker": {"", []string{"--image", picture, "-p", "<|vision_start|><|image_pad|><|vision_end|>\n" + clitest.Number}},
		"other marks": {"", []string{"--image", picture, "-p", "<__media__>\n" + clitest.Number}},
	} {
		r := with(context.Background(), nil, c.in, append([]string{"run"}, c.args...)...)
		if r.Code != cli.ExitOK || r.Out != clitest.NumberAnswer+"\n" && name != "at sign" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, r.Code, r.Out, r.Err)
		}
	}
	// the same place, by default and by a marker, gives the same prompt
	for _, name := range []string{"trace", "attention"} {
		args := []string{name, "--image", picture, "-p"}
		if name == "trace" {
			args = []string{
				name, "--out", "-", "--base", "grid", "--n-vis", "8", "--image", picture, "-p",
			}
		}
		if a, b := commandLine(append(args, clitest.Number)...), commandLine(append(args,
			"<image>\n"+clitest.Number)...); a.Code != cli.ExitOK || a.Out != b.Out || a.Out == "" {
			t.Errorf("%s: exit %d and %d %q, %d and %d bytes", name, a.Code, b.Code, b.Err,
				len(a.Out), len(b.Out))
		}
	}
}

// Ensure that a prompt has as many markers as pictures, and that no input is read twice or without
// a limit.
func TestSourcesRefused(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip("no devices here")
	}
	for name, c := range map[string]struct {
		code int
		args []string
		want string
	}{
		"marker without picture": {cli.ExitUsage, []string{"-p", "What is <image>?"}, "--prompt: got 1 marker(s) like <image> and 0 picture(s) to show, want as many of both"},
		"two for one":            {cli.ExitUsage, []string{"--image", picture, "-p", "<image> and <image>?"}, "got 2 marker(s)"},
		"one for two":            {cli.ExitUsage, []string{"--image", picture, "--image", picture, "-p", "<|image_pad|>?"}, "got 1 marker(s) like <|image_pad|> and 2 picture(s)"},
		"a video's":              {cli.ExitUsage, []string{"--image", picture, "-p", "<video>?"}, "marker 1 is <video>"},
		"marker alone":           {cli.ExitUsage, []string{"--image", picture, "-p", "<image>"}, "holds markers of pictures alone"},
		"stdin twice":            {cli.ExitUsage, []string{"--image", "-", "-p", "-"}, "- is given 2 times"},
		"stdin three times":      {cli.ExitUsage, []string{"--image", "-", "-p", "-", "--system-prompt", "@-"}, "stdin: - is given 3 times (--image, --prompt, --system-prompt)"},
		"stdin and questions":    {cli.ExitUsage, []string{"--image", "-"}, "--image: got -, but the questions of a conversation come from stdin"},
		"stdin and system":       {cli.ExitUsage, []string{"--system-prompt", "-"}, "--system-prompt: got -, but the questions of a conversation come from stdin"},
		"stdin and frames":       {cli.ExitUsage, []string{"--video-frames", picture, "-"}, "--video-frames: got -, but the questions of a conversation come from stdin"},
		"empty file":             {cli.ExitUsage, []string{"-p", "@/dev/null"}, "--prompt: /dev/null is empty"},
		"no such prompt":         {cli.ExitFailure, []string{"-p", "@no/such.txt"}, "no/such.txt: no such file"},
		"endless picture":        {cli.ExitFailure, []string{"--image", "/dev/zero", "-p", "?"}, "/dev/zero: is a device, want a file"},
		"endless prompt":         {cli.ExitFailure, []string{"-p", "@/dev/zero"}, "/dev/zero: is a device"},
		"address":                {cli.ExitFailure, []string{"--image", "https://example.com/cat.jpg", "-p", "?"}, "https://example.com/cat.jpg: is an address (https:), want a file on this machine: download it first"},
		"data":                   {cli.ExitFailure, []string{"--image", "data:image/png;base64,AAAA", "-p", "?"}, "is an address (data:)"},
		"empty model":            {cli.ExitUsage, []string{"-m", "", "-p", "?"}, "--model: empty, want a folder, or no --model for the default"},
		"empty picture":          {cli.ExitUsage, []string{"--image", "", "-p", "?"}, "--image: empty, want a file"},
		"no randomness":          {cli.ExitUsage, []string{"-p", "?", "--top-k", "3"}, "--top-k: has no effect at temperature 0, got 3"},
		"no draw":                {cli.ExitUsage, []string{"-p", "?", "--seed", "3"}, "--seed: has no effect at temperature 0"},
		"no least":               {cli.ExitUsage, []string{"-p", "?", "--min-p", "0.1"}, "--min-p: has no effect at temperature 0"},
		"longer than context":    {cli.ExitUsage, []string{"-p", "?", "-n", "100000"}, "--n-predict: out of range, got 100000, want at most the model's context of"},
	} {
		r := commandLine(append([]string{"run"}, c.args...)...)
		if r.Code != c.code || r.Out != "" || !strings.Contains(r.Err, c.want) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want exit %d and %q", name, r.Code, r.Out,
				r.Err, c.code, c.want)
		}
	}
	if r := withInput(zeros{}, "run", "--image", "-", "-p", "?"); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "stdin: not a picture") {
		t.Errorf("endless stdin: exit %d, stderr %q", r.Code, r.Err)
	}
	const note = "note: no picture is shown (--image FILE): the answer depends only on the text; " +
		"the embedded model knows only drawn scenes (-m names another)"
	if r := commandLine("run", "-p", "What is shown?", "-n", "2"); r.Code != cli.ExitOK ||
		!strings.Contains(r.Err, note) {
		t.Errorf("no picture: exit %d, stderr %q", r.Code, r.Err)
	}
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// withInput runs a command line that reads in.
func withInput(in io.Reader, args ...string) clitest.Result {
	var out, errOut strings.Builder
	a := cli.NewApp(thisProgram, in, &out, &errOut, clitest.Unset)
	code := cli.Execute(context.Background(), a, args)
	return clitest.Result{Code: code, Out: out.String(), Err: errOut.String()}
}

// Ensure that a note says what a crop cuts off and how to avoid it, and that --pad cuts off
// nothing.
func TestUnseen(t *testing.T) {
	wide := filepath.Join(t.TempDir(), "wide.bmp")
	clitest.Filled(t, wide, func(w io.Writer) error { return writeBMP(w, 1600, 500) })
	ask := []string{"run", "--image", wide, "-p", clitest.Number, "-n", "4"}
	r := commandLine(ask...)
	if want := "wide.bmp: the model does not see 69 % of it: of 1600x500 pixels it takes the " +
		"middle 500x500; --pad shows all"; !strings.Contains(r.Err, want) {
		t.Errorf("exit %d, stderr %q, want %q", r.Code, r.Err, want)
	}
	if r = commandLine(append(ask, "--pad")...); r.Code != cli.ExitOK ||
		strings.Contains(r.Err, "does not see") {
		t.Errorf("padded: exit %d, stderr %q", r.Code, r.Err)
	}
	if r = commandLine("run", "--image", clitest.Drawn(t, clitest.NumberSeed), "-p",
		clitest.Number); strings.Contains(r.Err,
		"does not see") {
		t.Errorf("square: %q", r.Err)
	}
}

// writeBMP writes a grey BMP of 24 bits.
func writeBMP(w io.Writer, width, height int) error {
	stride := (3*width + 3) / 4 * 4
	head := make([]byte, 54)
	copy(head, "BM")
	put := func(at int, v int) {
		for i := range 4 {
			head[at+i] = byte(v >> (8 * i))
		}
	}
	put(2, 54+stride*height)
	put(10, 54)
	put(14, 40)
	put(18, width)
	put(22, height)
	put(26, 1|24<<16)
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(make([]byte, stride*height))
	return err
}

// Ensure that the commands of a conversation work, and that a conversation with a server has the
// same answers.
func TestTalkCommands(t *testing.T) {
	server := startServer(t).url
	dir := t.TempDir()
	first, second := clitest.Drawn(t, clitest.NumberSeed), clitest.Drawn(t, 8)
	spaced := filepath.Join(dir, "a picture.png")
	data, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(spaced, data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", dir)
	for name, c := range map[string]struct {
		lines []string
		out   int // answers
		want  []string
	}{
		"image":    {[]string{"/image " + first, clitest.Number}, 1, []string{first + ": 336x336 pixels, 576 visual tokens, reduced to 64"}},
		"quoted":   {[]string{`/image "` + spaced + `"`, clitest.Number}, 1, []string{"576 -> 32 kept"}},
		"home":     {[]string{`/image ~/a picture.png`, clitest.Number}, 1, []string{"576 -> 32 kept"}},
		"escaped":  {[]string{`/image ` + strings.ReplaceAll(spaced, " ", `\ `), clitest.Number}, 1, []string{"576 -> 32 kept"}},
		"dropped":  {[]string{"/image " + first, "/image " + second, "/drop", clitest.Number}, 1, []string{second + " is not shown; 1 picture(s) left"}},
		"undone":   {[]string{"/image " + first, clitest.Number, "/undo", "/undo"}, 1, []string{`taken back: "` + clitest.Number + `"; 1 picture(s) are shown with the next question`, "/undo: no question was asked"}},
		"again":    {[]string{"/image " + first, clitest.Number, "/undo", "/image " + second, "/drop", clitest.Number}, 2, []string{"1 picture(s) left", "576 -> 32 kept"}},
		"text":     {[]string{"One?", "Two?", "/image " + first, "/drop", "Three?"}, 3, []string{"note: no picture is shown (/image FILE): the answer depends only on the text"}},
		"slash":    {[]string{"//" + clitest.Number, "/undo"}, 1, []string{`taken back: "/` + clitest.Number + `"`}},
		"cleared":  {[]string{"/image " + first, clitest.Number, "/clear", "/image " + first, clitest.Number}, 2, []string{"the conversation is empty", "576 -> 32 kept"}},
		"set":      {[]string{"/image " + first, "/set n-vis 128", clitest.Number}, 1, []string{"n-vis 128; the conversation begins again, 1 picture(s)", "576 -> 64 kept + 64 merged"}},
		"set late": {[]string{"/image " + first, clitest.Number, "/set n-vis 0128", clitest.Number}, 2, []string{"576 -> 32 kept", "576 -> 64 kept + 64 merged"}},
		"set base": {[]string{"/image " + first, "/set n-vis 128", "/set base none", clitest.Number}, 1, []string{"base none, n-vis is not set;", "576 visual"}},
		"set back": {[]string{"/image " + first, "/set keep-ratio 0.5", "/set n-vis=128", "/set n-vis", clitest.Number}, 1, []string{"n-vis 128, keep-ratio is not set;", "n-vis is not set;", "576 -> 32 kept + 32 merged"}},
		"cool":     {[]string{"/set temp 0.5", "/set top-k=3", "/set temp"}, 0, []string{"temp is not set, top-k is not set\n"}},
		"not set":  {[]string{"/set n-vis"}, 0, []string{"got n-vis without a value, which is not set, want /set n-vis VALUE"}},
		"set temp": {[]string{"/set temp 0.5", "/set top-k 3", "/image " + first, clitest.Number}, 1, []string{"temp 0.5\n", "top-k 3\n"}},
		"marker":   {[]string{"/image " + first, "<image> " + clitest.Number}, 1, []string{"576 -> 32 kept"}},
		"listed":   {[]string{"/set"}, 0, []string{"n-vis", "visionzip-contextual", "temp"}},
		"wrong":    {[]string{"/set n-vis many"}, 0, []string{`--n-vis: cannot be used, got "many"`}},
		"unknown":  {[]string{"/set nvis 3"}, 0, []string{`/set: unknown, got "nvis", want`, "did you mean n-vis?"}},
		"useless":  {[]string{"/set top-k 3"}, 0, []string{"--top-k: has no effect at temperature 0"}},
		"nothing":  {[]string{"/drop"}, 0, []string{"/drop: no picture is shown"}},
		"no file":  {[]string{"/image"}, 0, []string{"want /image FILE"}},
		"help":     {[]string{"/help"}, 0, []string{"/save FILE"}},
	} {
		in := strings.Join(c.lines, "\n") + "\n"
		r := with(context.Background(), nil, in, "run", "-v")
		if got := strings.Count(r.Out, "\n"); got != c.out {
			t.Errorf("%s: exit %d, %d answers %q, want %d, stderr %q", name, r.Code, got, r.Out,
				c.out, r.Err)
		}
		for _, want := range c.want {
			if !strings.Contains(r.Err, want) {
				t.Errorf("%s: stderr %q, want %q", name, r.Err, want)
			}
		}
		there := with(context.Background(), nil, in, "run", "-v", "--server", server)
		if there.Code != r.Code || there.Out != r.Out {
			t.Errorf("%s with a server: exit %d, %q, want %d, %q, stderr %q", name, there.Code,
				there.Out, r.Code, r.Out, there.Err)
		}
		for _, want := range c.want {
			if !strings.Contains(there.Err, want) {
				t.Errorf("%s with a server: stderr %q, want %q", name, there.Err, want)
			}
		}
	}
	text, messages := filepath.Join(dir, "talk.md"), filepath.Join(dir, "talk.json")
	r := with(context.Background(), nil,
		"/image "+first+"\n"+clitest.Number+"\n/save "+text+"\n/save "+messages+"\n/save "+first+"\n",
		"run")
	if r.Code != cli.ExitUsage || !strings.Contains(r.Err, "is an input of this command") {
		t.Errorf("saved over a picture: exit %d, stderr %q", r.Code, r.Err)
	}
	for path, want := range map[string]string{
		text: "[" + first + "]\n> " + clitest.Number + "\n\n" + clitest.NumberAnswer + "\n\n",
		messages: `"role": "user",` + "\n    " + `"content": "` + clitest.Number + `",` + "\n    " +
			`"pictures": [`,
	} {
		got, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %q, %v, want %q", path, got, err, want)
		}
	}
}

// Ensure that a conversation about a video goes on with it after /undo and /set, and that /save
// names it.
func TestTalkVideo(t *testing.T) {
	const dir = "../../internal/engine/testdata/qwen3vl-tiny"
	frame, saved := clitest.Drawn(t, 8), filepath.Join(t.TempDir(), "talk.json")
	r := with(context.Background(), nil,
		"One?\n/undo\nTwo?\n/set n-vis 4\nThree?\n/save "+saved+"\n",
		"run", "-v", "-n", "2", "-m", dir, "--video-frames", frame, frame)
	if n := strings.Count(r.Err, "visual tokens"); r.Code != cli.ExitOK || n != 3 {
		t.Errorf("exit %d, %d of 3 answers are about the video, stderr %q", r.Code, n, r.Err)
	}
	for _, want := range []string{`taken back: "One?"; a video and 0 picture(s) are shown`,
		"the conversation begins again, a video and 0 picture(s) are shown"} {
		if !strings.Contains(r.Err, want) {
			t.Errorf("stderr %q, want %q", r.Err, want)
		}
	}
	got, err := os.ReadFile(saved)
	if err != nil || !strings.Contains(string(got), frame+" "+frame) {
		t.Errorf("saved %q, %v, want the frames' names", got, err)
	}
}

// Ensure that the drawings of a conversation's later pictures do not replace the first ones.
func TestTalkOverlays(t *testing.T) {
	dir := t.TempDir()
	in := clitest.Number + "\n/image " + clitest.Drawn(t, 8) + "\n" + clitest.Number + "\n" +
		clitest.Number + "\n"
	r := with(context.Background(), nil, in, "run", "--image", clitest.Drawn(t, clitest.NumberSeed),
		"--overlay",
		filepath.Join(dir, "kept.png"))
	left, err := filepath.Glob(dir + "/*")
	if err != nil || r.Code != cli.ExitOK || len(left) != 2 ||
		filepath.Base(left[0]) != "kept-2.png" ||
		filepath.Base(left[1]) != "kept.png" {
		t.Errorf("exit %d %q: %q, %v", r.Code, r.Err, left, err)
	}
}

// Ensure that pictures that cannot fit are refused before one is encoded, and that a conversation
// says what to remove and continues.
func TestFull(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	var many []string
	for range 30 {
		many = append(many, "--image", picture)
	}
	r := commandLine(append([]string{"run", "-p", clitest.Number}, many...)...)
	if r.Code != cli.ExitFailure || r.Out != "" ||
		!strings.Contains(r.Err, "17403 positions, want at most the model's context of 4096") {
		t.Errorf("30 pictures: exit %d, stderr %q", r.Code, r.Err)
	}
	r = commandLine(append([]string{"run", "-p", clitest.Number, "--positions", "sequential", "-n",
		"4"},
		many...)...)
	if r.Code != cli.ExitOK {
		t.Errorf("30 pictures of 64 positions: exit %d, stderr %q", r.Code, r.Err)
	}
	lines := strings.Repeat("/image "+picture+"\n", 8) + clitest.Number + "\n"
	r = with(context.Background(), nil, lines, "run")
	want := "the conversation is full: it would take 4687 of 4096 positions; /drop takes away " +
		picture + ", /clear everything"
	if r.Code != cli.ExitFailure || !strings.Contains(r.Err, want) {
		t.Errorf("8 pictures: exit %d, stderr %q, want %q", r.Code, r.Err, want)
	}
	show, ask := "/image "+picture+"\n", clitest.Number+"\n"
	r = with(context.Background(), nil,
		strings.Repeat(show, 8)+"/drop\n/drop\n"+ask+"/clear\n"+show+ask, "run")
	if r.Code != cli.ExitOK || !strings.HasSuffix(r.Out, clitest.NumberAnswer+"\n") {
		t.Errorf("dropped: exit %d, stdout %q, stderr %q", r.Code, r.Out, r.Err)
	}
}

// Ensure that an environment variable never blocks a flag that excludes it, nor a command or model
// for which it has no effect, and that two exclusive flags on the command line are refused.
func TestVariablesGiveWay(t *testing.T) {
	picture := clitest.Drawn(t, clitest.NumberSeed)
	ask := []string{"run", "-v", "--image", picture, "-p", clitest.Number, "-n", "2"}
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want string
	}{
		"restore off":          {map[string]string{"RESTORE_GAMMA": "0.3"}, append(ask, "--restore=false"), "holov, n-vis 64"},
		"schedule":             {map[string]string{"RESTORE_N_VIS": "64"}, append(ask, "--base", "pdrop", "--schedule", "1:100"), "schedule 1:100"},
		"another's":            {map[string]string{"RESTORE_HOLOV_PATCHES": "4"}, append(ask, "--base", "divprune"), "RESTORE over divprune"},
		"this model's":         {map[string]string{"RESTORE_MAX_PIXELS": "9000", "RESTORE_NEWLINES": "keep"}, ask, "576 -> 32 kept"},
		"sampling":             {map[string]string{"RESTORE_TOP_K": "5", "RESTORE_SEED": "7"}, ask, "576 -> 32 kept"},
		"drawing":              {map[string]string{"RESTORE_OVERLAY_STAGES": "/dev/null"}, ask, "576 -> 32 kept"},
		"shape":                {map[string]string{"RESTORE_MODEL": "no/such"}, []string{"flops", "--shape", "embedded", "--n-vis", "64"}, ""},
		"nothing of it":        {map[string]string{"RESTORE_DATA": "no/such", "RESTORE_CUT": "7"}, []string{"scene", "-o", "/dev/null"}, ""},
		"one form":             {map[string]string{"RESTORE_PLOT": "x.svg", "RESTORE_FORMAT": "csv"}, []string{"eval", "scenes", "--n", "1"}, ""},
		"restore's variable":   {map[string]string{"RESTORE_OVER_BASE": "false"}, ask, "holov, n-vis 64, positions"},
		"no longer a variable": {map[string]string{"RESTORE_RESTORE": "false"}, ask, "RESTORE over holov"},
		"several without use":  {map[string]string{"RESTORE_TOP_K": "5", "RESTORE_API_KEY": "x", "RESTORE_PAD": "true", "RESTORE_MERGE_POSITION": "axes-mean"}, ask, "576 -> 32 kept"},
		"a whole model's":      {map[string]string{"RESTORE_MMPROJ": "no/such", "RESTORE_MIN_PIXELS": "9"}, ask, "576 -> 32 kept"},
		"lists":                {map[string]string{"RESTORE_METHODS": "grid", "RESTORE_DISTANCE": "true"}, []string{"eval", "scenes", "--n", "1", "--variant", "{}"}, ""},
		"processor's":          {map[string]string{"RESTORE_MAX_PIXELS": "5000"}, []string{"inspect", "image", "--processor", clitest.Embedded(t, "preprocessor_config.json"), "--image", picture, "--out", filepath.Join(t.TempDir(), "x")}, ""},
		"budgets' variables":   {map[string]string{"RESTORE_KEEP_RATIO": "0.5"}, append(ask, "--n-vis", "0128"), "576 -> 64 kept + 64"},
		"switch and a word":    {nil, append(ask, "--decode-distance", "false", "--exif", "true"), "576 -> 32 kept"},
	} {
		r := with(context.Background(), c.env, "", c.args...)
		if r.Code != cli.ExitOK || !strings.Contains(r.Err, c.want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", name, r.Code, r.Err, c.want)
		}
	}
	for want, args := range map[string][]string{
		"--gamma: got 0.3":       append(ask, "--restore=false", "--gamma", "0.3"),
		"--max-pixels: got 9000": append(ask, "--max-pixels", "9000"),
		"both given":             {"flops", "--shape", "embedded", "-m", "x"},
	} {
		if r := commandLine(args...); r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.Code, r.Err, want)
		}
	}
	r := with(context.Background(), map[string]string{"RESTORE_DATA": "no/such/"}, "", "eval",
		"scenes", "--n", "1")
	if r.Code != cli.ExitFailure || !strings.HasSuffix(r.Err, " (RESTORE_DATA)\n") {
		t.Errorf("a folder: exit %d, stderr %q, want its variable named", r.Code, r.Err)
	}
	for want, env := range map[string]map[string]string{
		"restore: RESTORE_GAMMA: got 7, want":                    {"RESTORE_GAMMA": "7"},
		"restore: RESTORE_N_VIS: got 577, want at most 576 (the": {"RESTORE_N_VIS": "577"},
		`restore: RESTORE_QUANT: got "q5", want q4|q8`:           {"RESTORE_QUANT": "q5"},
		"restore: RESTORE_N_PREDICT: out of range, got 0":        {"RESTORE_N_PREDICT": "0"},
		"restore: RESTORE_EXIF: cannot be used, got \"7\", want": {"RESTORE_EXIF": "7"},
	} {
		r := with(context.Background(), env, "", ask[:6]...)
		if r.Code != cli.ExitUsage || !strings.HasPrefix(r.Err, want) {
			t.Errorf("named: exit %d, stderr %q, want %q", r.Code, r.Err, want)
		}
	}
}

// Ensure that a picture may be named as people and other programs name it.
func TestPictureNames(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	data, err := os.ReadFile(clitest.Drawn(t, 7))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a b.png", "50%25.png"} {
		if err := os.WriteFile(filepath.Join(home, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		filepath.Join(home, "a b.png"), "~/a b.png", "file://" + home + "/a b.png",
		"file://" + home + "/a%20b.png", "file://localhost" + home + "/a%20b.png",
		"file://" + home + "/50%25.png", // exactly so on the disk
	} {
		r := commandLine("run", "--image", name, "-p", "How many circles are there?", "-n", "1")
		if r.Code != cli.ExitOK {
			t.Errorf("%s: exit %d, stderr %q", name, r.Code, r.Err)
		}
	}
	r := commandLine("run", "--image", "~/no.png", "-p", "?")
	if want := home + "/no.png: no such file"; r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, want) {
		t.Errorf("exit %d, stderr %q, want %q", r.Code, r.Err, want)
	}
}
