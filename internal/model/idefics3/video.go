package idefics3

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/internal/imageproc"
)

// clips is SmolVLMImageProcessor with SmolVLMVideoProcessor: of a clip, frames are sampled, and
// each becomes one view.
type clips struct {
	*imageproc.Splits                   // of pictures
	frames            *imageproc.Splits // of clips
	rate              float64           // sampled frames per second
	most              int               // sampled frames; 0: all frames are read
}

var (
	_ imageproc.Limiter        = (*clips)(nil)
	_ imageproc.VideoProcessor = (*clips)(nil)
)

// maxFrames limits the settings of frames.
const maxFrames = 1 << 16

// withClips completes p by the settings of a video processor. If they say how many frames are
// sampled, dialogues in transformers have that many, whatever do_sample_frames says.
func withClips(r *imageproc.Settings, p imageproc.Processor) imageproc.Processor {
	names := [][2]string{{"max_frames", "num_frames"}, {"fps", "fps"}}
	if !r.Has("size") {
		names = append(names, [2]string{"video_size", "size"})
	}
	r.Lift("video_sampling", names)
	c := &clips{
		frames: imageproc.NewSplits(r).(*imageproc.Splits).Whole(),
		rate:   r.Float("fps", 0), most: r.Int("num_frames", 0, 1, maxFrames),
	}
	sample := r.Bool("do_sample_frames", false) || r.Has("fps") || r.Has("num_frames")
	for _, key := range []string{"fps", "num_frames"} {
		if sample && !r.Has(key) {
			r.Fail(key, "missing, want a number where frames are sampled")
		}
	}
	if !(c.rate >= 0 && c.rate <= imageproc.MaxFPS) {
		r.Fail("fps", "got %v, want 0 to %d", c.rate, imageproc.MaxFPS)
	}
	q, ok := p.(*imageproc.Splits)
	if !ok {
		return p // of another family, whose pixels this family's model refuses
	}
	if c.frames.Side != q.Side {
		r.Fail("max_image_size", "got %d, want the pictures' %d", c.frames.Side, q.Side)
	}
	c.Splits = q
	return c
}

// Limit implements [imageproc.Limiter] for pictures. A frame is one view in any case.
func (c *clips) Limit(lo, hi int) (imageproc.Processor, error) {
	p, err := c.Splits.Limit(lo, hi)
	if err != nil {
		return nil, err
	}
	other := *c
	other.Splits = p.(*imageproc.Splits)
	return &other, nil
}

// sampled returns the indexes of the frames that are read of a clip of n frames: evenly spaced ones
// and, of a long clip, none of the first and last second.
func (c *clips) sampled(n int, fps float64) []int {
	seconds := float64(n) / fps
	first, last, count := 0, n-1, n
	if c.most > 0 {
		count = int(max(1, min(math.RoundToEven(c.rate*seconds), float64(c.most))))
		if seconds-2 > float64(float64(c.most)*c.rate) {
			first, last = int(fps), min(int(float64(n)-fps), n-1)
		}
	}
	if first >= last {
		first, last = 0, n-1
	}
	step := float64(last-first) / float64(max(count-1, 1))
	at := make([]int, count)
	for i := range at {
		at[i] = int(float64(float64(i)*step) + float64(first))
	}
	if count > 1 {
		at[count-1] = last
	}
	return slices.Compact(at)
}

// ProcessVideo returns [frames, 3, Side, Side] of the sampled frames, with the time of each in
// Times.
func (c *clips) ProcessVideo(v *imageproc.Video) (*imageproc.Pixels, error) {
	if err := v.Check(); err != nil {
		return nil, err
	}
	at := c.sampled(len(v.Frames), v.FPS)
	px, err := c.frames.Process(v.Sampled(at))
	if err != nil {
		return nil, err
	}
	out := &imageproc.Pixels{
		Shape: append([]int{len(at)}, px.Shape[2:]...), Data: px.Data,
		Seconds: float64(len(v.Frames)) / v.FPS,
	}
	out.SecondsPerMoment = out.Seconds / float64(len(at))
	for _, i := range at {
		out.Times = append(out.Times, float64(i)/v.FPS)
	}
	return out, nil
}

// videoTemplate is the chat template of dialogues with videos: transformers takes it in place of
// the model's own, which has no place for them.
const (
	videoPlace    = "<video>"
	videoTemplate = `
{{- '<|im_start|>' -}}
{%- for m in messages -%}
  {{- m.role | capitalize ~ ':' -}}
  {%- if m.content is string -%}{{- ' ' ~ m.content -}}
  {%- else -%}
    {{- ' ' if m.content[0].type != 'image' -}}
    {%- for part in m.content -%}
      {%- if part.type == 'text' -%}{{- part.text -}}
      {%- elif part.type == 'image' -%}{{- '` + place + `' -}}
      {%- elif part.type == 'video' -%}{{- '` + videoPlace + `' -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<end_of_utterance>\n' -}}
{%- endfor -%}
{{- 'Assistant:' if add_generation_prompt -}}`
)

// around returns the texts before and after frame i of a video of px.
func around(px *imageproc.Pixels, i int) (before, after string) {
	if i == 0 {
		before = fmt.Sprintf("You are provided the following series of %s frames from a %s "+
			"[H:MM:SS] video.\n", words(len(px.Times)), clock(int(px.Seconds)))
	}
	if i == len(px.Times)-1 {
		after = "\n\n"
	}
	rest := math.Mod(px.Times[i], 60)
	minutes := math.Round((px.Times[i] - rest) / 60)
	return before + fmt.Sprintf("\nFrame from %02.0f:%02d:", minutes, int(rest)), after
}

// clock returns a length of time as hours, minutes and seconds, after days if there are any.
func clock(seconds int) string {
	text := fmt.Sprintf("%d:%02d:%02d", seconds/3600%24, seconds/60%60, seconds%60)
	switch days := seconds / (24 * 3600); days {
	case 0:
		return text
	case 1:
		return "1 day, " + text
	default:
		return fmt.Sprintf("%d days, %s", days, text)
	}
}

var (
	small = strings.Fields("zero one two three four five six seven eight nine ten eleven twelve " +
		"thirteen fourteen fifteen sixteen seventeen eighteen nineteen")
	tens = strings.Fields("- - twenty thirty forty fifty sixty seventy eighty ninety")
)

// words returns the English words of a number below a million.
func words(n int) string {
	switch {
	case n < 20:
		return small[n]
	case n < 100 && n%10 == 0:
		return tens[n/10]
	case n < 100:
		return tens[n/10] + "-" + small[n%10]
	}
	unit, name := 100, " hundred"
	if n >= 1000 {
		unit, name = 1000, " thousand"
	}
	text, rest := words(n/unit)+name, n%unit
	switch {
	case rest == 0:
		return text
	case rest < 100:
		return text + " and " + words(rest)
	default:
		return text + ", " + words(rest)
	}
}
