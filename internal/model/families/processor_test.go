package families

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
)

// published are the published documents of families with videos, without canvases and settings of
// frames that are the defaults.
var published = map[string]*checkpoint.Parts{
	"onevision": parts("LlavaOnevisionForConditionalGeneration",
		`{"image_processor_type":"LlavaOnevisionImageProcessor","do_pad":true,`+
			`"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5],`+
			`"size":{"height":384,"width":384}}`,
		`{"video_processor_type":"LlavaOnevisionVideoProcessor","do_resize":true,`+
			`"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5],`+
			`"size":{"height":384,"width":384}}`),
	"qwen3vl": parts("Qwen3VLForConditionalGeneration",
		`{"image_processor_type":"Qwen2VLImageProcessorFast","patch_size":16,`+
			`"size":{"shortest_edge":65536,"longest_edge":16777216},`+
			`"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5]}`,
		`{"video_processor_type":"Qwen3VLVideoProcessor","patch_size":16,`+
			`"size":{"shortest_edge":4096,"longest_edge":25165824}}`),
	"qwen25vl": parts("Qwen2_5_VLForConditionalGeneration",
		`{"image_processor_type":"Qwen2VLImageProcessor","min_pixels":3136,`+
			`"max_pixels":12845056}`,
		`{"video_processor_type":"Qwen2VLVideoProcessor","do_sample_frames":false,`+
			`"size":{"shortest_edge":3136,"longest_edge":12845056}}`),
	"smolvlm": parts("SmolVLMForConditionalGeneration",
		`{"image_processor_type":"SmolVLMImageProcessor","do_image_splitting":true,`+
			`"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5],`+
			`"max_image_size":{"longest_edge":384},"size":{"longest_edge":1536}}`,
		`{"do_image_splitting":true,"max_image_size":{"longest_edge":384},`+
			`"size":{"longest_edge":1536},"video_sampling":{"fps":1,"max_frames":64,`+
			`"video_size":{"longest_edge":384}}}`),
	"internvl": parts("InternVLForConditionalGeneration",
		`{"image_processor_type":"GotOcr2ImageProcessorFast",`+
			`"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5],`+
			`"size":{"height":448,"width":448}}`,
		`{"video_processor_type":"InternVLVideoProcessor","do_sample_frames":true,`+
			`"num_frames":2,"size":{"height":448,"width":448}}`),
}

func parts(architecture, pictures, videos string) *checkpoint.Parts {
	p := &checkpoint.Parts{}
	p.Config.Data = []byte(`{"architectures":["` + architecture + `"]}`)
	p.Processor = checkpoint.Part{From: "preprocessor_config.json", Data: []byte(pictures)}
	p.Video = checkpoint.Part{From: "video_preprocessor_config.json", Data: []byte(videos)}
	return p
}

func prepares(t testing.TB, p *checkpoint.Parts) imageproc.Processor {
	t.Helper()
	proc, refused, err := Prepares("x", p)
	if err != nil || refused != nil {
		t.Fatal(err, refused)
	}
	return proc
}

// Ensure that pictures, alone and among several, have transformers' pixel values, bit for bit.
func TestPixels(t *testing.T) {
	for _, family := range []string{"onevision", "qwen3vl"} {
		var cases map[string]struct {
			Picture string
			Alone   bool
			Shape   []int
			SHA256  string
		}
		golden.JSON(t, filepath.Join("testdata", family+".json"), &cases)
		if len(cases) < 8 {
			t.Fatalf("%d cases", len(cases))
		}
		p := prepares(t, published[family])
		for name, c := range cases {
			proc := p
			if crowd, ok := p.(imageproc.CrowdProcessor); ok && !c.Alone {
				proc = crowd.Several()
			}
			raw, err := os.ReadFile(filepath.Join("../../imageproc/testdata", c.Picture))
			if err != nil {
				t.Fatal(err)
			}
			pic, err := imageproc.Decode(raw, name, imageproc.DecodeOptions{EXIF: true})
			if err != nil {
				t.Fatal(err)
			}
			px, err := proc.Process([]*imageproc.Picture{pic})
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprint(px.Shape) != fmt.Sprint(c.Shape) || hash(t, px) != c.SHA256 {
				t.Errorf("%s: shape %v, other values than the reference's of %v", name, px.Shape,
					c.Shape)
			}
		}
	}
}

// hash returns the SHA-256 of the pixel values.
func hash(t testing.TB, px *imageproc.Pixels) string {
	t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, px.Data); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:])
}

// clip returns frames of w by h pixels.
func clip(frames, w, h int) *imageproc.Video {
	v := &imageproc.Video{FPS: 2}
	for f := range frames {
		p := &imageproc.Picture{Width: w, Height: h, Pix: make([]byte, 3*w*h)}
		for i := range p.Pix {
			p.Pix[i] = byte(i*7 + i/w*3 + 50*f)
		}
		v.Frames = append(v.Frames, p)
	}
	return v
}

// Ensure that frames are prepared by the video processor's settings, and without one by the
// pictures': a frame's byte of 128 becomes (128/255 - mean)/std.
func TestVideoSettings(t *testing.T) {
	grey := clip(2, 64, 64)
	for _, f := range grey.Frames {
		for i := range f.Pix {
			f.Pix[i] = 128
		}
	}
	value := func(mean, std float32) float32 {
		return (float32(float64(128)*0.00392156862745098) - mean) / std
	}
	for family, p := range published {
		pictures := strings.NewReplacer(`"image_mean":[0.5,0.5,0.5]`, `"image_mean":0.25`).Replace(
			string(p.Processor.Data))
		videos := strings.Replace(string(p.Video.Data), `{`, `{"image_mean":0.75,"image_std":0.125,`,
			1)
		videos = strings.Replace(videos, `"image_mean":[0.5,0.5,0.5],"image_std":[0.5,0.5,0.5],`, "",
			1)
		both := parts("", pictures, videos)
		both.Config = p.Config
		got, err := prepares(t, both).(imageproc.VideoProcessor).ProcessVideo(grey)
		if err != nil || got.Data[0] != value(0.75, 0.125) {
			t.Errorf("%s: got %v, %v, want %v", family, got.Data[0], err, value(0.75, 0.125))
		}
		both.Video.Data = nil
		mean, std := float32(0.25), float32(0.5)
		if family == "qwen25vl" {
			mean, std = float32(imageproc.CLIPMean[0]), float32(imageproc.CLIPStd[0])
		}
		got, err = prepares(t, both).(imageproc.VideoProcessor).ProcessVideo(grey)
		if err != nil || got.Data[0] != value(mean, std) {
			t.Errorf("%s: without a video processor: got %v, %v, want %v", family, got.Data[0],
				err, value(mean, std))
		}
	}
}

// Ensure that the frames of Qwen2-VL's and Qwen2.5-VL's videos share a number of tokens if the
// settings say so. The grids are from transformers 5.24 (Qwen2VLVideoProcessor).
func TestSharedTokens(t *testing.T) {
	p := *published["qwen25vl"]
	for _, c := range []struct {
		settings string
		w, h     int
		want     [3]int // of 8 frames
	}{
		{`"size":{"shortest_edge":3136,"longest_edge":31360},"max_video_tokens":10`,
			120, 72, [3]int{4, 6, 8}},
		{`"size":{"shortest_edge":3136,"longest_edge":31360},"max_video_tokens":10,` +
			`"cap_pixels_per_frame":true`, 120, 72, [3]int{4, 2, 4}},
		{`"patch_size":4,"temporal_patch_size":1,"size":{"shortest_edge":64,` +
			`"longest_edge":6400},"max_video_tokens":40,"cap_pixels_per_frame":true`,
			97, 17, [3]int{8, 2, 10}},
	} {
		p.Video.Data = []byte(`{"video_processor_type":"Qwen2VLVideoProcessor",` + c.settings + `}`)
		px, err := prepares(t, &p).(imageproc.VideoProcessor).ProcessVideo(clip(8, c.w, c.h))
		if err != nil || px.GridTHW[0] != c.want {
			t.Errorf("%s: got %v, %v, want %v", c.settings, px.GridTHW, err, c.want)
		}
	}
}

// Ensure that limits of pixels change pictures, in clips with limits of their own only these, and
// that one below the smallest canvas is refused.
func TestLimits(t *testing.T) {
	for family, want := range map[string][2]int{"qwen25vl": {4, 4}, "qwen3vl": {4, 64}} {
		p, err := imageproc.LimitPixels(prepares(t, published[family]), 784, 4*1024)
		if err != nil {
			t.Fatal(err)
		}
		v := clip(2, 256, 256)
		px, err := p.Process(v.Frames[:1])
		if err != nil {
			t.Fatal(err)
		}
		clip, err := p.(imageproc.VideoProcessor).ProcessVideo(v)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := px.Shape[0]/4, clip.Shape[0]/4; a != want[0] || b != want[1] {
			t.Errorf("%s: %d tokens of a picture and %d of a clip, want %v", family, a, b, want)
		}
	}
	if _, err := imageproc.LimitPixels(prepares(t, published["onevision"]), 0, 1024); err == nil ||
		!strings.Contains(err.Error(), "max-pixels: got 1024, want at least 147456") {
		t.Errorf("onevision: got %v, want a refusal", err)
	}
}

// Ensure that settings that would change the pixels, or do not go with the pictures', are refused
// by name, and that those of videos refuse only videos.
func TestSettingsRefused(t *testing.T) {
	for _, c := range []struct {
		family, old, new, names string
		pictures                bool // are refused, too
	}{
		{"onevision", `"height":384`, `"height":383`, "size", true},
		{"onevision", `{"height":384,"width":384}`, `{"shortest_edge":384}`, "size", true},
		{"onevision", `"do_pad":true`, `"do_pad":false,"do_resize":false`, "do_resize", true},
		{"onevision", `"do_pad":true`, `"do_resize":null`, "do_resize", true},
		{"onevision", `"do_pad":true`, `"do_center_crop":true`, "do_center_crop", true},
		{"onevision", `"do_pad":true`, `"crop_size":192`, "crop_size", true},
		{"onevision", `"do_pad":true`, `"image_grid_pinpoints":[[384,100]]`, "image_grid_pinpoints", true},
		{"onevision", `"do_resize":true`, `"do_resize":false`, "do_resize", false},
		{"onevision", `"do_resize":true`, `"do_center_crop":true`, "do_center_crop", false},
		{"onevision", `"do_resize":true`, `"do_sample_frames":true`, "do_sample_frames", false},
		{"onevision", `"size":{"height":384,"width":384}}`, `"size":384}`, "shortest_edge", false},
		{"onevision", `LlavaOnevisionVideo`, `Qwen2VLVideo`, "want LlavaOnevisionVideoProcessor", false},
		{"qwen3vl", `Processor","patch_size":16`, `Processor","patch_size":14`, "patch_size", false},
		{"qwen3vl", `Processor","patch`, `Processor","merge_size":3,"patch`, "merge_size", false},
		{"qwen3vl", `"shortest_edge":4096`, `"height":4096`, "size", false},
		{"qwen3vl", `Processor","patch`, `Processor","fps":-1,"patch`, "fps", false},
		{"qwen3vl", `Processor","patch`, `Processor","fps":null,"patch`, "fps", false},
		{"qwen3vl", `Processor","patch`, `Processor","max_frames":0,"patch`, "max_frames", false},
		{"qwen3vl", `Processor","patch`, `Processor","num_frames":8,"patch`, "num_frames", false},
		{"qwen3vl", `Processor","patch`, `Processor","do_resize":false,"patch`, "do_resize", false},
		{"qwen25vl", `"do_sample_frames":false`, `"do_sample_frames":true`, "do_sample_frames", false},
		{"qwen25vl", `"shortest_edge":3136`, `"shortest_edge":0`, "shortest_edge", false},
	} {
		p := *published[c.family]
		for _, part := range []*checkpoint.Part{&p.Processor, &p.Video} {
			part.Data = []byte(strings.Replace(string(part.Data), c.old, c.new, 1))
		}
		proc, refused, err := Prepares("x", &p)
		if (err != nil) != c.pictures || (proc == nil) != c.pictures {
			t.Errorf("%s: %s: got %v, %v, pictures refused: want %v", c.family, c.new, proc, err,
				c.pictures)
		}
		if err = cmp.Or(err, refused); err == nil || !strings.Contains(err.Error(), c.names) ||
			!strings.Contains(err.Error(), "got") || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: %s: got %v, want an error that names %s", c.family, c.new, err, c.names)
		}
	}
}

// FuzzVideo ensures that any settings of a video processor are refused or prepare a video.
func FuzzVideo(f *testing.F) {
	for family, p := range published {
		f.Add(family, string(p.Video.Data), uint8(3), uint8(40), uint8(30))
	}
	f.Add("qwen3vl", `{"patch_size":16,"cap_pixels_per_frame":true,"max_video_tokens":3,`+
		`"size":{"shortest_edge":3000,"longest_edge":9000}}`, uint8(7), uint8(64), uint8(48))
	f.Fuzz(func(t *testing.T, family, videos string, frames, w, h uint8) {
		p := published[family]
		if p == nil || frames == 0 || w == 0 || h == 0 || frames > 16 {
			return
		}
		q := *p
		q.Video.Data = []byte(videos)
		proc, refused, err := Prepares("x", &q)
		if err != nil || proc == nil {
			t.Fatalf("settings of videos refuse pictures: %v", err)
		}
		if refused != nil {
			if strings.Contains(refused.Error(), "\n") {
				t.Fatalf("error %q", refused)
			}
			return
		}
		px, err := proc.(imageproc.VideoProcessor).ProcessVideo(clip(int(frames), int(w), int(h)))
		if err != nil {
			return
		}
		n := 1
		for _, d := range px.Shape {
			n *= d
		}
		if n != len(px.Data) {
			t.Fatalf("shape %v, %d values", px.Shape, len(px.Data))
		}
	})
}

// Ensure that an older Qwen whose files name Qwen3-VL's video processor has its sampled frames and
// sizes, and the seconds between moments of transformers 5.24 (Qwen2_5_VLProcessor).
func TestOlderQwenClips(t *testing.T) {
	p := *published["qwen25vl"]
	p.Video.Data = []byte(`{"video_processor_type":"Qwen3VLVideoProcessor","patch_size":14,` +
		`"size":{"shortest_edge":4096,"longest_edge":200000}}`)
	for _, c := range []struct {
		n       int
		fps     float64
		w, h    int
		grid    [3]int
		seconds float32
	}{
		{5, 2, 96, 64, [3]int{3, 4, 6}, 1},
		{16, 12.5, 96, 64, [3]int{2, 4, 6}, 0.64},
		{31, 29.97, 64, 48, [3]int{2, 4, 4}, 0.51718384},
		{9, 1, 40, 30, [3]int{5, 2, 2}, 2},
		{100, 24, 64, 48, [3]int{4, 4, 4}, 1.0416666},
	} {
		v := clip(c.n, c.w, c.h)
		v.FPS = c.fps
		px, err := prepares(t, &p).(imageproc.VideoProcessor).ProcessVideo(v)
		if err != nil || px.GridTHW[0] != c.grid || float32(px.SecondsPerMoment) != c.seconds {
			t.Errorf("%+v: got %v, %v, %v", c, px.GridTHW, px.SecondsPerMoment, err)
		}
	}
}
