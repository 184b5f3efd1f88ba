package internvl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// with returns a processor with more settings of clips, or what is wrong with them.
func with(t testing.TB, more string) (*clips, error) {
	t.Helper()
	const pictures = `"size":{"height":448,"width":448},"crop_to_patches":false,"max_patches":12`
	p, err := imageproc.ParseProcessor([]byte(
		`{"image_processor_type":"GotOcr2ImageProcessorFast",`+pictures+`}`), Family.Processors)
	if err != nil {
		t.Fatal(err)
	}
	p, err = imageproc.WithVideo(p, []byte("{"+pictures+more+"}"), Family.Videos[0])
	if err != nil {
		return nil, err
	}
	return p.(*clips), nil
}

// Ensure that frames are sampled as by transformers, by number and by rate, from the middle of each
// part or its start, and refused where it refuses them.
func TestClips(t *testing.T) {
	var table struct{ Rows [][]any }
	golden.JSON(t, "testdata/sampling.json", &table)
	if len(table.Rows) < 50 {
		t.Fatalf("%d rows", len(table.Rows))
	}
	for _, r := range table.Rows {
		n, fps := int(r[0].(float64)), r[1].(float64)
		more := fmt.Sprintf(`,"do_sample_frames":true,"initial_shift":%v,"fps":%v`, r[4], r[3])
		if r[2].(float64) > 0 {
			more += fmt.Sprintf(`,"num_frames":%v`, r[2])
		}
		c, err := with(t, more)
		if err != nil {
			t.Fatal(err)
		}
		at, err := c.sampled(n, fps)
		if r[5] == nil && err == nil || r[5] != nil && fmt.Sprint(at) != fmt.Sprint(r[5]) {
			t.Errorf("%v: got %v, %v", r, at, err)
		}
	}
}

// Ensure that all frames are read unless the settings say otherwise, and that settings without a
// meaning here are refused by name.
func TestClipSettings(t *testing.T) {
	for more, want := range map[string]string{
		"":                        "[0 1 2 3 4]",
		`,"num_frames":2,"fps":1`: "[0 1 2 3 4]",
		`,"num_frames":2,"do_sample_frames":true,"initial_shift":false`: "[0 2]",
		`,"num_frames":9,"do_sample_frames":true`:                       "of which 9 are sampled",
		`,"do_sample_frames":true`:                                      "num_frames: missing",
		`,"initial_shift":0.5`:                                          "initial_shift",
		`,"size":{"height":384,"width":384}`:                            "size: got 384, want the pictures' 448",
		`,"do_center_crop":true`:                                        "do_center_crop",
		`,"video_processor_type":"SmolVLMVideoProcessor"`:               "video_processor_type",
	} {
		var at []int
		c, err := with(t, more)
		if err == nil {
			at, err = c.sampled(5, 2)
		}
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %s", more, err, want)
			}
		} else if got := fmt.Sprint(at); got != want {
			t.Errorf("%s: got %s, want %s", more, got, want)
		}
	}
}
