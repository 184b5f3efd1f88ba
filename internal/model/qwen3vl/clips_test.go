package qwen3vl

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// published is the processor of the published sizes, with more settings of clips.
func published(t testing.TB, more string) *clips {
	t.Helper()
	p, err := imageproc.ParseProcessor([]byte(`{"image_processor_type":"Qwen2VLImageProcessor",`+
		`"patch_size":16,"size":{"shortest_edge":65536,"longest_edge":16777216},`+
		`"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5]}`), Family.Processors)
	if err != nil {
		t.Fatal(err)
	}
	p, err = imageproc.WithVideo(p, []byte(`{"patch_size":16,`+more+
		`"size":{"shortest_edge":4096,"longest_edge":25165824}}`), Clips)
	if err != nil {
		t.Fatal(err)
	}
	return p.(*clips)
}

// rows reads a table of the reference.
func rows(t *testing.T, file string) (out [][]any) {
	t.Helper()
	var table struct{ Rows [][]any }
	golden.JSON(t, "testdata/"+file, &table)
	if len(table.Rows) < 30 {
		t.Fatalf("%s: %d rows", file, len(table.Rows))
	}
	return table.Rows
}

func whole64(v any) int { return int(v.(float64)) }

// Ensure that pictures and clips get the reference's sizes, or are refused where it refuses them:
// also small ones, long ones, many frames, and with a limit for each frame.
func TestClipSizes(t *testing.T) {
	c, capped := published(t, ""), published(t, `"cap_pixels_per_frame":true,`)
	check := func(what string, want []any, ow, oh int, err error) {
		t.Helper()
		if want[0] == nil {
			if err == nil {
				t.Errorf("%s: got %dx%d, want a refusal", what, ow, oh)
			}
		} else if err != nil || oh != whole64(want[0]) || ow != whole64(want[1]) {
			t.Errorf("%s: got %dx%d, %v, want %v", what, oh, ow, err, want)
		}
	}
	for _, r := range rows(t, "pictures.json") {
		ow, oh, err := c.Fit(1, 1, whole64(r[1]), whole64(r[0]))
		check(fmt.Sprintf("picture %v", r[:2]), r[2:], ow, oh, err)
	}
	for _, r := range rows(t, "clips.json") {
		n, h, w := whole64(r[0]), whole64(r[1]), whole64(r[2])
		if n < 2 {
			continue // ProcessVideo refuses it
		}
		ow, oh, err := c.fit(n, w, h)
		check(fmt.Sprintf("clip %v", r[:3]), r[3:], ow, oh, err)
		ow, oh, err = capped.fit(n, w, h)
		check(fmt.Sprintf("capped clip %v", r[:3]), r[6:], ow, oh, err)
	}
}

// Ensure that frames are sampled as in the reference, and that moments have its times.
func TestClipSampling(t *testing.T) {
	c := published(t, "")
	for _, r := range rows(t, "sampling.json") {
		n, fps := whole64(r[0]), r[1].(float64)
		at := c.sampled(n, fps)
		sum := 0
		for _, i := range at {
			sum += i
		}
		if len(at) != whole64(r[2]) || sum != whole64(r[4]) ||
			r[3] != nil && fmt.Sprint(at) != fmt.Sprint(r[3]) {
			t.Errorf("%d frames at %v: got %d with the sum %d, want %v with %v", n, fps, len(at),
				sum, r[2], r[4])
			continue
		}
		var all []string
		for _, s := range c.times(at, fps) {
			all = append(all, fmt.Sprintf("<%.1f seconds>", s))
		}
		for i, want := range r[5].([]any) {
			if i >= len(all) || all[i] != want {
				t.Errorf("%d frames at %v: moment %d: got %q, want %v", n, fps, i, all, want)
				break
			}
		}
		sum256 := sha256.Sum256([]byte(strings.Join(all, "")))
		if got := binary.BigEndian.Uint32(sum256[:]); float64(got) != r[6].(float64) {
			t.Errorf("%d frames at %v: another time among %q", n, fps, all)
		}
	}
}

// Ensure that moments are rounded half to even where limits count pixels (round(5/2)·2 is 4), that
// the limit of a frame is an even share, but not below the least, and that clips of fewer frames
// than a moment has are refused. The sizes are transformers 5.23's.
func TestClipLimits(t *testing.T) {
	for _, c := range []struct {
		more        string
		least, most int
		n, w, h     int
		oh, ow      int
	}{
		{"", 4096, 25165824, 5, 2372, 2286, 2272, 2368},
		{"", 4096, 25165824, 13, 2012, 919, 928, 2016},
		{"", 4096, 25165824, 5, 2592, 1870, 1856, 2592},
		{"", 4096, 25165824, 9, 1216, 2517, 2528, 1216},
		{`"max_video_tokens":3`, 200000, 900000, 7, 400, 500, 512, 384},
		{`"max_video_tokens":30`, 20000, 90000, 5, 400, 500, 160, 128},
		{`"max_video_tokens":100`, 4096, 25165824, 3, 777, 333, 192, 480},
		{`"max_video_tokens":768`, 4096, 1000000, 11, 777, 333, 192, 448},
	} {
		if c.more != "" {
			c.more += `,"cap_pixels_per_frame":true,`
		}
		p := published(t, c.more)
		p.frames.MinPixels, p.frames.MaxPixels = c.least, c.most
		ow, oh, err := p.fit(c.n, c.w, c.h)
		if err != nil || ow != c.ow || oh != c.oh {
			t.Errorf("%+v: got %dx%d, %v", c, oh, ow, err)
		}
	}
	frame := &imageproc.Picture{Width: 64, Height: 64, Pix: make([]byte, 3*64*64)}
	if _, err := published(t, "").ProcessVideo(&imageproc.Video{
		Frames: []*imageproc.Picture{frame}, FPS: 2,
	}); err == nil || !strings.Contains(err.Error(), "at least 2") {
		t.Errorf("one frame: got %v, want a refusal", err)
	}
}
