package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/textfile"
)

// questionFlags are the question, its pictures, and how they are read.
type questionFlags struct {
	fs        *pflag.FlagSet
	images    []string
	frames    []string
	fps       float64
	prompt    string
	system    string
	maxPixels int64
	exif      bool
	encoded   bool // pictures are not decoded here, but by a server
}

// addImages declares the pictures.
func (q *questionFlags) addImages(fs *pflag.FlagSet, instead string) {
	q.fs = fs
	fs.StringArrayVar(&q.images, "image", nil,
		"picture `file` to ask about"+instead+", - is stdin; may be repeated")
}

// addVideo declares the frames of a video.
func (q *questionFlags) addVideo(fs *pflag.FlagSet) {
	fs.StringArrayVar(&q.frames, "video-frames", nil,
		"picture `file`s of a video's frames in order; the video comes before the pictures; all "+
			"after the flag, or\n        the flag repeated")
	fs.Float64Var(&q.fps, "fps", 2, "frames per `second`")
}

// addPrompt declares the question; more extends its help text.
func (q *questionFlags) addPrompt(fs *pflag.FlagSet, more string) {
	fs.StringVarP(&q.prompt, "prompt", "p", "",
		"the `question`"+more+"; @FILE reads it from a file, - from stdin (@@ is @). "+
			"<image> in it\n"+"        marks the place of a picture, otherwise pictures come first")
}

// addSystem declares the system prompt.
func (q *questionFlags) addSystem(fs *pflag.FlagSet) {
	fs.StringVar(&q.system, "system-prompt", "",
		"system prompt: say this `text` before the question, instead of the chat template's; "+
			"@FILE, - as\n        with --prompt")
}

// addReading declares how pictures are read.
func (q *questionFlags) addReading(fs *pflag.FlagSet) {
	q.fs = fs
	fs.Int64Var(&q.maxPixels, "max-image-pixels", 64_000_000,
		"refuse pictures of more than `N` pixels")
	fs.BoolVar(&q.exif, "exif", true, "rotate pictures by their EXIF orientation")
}

// given reports whether the command has a flag of that name and its value is not the default.
func (q *questionFlags) given(name string) bool {
	f := q.fs.Lookup(name)
	return f != nil && f.Changed
}

// args takes the files after --video-frames.
func (q *questionFlags) args(cmd *cobra.Command, args []string) error {
	switch n := len(q.frames); {
	case len(args) == 0:
		return nil
	case n == 0 || !onCommandLine(cmd.Flags().Lookup("video-frames")):
		return noArgs(cmd, args)
	case n > 1:
		return usagef("--video-frames: repeated, and %q without it, want one or the other", args[0])
	}
	q.frames = append(q.frames, args...)
	return nil
}

// input is a file that a flag names.
type input struct{ flag, path string }

// inputs are the files to read.
func (q *questionFlags) inputs() (files []input) {
	for _, path := range q.images {
		files = append(files, input{"image", path})
	}
	for _, path := range q.frames {
		files = append(files, input{"video-frames", path})
	}
	for _, text := range []input{{"prompt", q.prompt}, {"system-prompt", q.system}} {
		if path, ok := source(text.path); ok {
			files = append(files, input{text.flag, path})
		}
	}
	return files
}

// inputPaths are the paths of files.
func inputPaths(files []input) (out []string) {
	for _, f := range files {
		out = append(out, f.path)
	}
	return out
}

// check refuses wrong flags before any file is read.
func (q *questionFlags) check() error {
	switch {
	case q.maxPixels < 1 || q.maxPixels > imageproc.MostPixels:
		return usagef("--max-image-pixels: out of range, got %d, want 1 to %d", q.maxPixels,
			imageproc.MostPixels)
	case q.given("fps") && len(q.frames) == 0 && onCommandLine(q.fs.Lookup("fps")):
		return usagef("--fps: has no use without --video-frames, got %v", q.fps)
	case len(q.frames) > 0 && !(q.fps > 0):
		return usagef("--fps: out of range, got %v, want more than 0", q.fps)
	}
	return nil
}

// checkStdin refuses files that are stdin if several are, or if the questions of a conversation
// come from there.
func (a *app) checkStdin(talk bool, files []input) error {
	var flags []string
	for _, f := range files {
		if !a.isStdin(f.path) {
			continue
		}
		if flags = append(flags, "--"+f.flag); talk {
			return usagef("%s: got %s, but the questions of a conversation come from stdin, want "+
				"--prompt or a file", flags[0], f.path)
		}
	}
	if len(flags) > 1 {
		return usagef("stdin: - is given %d times (%s), want it once: it can be read once",
			len(flags), strings.Join(flags, ", "))
	}
	return nil
}

// isStdin reports whether path is stdin: "-", or a name of its terminal or pipe such as /dev/stdin.
func (a *app) isStdin(path string) bool {
	if path == "-" {
		return true
	}
	f, ok := a.in.(*os.File)
	if !ok || path == os.DevNull {
		return false
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().IsRegular() {
		return false
	}
	in, err := f.Stat()
	return err == nil && os.SameFile(info, in)
}

// source returns the file that a text comes from; ok is false for a literal text.
func source(text string) (path string, ok bool) {
	if text == "-" {
		return text, true
	}
	if path, ok = strings.CutPrefix(text, "@"); ok && path != "" && path[0] != '@' {
		return path, true
	}
	return "", false
}

// maxPromptBytes is the longest question that may come from a file.
const maxPromptBytes = 1 << 20

// text returns the value of a flag that may name a file, without the line break at the file's end.
func (q *questionFlags) text(a *app, flag, value string) (string, error) {
	path, ok := source(value)
	if !ok {
		text, err := textfile.String(value)
		if err != nil {
			return "", usagef("--%s: %w", flag, err)
		}
		if strings.HasPrefix(text, "@@") {
			text = text[1:]
		}
		return text, nil
	}
	data, err := a.read(path, maxPromptBytes, nil)
	if err != nil {
		return "", err
	}
	if data, err = asText(stdinName(path), data); err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	value = strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if strings.TrimSpace(value) == "" {
		return "", usagef("--%s: %s is empty, want a text", flag, stdinName(path))
	}
	return value, nil
}

// stdin returns stdin for its only reader; of says what it holds.
func (a *app) stdin(of string) (io.Reader, error) {
	if a.stdinOf != "" {
		return nil, fmt.Errorf("is stdin, which holds %s, want a file", a.stdinOf)
	}
	a.stdinOf = of
	return a.in, nil
}

// stdinName is a file's name in errors and reports.
func stdinName(path string) string {
	if path == "-" {
		return "stdin"
	}
	return path
}

// question is the question with its texts and pictures loaded.
type question struct {
	prompt, system string
	places         []int // places of video and pictures in prompt; nil: before it
	pictures       []shownPicture
	video          *imageproc.Video
	videoName      string
}

// shownPicture is a picture of a question.
type shownPicture struct {
	name string
	pic  *imageproc.Picture // nil if a server decodes it
	file []byte             // for a server, otherwise nil
}

// images are the question's pictures.
func (q *question) images() (pics []*imageproc.Picture) {
	for _, p := range q.pictures {
		pics = append(pics, p.pic)
	}
	return pics
}

// names are the names of the question's video and pictures.
func (q *question) names() (names []string) {
	if q.video != nil {
		names = append(names, q.videoName)
	}
	for _, p := range q.pictures {
		names = append(names, p.name)
	}
	return names
}

// load reads texts and pictures.
func (q *questionFlags) load(a *app) (*question, error) {
	out := new(question)
	var err error
	if out.prompt, err = q.text(a, "prompt", q.prompt); err != nil {
		return nil, err
	}
	if out.system, err = q.text(a, "system-prompt", q.system); err != nil {
		return nil, err
	}
	if q.given("prompt") {
		if err := out.place(len(q.images), len(q.frames) > 0); err != nil {
			return nil, err
		}
	}
	if out.pictures, err = q.pictures(a, q.images); err != nil {
		return nil, err
	}
	if len(q.frames) > 0 {
		var frames question
		if frames.pictures, err = q.pictures(a, q.frames); err != nil {
			return nil, err
		}
		out.video = &imageproc.Video{Frames: frames.images(), FPS: q.fps}
		out.videoName = strings.Join(q.frames, " ")
	}
	return out, nil
}

// marker matches the marker of a picture or a video in a prompt, in LLaVA's, Qwen's and llama.cpp's
// form.
var marker = regexp.MustCompile(
	`<\|vision_start\|>(?:(?:<\|image_pad\|>)+|(?:<\|video_pad\|>)+)<\|vision_end\|>|` +
		`<\|(?:image|video)_pad\|>|(?:<im_start>)?<image>(?:<im_end>)?|<video>|<__(?:media|image)__>`)

// place removes the markers from the prompt and records their places. There must be one marker per
// picture; a prompt without markers leaves the places to the chat template.
func (q *question) place(pictures int, video bool) error {
	found := marker.FindAllStringIndex(q.prompt, -1)
	if found == nil {
		return nil
	}
	shown, what := pictures, fmt.Sprintf("%d picture(s)", pictures)
	if video {
		shown, what = shown+1, "a video and "+what
	}
	if len(found) != shown {
		return usagef("--prompt: got %d marker(s) like %s and %s to show, want as many of both",
			len(found), q.prompt[found[0][0]:found[0][1]], what)
	}
	var text strings.Builder
	from := 0
	for i, at := range found {
		m := q.prompt[at[0]:at[1]]
		isVideo := strings.Contains(m, "video")
		if isVideo != (video && i == 0) && (isVideo || !strings.Contains(m, "media")) {
			return usagef("--prompt: marker %d is %s, want the video first, as <video>, and then "+
				"pictures, as <image>", i+1, m)
		}
		text.WriteString(q.prompt[from:at[0]])
		q.places = append(q.places, text.Len())
		from = at[1]
	}
	text.WriteString(q.prompt[from:])
	q.prompt = text.String()
	if strings.TrimSpace(q.prompt) == "" {
		return usagef("--prompt: holds markers of pictures alone, want a question about them")
	}
	return nil
}

// pictures reads pictures in order.
func (q *questionFlags) pictures(a *app, paths []string) ([]shownPicture, error) {
	pics := make([]shownPicture, len(paths))
	for i, path := range paths {
		var err error
		if pics[i], err = q.picture(a, path); err != nil {
			return nil, err
		}
	}
	return pics, nil
}

// picture reads one picture, and notes when the file contains more pictures.
func (q *questionFlags) picture(a *app, path string) (shownPicture, error) {
	p := shownPicture{name: stdinName(path)}
	if a.stdinOf == "" && a.isStdin(path) && isTerminal(a.in) {
		return p, fmt.Errorf("%s: is a terminal, want a picture from a file or a pipe", p.name)
	}
	data, err := a.read(path, maxPictureBytes, func(head []byte) error {
		if err := imageproc.Recognise(head); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return p, err
	case q.encoded:
		p.file = data
		return p, nil
	}
	limits := imageproc.Limits{MaxPixels: q.maxPixels, MaxBytes: maxPictureBytes}
	p.pic, err = imageproc.Decode(data, p.name, imageproc.DecodeOptions{
		EXIF: q.exif, Limits: limits,
	})
	if err != nil {
		return p, err
	}
	if p.pic.Frames > 1 {
		a.note("%s: contains %d pictures, only the first is used", p.name, p.pic.Frames)
	}
	return p, nil
}

// note prints a message for a person; programs need not read it.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.err, "restore: note: %s\n", oneLine(fmt.Sprintf(format, args...)))
}

// headBytes is how much of a file is read before the decision to read the rest.
const headBytes = 512

// open opens a file of at most limit bytes, or stdin.
func (a *app) open(path string, limit int64) (io.ReadCloser, error) {
	if !a.isStdin(path) {
		return openInput(path, limit)
	}
	in, err := a.stdin("another input")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return io.NopCloser(in), nil
}

// read reads a whole file of at most limit bytes, or stdin. accept, if not nil, checks the file's
// beginning before the rest is read.
func (a *app) read(path string, limit int64, accept func(head []byte) error) ([]byte, error) {
	in, err := a.open(path, limit)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return readAll(in, stdinName(path), limit, accept)
}

// readAll reads r to its end. Its errors contain the name once.
func readAll(
	r io.Reader,
	name string,
	limit int64,
	accept func(head []byte) error,
) ([]byte, error) {
	head := make([]byte, headBytes)
	n, err := io.ReadFull(r, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, pathError(name, err)
	}
	if accept != nil {
		if err := accept(head[:n]); err != nil {
			return nil, err
		}
	}
	rest, err := io.ReadAll(io.LimitReader(r, limit+1-int64(n)))
	switch {
	case err != nil:
		return nil, pathError(name, err)
	case int64(n+len(rest)) > limit:
		return nil, fmt.Errorf("%s: too large, got more than %d bytes", name, limit)
	}
	return append(head[:n:n], rest...), nil
}
