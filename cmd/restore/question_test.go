package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that a question is read from stdin and from files, and pictures from stdin.
func TestSources(t *testing.T) {
	picture := drawn(t, numberSeed)
	file := written(t, "q.txt", number+"\r\n")
	for name, c := range map[string]struct {
		in   string
		args []string
	}{
		"stdin":       {number + "\n", []string{"--image", picture, "-p", "-"}},
		"file":        {"", []string{"--image", picture, "-p", "@" + file}},
		"at sign":     {"", []string{"--image", picture, "-p", "@@" + number}},
		"picture":     {cli("scene", "--seed", fmt.Sprint(numberSeed), "-o", "-").out, []string{"--image", "-", "-p", number}},
		"marker":      {"", []string{"--image", picture, "-p", "<image>\n" + number}},
		"Qwen marker": {"", []string{"--image", picture, "-p", "<|vision_start|><|image_pad|><|vision_end|>\n" + number}},
		"other marks": {"", []string{"--image", picture, "-p", "<__media__>\n" + number}},
	} {
		r := with(context.Background(), nil, c.in, append([]string{"run"}, c.args...)...)
		if r.code != exitOK || r.out != numberAnswer+"\n" && name != "at sign" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", name, r.code, r.out, r.err)
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
		if a, b := cli(append(args, number)...), cli(append(args,
			"<image>\n"+number)...); a.code != exitOK || a.out != b.out || a.out == "" {
			t.Errorf("%s: exit %d and %d %q, %d and %d bytes", name, a.code, b.code, b.err,
				len(a.out), len(b.out))
		}
	}
}

// Ensure that a prompt has as many markers as pictures, and that no input is read twice or without
// a limit.
func TestSourcesRefused(t *testing.T) {
	picture := drawn(t, numberSeed)
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip("no devices here")
	}
	for name, c := range map[string]struct {
		code int
		args []string
		want string
	}{
		"marker without picture": {exitUsage, []string{"-p", "What is <image>?"}, "--prompt: got 1 marker(s) like <image> and 0 picture(s) to show, want as many of both"},
		"two for one":            {exitUsage, []string{"--image", picture, "-p", "<image> and <image>?"}, "got 2 marker(s)"},
		"one for two":            {exitUsage, []string{"--image", picture, "--image", picture, "-p", "<|image_pad|>?"}, "got 1 marker(s) like <|image_pad|> and 2 picture(s)"},
		"a video's":              {exitUsage, []string{"--image", picture, "-p", "<video>?"}, "marker 1 is <video>"},
		"marker alone":           {exitUsage, []string{"--image", picture, "-p", "<image>"}, "holds markers of pictures alone"},
		"stdin twice":            {exitUsage, []string{"--image", "-", "-p", "-"}, "- is given 2 times"},
		"stdin three times":      {exitUsage, []string{"--image", "-", "-p", "-", "--system-prompt", "@-"}, "stdin: - is given 3 times (--image, --prompt, --system-prompt)"},
		"stdin and questions":    {exitUsage, []string{"--image", "-"}, "--image: got -, but the questions of a conversation come from stdin"},
		"stdin and system":       {exitUsage, []string{"--system-prompt", "-"}, "--system-prompt: got -, but the questions of a conversation come from stdin"},
		"stdin and frames":       {exitUsage, []string{"--video-frames", picture, "-"}, "--video-frames: got -, but the questions of a conversation come from stdin"},
		"empty file":             {exitUsage, []string{"-p", "@/dev/null"}, "--prompt: /dev/null is empty"},
		"no such prompt":         {exitFailure, []string{"-p", "@no/such.txt"}, "no/such.txt: no such file"},
		"endless picture":        {exitFailure, []string{"--image", "/dev/zero", "-p", "?"}, "/dev/zero: is a device, want a file"},
		"endless prompt":         {exitFailure, []string{"-p", "@/dev/zero"}, "/dev/zero: is a device"},
		"address":                {exitFailure, []string{"--image", "https://example.com/cat.jpg", "-p", "?"}, "https://example.com/cat.jpg: is an address (https:), want a file on this machine: download it first"},
		"data":                   {exitFailure, []string{"--image", "data:image/png;base64,AAAA", "-p", "?"}, "is an address (data:)"},
		"empty model":            {exitUsage, []string{"-m", "", "-p", "?"}, "--model: empty, want a folder, or no --model for the default"},
		"empty picture":          {exitUsage, []string{"--image", "", "-p", "?"}, "--image: empty, want a file"},
		"no randomness":          {exitUsage, []string{"-p", "?", "--top-k", "3"}, "--top-k: has no effect at temperature 0, got 3"},
		"no draw":                {exitUsage, []string{"-p", "?", "--seed", "3"}, "--seed: has no effect at temperature 0"},
		"no least":               {exitUsage, []string{"-p", "?", "--min-p", "0.1"}, "--min-p: has no effect at temperature 0"},
		"longer than context":    {exitUsage, []string{"-p", "?", "-n", "100000"}, "--n-predict: out of range, got 100000, want at most the model's context of"},
	} {
		r := cli(append([]string{"run"}, c.args...)...)
		if r.code != c.code || r.out != "" || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: exit %d, stdout %q, stderr %q, want exit %d and %q", name, r.code, r.out,
				r.err, c.code, c.want)
		}
	}
	if r := withInput(zeros{}, "run", "--image", "-", "-p", "?"); r.code != exitFailure ||
		!strings.Contains(r.err, "stdin: not a picture") {
		t.Errorf("endless stdin: exit %d, stderr %q", r.code, r.err)
	}
	if r := cli("run", "-p", "What is shown?", "-n", "2"); r.code != exitOK ||
		!strings.Contains(r.err, "note: no picture is shown") {
		t.Errorf("no picture: exit %d, stderr %q", r.code, r.err)
	}
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// withInput runs a command line that reads in.
func withInput(in io.Reader, args ...string) result {
	var out, errOut strings.Builder
	a := &app{in: in, out: &out, err: &errOut, getenv: func(string) string { return "" }}
	code := execute(context.Background(), a, args)
	return result{code, out.String(), errOut.String()}
}

// Ensure that a note says what a crop cuts off and how to avoid it, and that --pad cuts off
// nothing.
func TestUnseen(t *testing.T) {
	wide := filepath.Join(t.TempDir(), "wide.bmp")
	filled(t, wide, func(w io.Writer) error { return writeBMP(w, 1600, 500) })
	ask := []string{"run", "--image", wide, "-p", number, "-n", "4"}
	r := cli(ask...)
	if want := "wide.bmp: the model does not see 69 % of it: of 1600x500 pixels it takes the " +
		"middle 500x500; --pad shows all"; !strings.Contains(r.err, want) {
		t.Errorf("exit %d, stderr %q, want %q", r.code, r.err, want)
	}
	if r = cli(append(ask, "--pad")...); r.code != exitOK ||
		strings.Contains(r.err, "does not see") {
		t.Errorf("padded: exit %d, stderr %q", r.code, r.err)
	}
	if r = cli("run", "--image", drawn(t, numberSeed), "-p", number); strings.Contains(r.err,
		"does not see") {
		t.Errorf("square: %q", r.err)
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
	first, second := drawn(t, numberSeed), drawn(t, 8)
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
		"image":    {[]string{"/image " + first, number}, 1, []string{first + ": 336x336 pixels, 576 visual tokens, reduced to 64"}},
		"quoted":   {[]string{`/image "` + spaced + `"`, number}, 1, []string{"576 -> 32 kept"}},
		"home":     {[]string{`/image ~/a picture.png`, number}, 1, []string{"576 -> 32 kept"}},
		"escaped":  {[]string{`/image ` + strings.ReplaceAll(spaced, " ", `\ `), number}, 1, []string{"576 -> 32 kept"}},
		"dropped":  {[]string{"/image " + first, "/image " + second, "/drop", number}, 1, []string{second + " is not shown; 1 picture(s) left"}},
		"undone":   {[]string{"/image " + first, number, "/undo", "/undo"}, 1, []string{`taken back: "` + number + `" with 1 picture(s)`, "/undo: no question was asked"}},
		"cleared":  {[]string{"/image " + first, number, "/clear", "/image " + first, number}, 2, []string{"the conversation is empty", "576 -> 32 kept"}},
		"set":      {[]string{"/image " + first, "/set n-vis 128", number}, 1, []string{"n-vis 128; the conversation begins again, 1 picture(s)", "576 -> 64 kept + 64 merged"}},
		"set late": {[]string{"/image " + first, number, "/set n-vis 0128", number}, 2, []string{"576 -> 32 kept", "576 -> 64 kept + 64 merged"}},
		"set temp": {[]string{"/set temp 0.5", "/set top-k 3", "/image " + first, number}, 1, []string{"temp 0.5\n", "top-k 3\n"}},
		"marker":   {[]string{"/image " + first, "<image> " + number}, 1, []string{"576 -> 32 kept"}},
		"listed":   {[]string{"/set"}, 0, []string{"n-vis", "visionzip-contextual", "temp"}},
		"wrong":    {[]string{"/set n-vis many"}, 0, []string{`--n-vis: cannot be used, got "many"`}},
		"unknown":  {[]string{"/set nvis 3"}, 0, []string{`/set: unknown, got "nvis", want`, "did you mean n-vis?"}},
		"useless":  {[]string{"/set top-k 3"}, 0, []string{"--top-k: has no effect at temperature 0"}},
		"nothing":  {[]string{"/drop"}, 0, []string{"/drop: no picture is shown"}},
		"no file":  {[]string{"/image"}, 0, []string{"want /image FILE"}},
		"help":     {[]string{"/help"}, 0, []string{"/save FILE"}},
	} {
		in := strings.Join(c.lines, "\n") + "\n"
		r := with(context.Background(), nil, in, "run")
		if got := strings.Count(r.out, "\n"); got != c.out {
			t.Errorf("%s: exit %d, %d answers %q, want %d, stderr %q", name, r.code, got, r.out,
				c.out, r.err)
		}
		for _, want := range c.want {
			if !strings.Contains(r.err, want) {
				t.Errorf("%s: stderr %q, want %q", name, r.err, want)
			}
		}
		there := with(context.Background(), nil, in, "run", "--server", server)
		if there.code != r.code || there.out != r.out {
			t.Errorf("%s with a server: exit %d, %q, want %d, %q, stderr %q", name, there.code,
				there.out, r.code, r.out, there.err)
		}
		for _, want := range c.want {
			if !strings.Contains(there.err, want) {
				t.Errorf("%s with a server: stderr %q, want %q", name, there.err, want)
			}
		}
	}
	text, messages := filepath.Join(dir, "talk.md"), filepath.Join(dir, "talk.json")
	r := with(context.Background(), nil,
		"/image "+first+"\n"+number+"\n/save "+text+"\n/save "+messages+"\n/save "+first+"\n",
		"run")
	if r.code != exitUsage || !strings.Contains(r.err, "is an input of this command") {
		t.Errorf("saved over a picture: exit %d, stderr %q", r.code, r.err)
	}
	for path, want := range map[string]string{
		text:     "[" + first + "]\n> " + number + "\n\n" + numberAnswer + "\n\n",
		messages: `"role": "user",` + "\n    " + `"content": "` + number + `",` + "\n    " + `"pictures": [`,
	} {
		got, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(got), want) {
			t.Errorf("%s: %q, %v, want %q", path, got, err, want)
		}
	}
}

// Ensure that the drawings of a conversation's later pictures do not replace the first ones.
func TestTalkOverlays(t *testing.T) {
	dir := t.TempDir()
	in := number + "\n/image " + drawn(t, 8) + "\n" + number + "\n" + number + "\n"
	r := with(context.Background(), nil, in, "run", "--image", drawn(t, numberSeed), "--overlay",
		filepath.Join(dir, "kept.png"))
	left, err := filepath.Glob(dir + "/*")
	if err != nil || r.code != exitOK || len(left) != 2 || filepath.Base(left[0]) != "kept-2.png" ||
		filepath.Base(left[1]) != "kept.png" {
		t.Errorf("exit %d %q: %q, %v", r.code, r.err, left, err)
	}
}

// Ensure that pictures that cannot fit are refused before one is encoded, and that a conversation
// says what to remove and continues.
func TestFull(t *testing.T) {
	picture := drawn(t, numberSeed)
	var many []string
	for range 30 {
		many = append(many, "--image", picture)
	}
	r := cli(append([]string{"run", "-p", number}, many...)...)
	if r.code != exitFailure || r.out != "" ||
		!strings.Contains(r.err, "17280 positions, want at most the model's context of 4096") {
		t.Errorf("30 pictures: exit %d, stderr %q", r.code, r.err)
	}
	r = cli(append([]string{"run", "-p", number, "--positions", "sequential", "-n", "4"},
		many...)...)
	if r.code != exitOK {
		t.Errorf("30 pictures of 64 positions: exit %d, stderr %q", r.code, r.err)
	}
	lines := strings.Repeat("/image "+picture+"\n", 8) + number + "\n"
	r = with(context.Background(), nil, lines, "run")
	want := "the conversation is full: it would take 4608 of 4096 positions; /drop takes away " +
		picture + ", /clear everything"
	if r.code != exitFailure || !strings.Contains(r.err, want) {
		t.Errorf("8 pictures: exit %d, stderr %q, want %q", r.code, r.err, want)
	}
	r = with(context.Background(), nil,
		strings.Repeat("/image "+picture+"\n",
			8)+"/drop\n/drop\n"+number+"\n/clear\n/image "+picture+"\n"+number+"\n", "run")
	if r.code != exitOK || !strings.HasSuffix(r.out, numberAnswer+"\n") {
		t.Errorf("dropped: exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
}

// Ensure that an environment variable never blocks a flag that excludes it, nor a command or model
// for which it has no effect, and that two exclusive flags on the command line are refused.
func TestVariablesGiveWay(t *testing.T) {
	picture := drawn(t, numberSeed)
	ask := []string{"run", "--image", picture, "-p", number, "-n", "2"}
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
		"budgets' variables":   {map[string]string{"RESTORE_KEEP_RATIO": "0.5"}, append(ask, "--n-vis", "0128"), "576 -> 64 kept + 64"},
		"switch and a word":    {nil, append(ask, "--decode-distance", "false", "--exif", "true"), "576 -> 32 kept"},
	} {
		r := with(context.Background(), c.env, "", c.args...)
		if r.code != exitOK || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: exit %d, stderr %q, want %q", name, r.code, r.err, c.want)
		}
	}
	for want, args := range map[string][]string{
		"--gamma: got 0.3":       append(ask, "--restore=false", "--gamma", "0.3"),
		"--max-pixels: got 9000": append(ask, "--max-pixels", "9000"),
		"both given":             {"flops", "--shape", "embedded", "-m", "x"},
	} {
		if r := cli(args...); r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, stderr %q, want %q", args, r.code, r.err, want)
		}
	}
	r := with(context.Background(), map[string]string{"RESTORE_GAMMA": "7"}, "", ask...)
	if r.code != exitUsage || !strings.HasPrefix(r.err, "restore: RESTORE_GAMMA: got 7, want") {
		t.Errorf("named: exit %d, stderr %q", r.code, r.err)
	}
}
