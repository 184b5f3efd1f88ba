package idefics3

import (
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// with returns the processor of the published sizes, with more settings of clips, or what is wrong
// with them.
func with(t testing.TB, more string) (*clips, error) {
	t.Helper()
	const pictures = `"do_image_splitting":true,"do_pad":true,"resample":1,` +
		`"size":{"longest_edge":1536},"max_image_size":{"longest_edge":384}`
	p, err := imageproc.ParseProcessor([]byte(
		`{"image_processor_type":"SmolVLMImageProcessor",`+pictures+`}`), SmolVLM2.Processors)
	if err != nil {
		t.Fatal(err)
	}
	p, err = imageproc.WithVideo(p, []byte("{"+pictures+more+"}"), SmolVLM2.Videos[0])
	if err != nil {
		return nil, err
	}
	return p.(*clips), nil
}

// Ensure that frames are sampled as by transformers, and that their texts are the same: the number
// of frames in words, the length of the video, and the time of each.
func TestClips(t *testing.T) {
	var table struct{ Rows [][]any }
	golden.JSON(t, "testdata/sampling.json", &table)
	if len(table.Rows) < 60 {
		t.Fatalf("%d rows", len(table.Rows))
	}
	for _, r := range table.Rows {
		n, fps := int(r[0].(float64)), r[1].(float64)
		c, err := with(t, fmt.Sprintf(`,"video_sampling":{"max_frames":%v,"fps":%v,`+
			`"video_size":{"longest_edge":384}}`, r[2], r[3]))
		if err != nil {
			t.Fatal(err)
		}
		at := c.sampled(n, fps)
		if fmt.Sprint(at) != fmt.Sprint(r[4]) {
			t.Errorf("%v: got %v", r, at)
			continue
		}
		px := &imageproc.Pixels{Seconds: float64(n) / fps}
		for _, i := range at {
			px.Times = append(px.Times, float64(i)/fps)
		}
		text := ""
		for i := range at {
			before, after := around(px, i)
			text += before + after
		}
		if sum := crc32.ChecksumIEEE([]byte(text)); float64(sum) != r[5].(float64) {
			t.Errorf("%v: another text than %q", r, text)
		}
	}
}

// Ensure that all frames are read if nothing says how many are sampled, that newer settings are
// read, and that others are refused by name.
func TestClipSettings(t *testing.T) {
	for more, want := range map[string]string{
		"":                         "0 0",
		`,"num_frames":64,"fps":2`: "64 2",
		`,"num_frames":null,"fps":null,"do_sample_frames":false`:             "0 0",
		`,"num_frames":8,"fps":2,"video_sampling":{"max_frames":16,"fps":1}`: "16 1",
		`,"fps":1`:                                         "num_frames: missing",
		`,"num_frames":4`:                                  "fps: missing",
		`,"do_sample_frames":true`:                         "fps: missing",
		`,"num_frames":4,"fps":-1`:                         "fps: got -1",
		`,"video_sampling":5`:                              "video_sampling: got 5",
		`,"max_image_size":{"longest_edge":512}`:           "max_image_size: got 512, want the pictures' 384",
		`,"do_resize":false`:                               "do_resize",
		`,"video_processor_type":"InternVLVideoProcessor"`: "video_processor_type",
	} {
		c, err := with(t, more)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", more, err, want)
			}
		} else if got := fmt.Sprint(c.most, c.rate); got != want {
			t.Errorf("%s: got %s, want %s", more, got, want)
		}
	}
	c, err := with(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if at := c.sampled(3, 7); fmt.Sprint(at) != "[0 1 2]" {
		t.Errorf("all frames: got %v", at)
	}
}

// Ensure that numbers and lengths of time are written as by Python's num2words 0.5.14 and
// timedelta.
func TestWords(t *testing.T) {
	for n, want := range map[int]string{
		0: "zero", 10: "ten", 19: "nineteen", 20: "twenty", 64: "sixty-four", 100: "one hundred",
		101: "one hundred and one", 999: "nine hundred and ninety-nine", 1000: "one thousand",
		1001: "one thousand and one", 1100: "one thousand, one hundred",
		12345: "twelve thousand, three hundred and forty-five",
		65536: "sixty-five thousand, five hundred and thirty-six",
	} {
		if got := words(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
	for s, want := range map[int]string{
		0: "0:00:00", 3599: "0:59:59", 86399: "23:59:59", 86400: "1 day, 0:00:00",
		2*86400 + 3661: "2 days, 1:01:01",
	} {
		if got := clock(s); got != want {
			t.Errorf("%d: got %q, want %q", s, got, want)
		}
	}
}
