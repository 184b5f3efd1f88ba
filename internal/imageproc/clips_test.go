package imageproc

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// qwen3Config and qwen3Clips are the published sizes.
const (
	qwen3Config = `{"image_processor_type":"Qwen2VLImageProcessorFast","patch_size":16,` +
		`"size":{"shortest_edge":65536,"longest_edge":16777216},"image_mean":[0.5,0.5,0.5],` +
		`"image_std":[0.5,0.5,0.5]}`
	qwen3Clips = `{"video_processor_type":"Qwen3VLVideoProcessor","patch_size":16,` +
		`"size":{"shortest_edge":4096,"longest_edge":25165824}}`
)

func clips(config string) (*Clips, error) {
	p, err := ParseProcessor([]byte(qwen3Config), []Kind{
		{Classes: []string{"Qwen2VLImageProcessor"}, New: NewPatches},
	})
	if err != nil {
		return nil, err
	}
	p, err = WithVideo(p, []byte(config), []VideoKind{
		{Classes: []string{"Qwen3VLVideoProcessor"}, New: NewClips},
	})
	if err != nil {
		return nil, err
	}
	return p.(*Clips), nil
}

// rows reads a table of the reference.
func rows(t *testing.T, file string) (out [][]any) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var table struct{ Rows [][]any }
	if err := json.Unmarshal(data, &table); err != nil || len(table.Rows) < 30 {
		t.Fatalf("%s: %d rows, %v", file, len(table.Rows), err)
	}
	return table.Rows
}

func whole64(v any) int { return int(v.(float64)) }

// Ensure that pictures and clips get the reference's sizes, or are refused where it refuses them:
// also small ones, long ones, many frames, and with a limit for each frame.
func TestClipSizes(t *testing.T) {
	c, err := clips(qwen3Clips)
	if err != nil {
		t.Fatal(err)
	}
	capped, err := clips(strings.Replace(qwen3Clips, `"patch_size"`,
		`"cap_pixels_per_frame":true,"patch_size"`, 1))
	if err != nil {
		t.Fatal(err)
	}
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
	for _, r := range rows(t, "qwen3vl_pictures.json") {
		ow, oh, err := c.smartSize(whole64(r[1]), whole64(r[0]))
		check(fmt.Sprintf("picture %v", r[:2]), r[2:], ow, oh, err)
	}
	for _, r := range rows(t, "qwen3vl_clips.json") {
		n, h, w := whole64(r[0]), whole64(r[1]), whole64(r[2])
		if n < 2 {
			continue // ProcessVideo refuses it
		}
		ow, oh, err := c.clipSize(n, w, h)
		check(fmt.Sprintf("clip %v", r[:3]), r[3:], ow, oh, err)
		ow, oh, err = capped.clipSize(n, w, h)
		check(fmt.Sprintf("capped clip %v", r[:3]), r[6:], ow, oh, err)
	}
}

// Ensure that frames are sampled as in the reference, and that moments have its times.
func TestClipSampling(t *testing.T) {
	c, err := clips(qwen3Clips)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows(t, "qwen3vl_sampling.json") {
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
		if got := binary.BigEndian.Uint32(sum256[:]); int(got) != whole64(r[6]) {
			t.Errorf("%d frames at %v: another time among %q", n, fps, all)
		}
	}
}

// Ensure that settings that do not go with the pictures' are refused by name, and clips of one
// frame.
func TestClipsRefused(t *testing.T) {
	for _, c := range []struct{ old, new, names string }{
		{`"patch_size":16`, `"patch_size":14`, "patch_size"},
		{`"patch_size":16`, `"merge_size":3`, "merge_size"},
		{`"shortest_edge":4096`, `"height":4096`, "size"},
		{`"patch_size":16`, `"fps":-1`, "fps"},
		{`"patch_size":16`, `"max_frames":0`, "max_frames"},
	} {
		_, err := clips(strings.Replace(qwen3Clips, c.old, c.new, 1))
		if err == nil || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: got %v, want an error that names %s", c.new, err, c.names)
		}
	}
	c, err := clips(qwen3Clips)
	if err != nil {
		t.Fatal(err)
	}
	frame := &Picture{Width: 64, Height: 64, Pix: make([]byte, 3*64*64)}
	if _, err := c.ProcessVideo(&Video{Frames: []*Picture{frame}, FPS: 2}); err == nil ||
		!strings.Contains(err.Error(), "at least 2") {
		t.Errorf("one frame: got %v, want a refusal", err)
	}
}

// Ensure that pictures have transformers' pixel values, bit for bit.
func TestQwen3Pixels(t *testing.T) {
	data, err := os.ReadFile("testdata/qwen3vl_pixels.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]struct {
		Picture string
		Shape   []int
		SHA256  string
	}
	if err := json.Unmarshal(data, &cases); err != nil || len(cases) < 8 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	p, err := clips(qwen3Clips)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		checkPixels(t, name, p, c.Picture, c.Shape, c.SHA256)
	}
}
