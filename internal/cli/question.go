package cli

import (
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// QuestionFlags are the question, its pictures, and how they are read.
type QuestionFlags struct {
	fs        *pflag.FlagSet
	Images    []string
	Frames    []string
	fps       float64
	Prompt    string
	System    string
	maxPixels int64
	exif      bool
	Encoded   bool // pictures are not decoded here, but by a server
}

// AddImages declares the pictures.
func (q *QuestionFlags) AddImages(fs *pflag.FlagSet, instead string) {
	q.fs = fs
	fs.StringArrayVar(&q.Images, "image", nil,
		"picture `file` to ask about"+instead+", - is stdin; may be repeated")
}

// AddVideo declares the frames of a video.
func (q *QuestionFlags) AddVideo(fs *pflag.FlagSet) {
	fs.StringArrayVar(&q.Frames, "video-frames", nil,
		"picture `file`s of a video's frames in order; the video comes before the pictures, or "+
			"where <video> stands among <image>; all after the flag, or the flag repeated")
	fs.Float64Var(&q.fps, "fps", 2, "frames per `second`")
	Above(fs, 0, math.Inf(1), "fps")
}

// AddPrompt declares the question; more extends its help text.
func (q *QuestionFlags) AddPrompt(fs *pflag.FlagSet, more string) {
	fs.StringVarP(&q.Prompt, "prompt", "p", "",
		"the `question`"+more+"; @FILE reads it from a file, - from stdin (@@ is @). "+
			"<image> in it marks the place of a picture, otherwise pictures come first")
}

// AddSystem declares the system prompt.
func (q *QuestionFlags) AddSystem(fs *pflag.FlagSet) {
	fs.StringVar(&q.System, "system-prompt", "",
		"system prompt: say this `text` before the question, instead of the chat template's; "+
			"@FILE, - as with --prompt")
}

// AddReading declares how pictures are read.
func (q *QuestionFlags) AddReading(fs *pflag.FlagSet) {
	q.fs = fs
	fs.Int64Var(&q.maxPixels, "max-image-pixels", 64_000_000,
		"refuse pictures of more than `N` pixels")
	Within(fs, 1, imageproc.MostPixels, "max-image-pixels")
	fs.BoolVar(&q.exif, "exif", true, "rotate pictures by their EXIF orientation")
}

// given reports whether the command has a flag of that name and its value is not the default.
func (q *QuestionFlags) given(name string) bool {
	f := q.fs.Lookup(name)
	return f != nil && f.Changed
}

// Args takes the files after --video-frames.
func (q *QuestionFlags) Args(cmd *cobra.Command, args []string) error {
	switch n := len(q.Frames); {
	case len(args) == 0:
		return nil
	case n == 0 || !OnCommandLine(cmd.Flags().Lookup("video-frames")):
		return NoArgs(cmd, args)
	case n > 1:
		return Flagf("video-frames", "repeated, and %q without it, want one or the other", args[0])
	}
	q.Frames = append(q.Frames, args...)
	return nil
}

// Input is a file that a flag names.
type Input struct{ flag, path string }

// Inputs are the files to read.
func (q *QuestionFlags) Inputs() (files []Input) {
	for _, path := range q.Images {
		files = append(files, Input{"image", path})
	}
	for _, path := range q.Frames {
		files = append(files, Input{"video-frames", path})
	}
	for _, text := range []Input{{"prompt", q.Prompt}, {"system-prompt", q.System}} {
		if path, ok := source(text.path); ok {
			files = append(files, Input{text.flag, path})
		}
	}
	return files
}

// InputPaths are the paths of files.
func InputPaths(files []Input) (out []string) {
	for _, f := range files {
		out = append(out, f.path)
	}
	return out
}

// Check refuses wrong flags before any file is read.
func (q *QuestionFlags) Check() error {
	if q.fs == nil {
		return nil
	}
	return NoUse(q.fs, len(q.Frames) == 0, "has no use without --video-frames, got %v", "fps")
}

// CheckStdin refuses files that are stdin if several are, or if the questions of a conversation
// come from there.
func (a *App) CheckStdin(talk bool, files []Input) error {
	var flags []string
	for _, f := range files {
		if !a.isStdin(f.path) {
			continue
		}
		if flags = append(flags, "--"+f.flag); talk {
			return Usagef("%s: got %s, but the questions of a conversation come from stdin, want "+
				"--prompt or a file", flags[0], f.path)
		}
	}
	if len(flags) > 1 {
		return Usagef("stdin: - is given %d times (%s), want it once: it can be read once",
			len(flags), strings.Join(flags, ", "))
	}
	return nil
}

// isStdin reports whether path is stdin: "-", or a name of its terminal or pipe such as /dev/stdin.
func (a *App) isStdin(path string) bool {
	if path == "-" {
		return true
	}
	f, ok := a.In.(*os.File)
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

// Text returns the value of a flag that may name a file, without the line break at the file's end.
func (q *QuestionFlags) Text(a *App, flag, value string) (string, error) {
	path, ok := source(value)
	if !ok {
		text, err := files.TextString(value)
		if err != nil {
			return "", Flagf(flag, "%w", err)
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
	if data, err = asText(StdinName(path), data); err != nil {
		return "", fmt.Errorf("--%s: %w", flag, err)
	}
	value = strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if strings.TrimSpace(value) == "" {
		return "", Flagf(flag, "%s is empty, want a text", StdinName(path))
	}
	return value, nil
}

// Stdin returns stdin for its only reader; of says what it holds.
func (a *App) Stdin(of string) (io.Reader, error) {
	if a.stdinOf != "" {
		return nil, fmt.Errorf("is stdin, which holds %s, want a file", a.stdinOf)
	}
	a.stdinOf = of
	return a.In, nil
}

// StdinName is a file's name in errors and reports.
func StdinName(path string) string {
	if path == "-" {
		return "stdin"
	}
	return path
}

// Question is the question with its texts and pictures loaded.
type Question struct {
	Prompt, System string
	Places         []int // places of video and pictures in prompt; nil: before it
	Pictures       []ShownPicture
	Video          *restore.Video
	VideoAfter     int // pictures before the video
	videoName      string
}

// ShownPicture is a picture of a question.
type ShownPicture struct {
	Name string
	Pic  *restore.Picture
}

// Images are the question's pictures.
func (q *Question) Images() (pics []*restore.Picture) {
	for _, p := range q.Pictures {
		pics = append(pics, p.Pic)
	}
	return pics
}

// Names are the names of the question's video and pictures.
func (q *Question) Names() (names []string) {
	for _, p := range q.Pictures {
		names = append(names, p.Name)
	}
	if q.Video != nil {
		names = slices.Insert(names, q.VideoAfter, q.videoName)
	}
	return names
}

// Again makes q show what an earlier question showed, before what q shows.
func (q *Question) Again(earlier *Question) {
	if earlier.Video != nil {
		q.Video, q.VideoAfter, q.videoName = earlier.Video, 0, earlier.videoName
	}
	q.Pictures = slices.Concat(earlier.Pictures, q.Pictures)
}

// Shows says how much q shows.
func (q *Question) Shows() string { return shows(len(q.Pictures), q.Video != nil) }

func shows(pictures int, video bool) string {
	what := fmt.Sprintf("%d picture(s)", pictures)
	if video {
		what = "a video and " + what
	}
	return what
}

// Load reads texts and pictures.
func (q *QuestionFlags) Load(a *App) (*Question, error) {
	out := new(Question)
	var err error
	if out.Prompt, err = q.Text(a, "prompt", q.Prompt); err != nil {
		return nil, err
	}
	if out.System, err = q.Text(a, "system-prompt", q.System); err != nil {
		return nil, err
	}
	if q.given("prompt") {
		if err := out.Place(len(q.Images), len(q.Frames) > 0); err != nil {
			return nil, err
		}
	}
	if out.Pictures, err = q.pictures(a, q.Images); err != nil {
		return nil, err
	}
	if len(q.Frames) > 0 {
		var frames Question
		if frames.Pictures, err = q.pictures(a, q.Frames); err != nil {
			return nil, err
		}
		out.Video = &restore.Video{Frames: frames.Images(), FPS: q.fps}
		out.videoName = strings.Join(q.Frames, " ")
	}
	return out, nil
}

// marker matches the marker of a picture or a video in a prompt, in LLaVA's, Qwen's and llama.cpp's
// form.
var marker = regexp.MustCompile(
	`<\|vision_start\|>(?:(?:<\|image_pad\|>)+|(?:<\|video_pad\|>)+)<\|vision_end\|>|` +
		`<\|(?:image|video)_pad\|>|(?:<im_start>)?<image>(?:<im_end>)?|<video>|` +
		`<__(?:media|image)__>`)

// Place removes the markers from the prompt and records their places. There must be one marker per
// picture; a prompt without markers leaves the places to the chat template.
func (q *Question) Place(pictures int, video bool) error {
	found := marker.FindAllStringIndex(q.Prompt, -1)
	if found == nil {
		return nil
	}
	shown := pictures
	if video {
		shown++
	}
	if len(found) != shown {
		return Flagf("prompt", "got %d marker(s) like %s and %s to show, want as many of both",
			len(found), q.Prompt[found[0][0]:found[0][1]], shows(pictures, video))
	}
	isVideo := func(at []int) bool { return strings.Contains(q.Prompt[at[0]:at[1]], "video") }
	if video {
		// a marker that says only "media" is the video if it is the first
		q.VideoAfter = max(0, slices.IndexFunc(found, isVideo))
	}
	var text strings.Builder
	from := 0
	for i, at := range found {
		m, want := q.Prompt[at[0]:at[1]], video && i == q.VideoAfter
		if isVideo(at) != want && (isVideo(at) || !strings.Contains(m, "media")) {
			return Flagf("prompt", "marker %d is %s, want one <video> for a video and an <image> "+
				"for each picture", i+1, m)
		}
		text.WriteString(q.Prompt[from:at[0]])
		q.Places = append(q.Places, text.Len())
		from = at[1]
	}
	text.WriteString(q.Prompt[from:])
	q.Prompt = text.String()
	if strings.TrimSpace(q.Prompt) == "" {
		return Flagf("prompt", "holds markers of pictures alone, want a question about them")
	}
	return nil
}

// pictures reads pictures in order.
func (q *QuestionFlags) pictures(a *App, paths []string) ([]ShownPicture, error) {
	pics := make([]ShownPicture, len(paths))
	for i, path := range paths {
		var err error
		if pics[i], err = q.Picture(a, path); err != nil {
			return nil, err
		}
	}
	return pics, nil
}

// Picture reads one picture, and notes when the file contains more pictures.
func (q *QuestionFlags) Picture(a *App, path string) (ShownPicture, error) {
	p := ShownPicture{Name: StdinName(path)}
	if a.stdinOf == "" && a.isStdin(path) && IsTerminal(a.In) {
		return p, fmt.Errorf("%s: is a terminal, want a picture from a file or a pipe", p.Name)
	}
	data, err := a.read(path, MaxPictureBytes, func(head []byte) error {
		if err := imageproc.Recognise(head); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		return nil
	})
	if err != nil {
		return p, err
	}
	p.Pic, err = restore.NewPicture(data, &restore.PictureOptions{Name: p.Name,
		MaxPixels: q.maxPixels, MaxBytes: MaxPictureBytes, IgnoreEXIF: !q.exif})
	if err != nil || q.Encoded {
		return p, err
	}
	frames, err := p.Pic.Decode()
	if err != nil {
		return p, err
	}
	if frames > 1 {
		a.Note("%s: contains %d pictures, only the first is used", p.Name, frames)
	}
	return p, nil
}

// Note prints a message for a person; programs need not read it.
func (a *App) Note(format string, args ...any) {
	if a.Quiet {
		return
	}
	a.Say("note: %s", OneLine(fmt.Sprintf(format, args...)))
}

// HeadBytes is how much of a file is read before the decision to read the rest.
const HeadBytes = 512

// Open opens a file of at most limit bytes, or stdin.
func (a *App) Open(path string, limit int64) (io.ReadCloser, error) {
	if !a.isStdin(path) {
		return OpenInput(path, limit)
	}
	in, err := a.Stdin("another input")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return io.NopCloser(in), nil
}

// read reads a whole file of at most limit bytes, or stdin. accept, if not nil, checks the file's
// beginning before the rest is read.
func (a *App) read(path string, limit int64, accept func(head []byte) error) ([]byte, error) {
	in, err := a.Open(path, limit)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return readAll(in, StdinName(path), limit, accept)
}

// readAll reads r to its end. Its errors contain the name once.
func readAll(
	r io.Reader,
	name string,
	limit int64,
	accept func(head []byte) error,
) ([]byte, error) {
	head := make([]byte, HeadBytes)
	n, err := io.ReadFull(r, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, PathError(name, err)
	}
	if accept != nil {
		if err := accept(head[:n]); err != nil {
			return nil, err
		}
	}
	rest, err := io.ReadAll(io.LimitReader(r, limit+1-int64(n)))
	switch {
	case err != nil:
		return nil, PathError(name, err)
	case int64(n+len(rest)) > limit:
		return nil, fmt.Errorf("%s: too large, got more than %d bytes", name, limit)
	}
	return append(head[:n:n], rest...), nil
}
