package imageproc

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
)

// solid is a w×h picture of one colour.
func solid(w, h int, c [3]byte) *Picture {
	p := &Picture{Width: w, Height: h, Pix: make([]byte, 0, w*h*3)}
	for range w * h {
		p.Pix = append(p.Pix, c[:]...)
	}
	return p
}

// Ensure frames name the part of the picture that the patches cover.
func TestFrames(t *testing.T) {
	for _, c := range []struct {
		proc string
		w, h int
		want Frame
	}{
		{"clip", 672, 336, Frame{168, 0, 336, 336}},  // ratio 1: columns 168 to 504
		{"clip", 1344, 672, Frame{336, 0, 672, 672}}, // the same at half size
		{"clip", 100, 100, Frame{0, 0, 100, 100}},    // enlarged, nothing cut
		// columns cut, 4 rows of padding above (⌈7/2⌉) and 3 below
		{"clip_small", 74, 37, Frame{12, -4, 50, 44}},
		{"llava_pad", 672, 336, Frame{0, -168, 672, 672}}, // 168 rows of padding above and below
		{"llava_pad", 336, 1008, Frame{-336, 0, 1008, 1008}},
		{"llava_next", 500, 300, Frame{0, 0, 500, 300}},
		{"qwen_a", 500, 300, Frame{0, 0, 500, 300}},
	} {
		px, err := goldenProcessor(t, c.proc).Process([]*Picture{solid(c.w, c.h, [3]byte{})})
		if err != nil {
			t.Fatal(err)
		}
		if len(px.Frames) != 1 || px.Frames[0] != c.want {
			t.Errorf("%s %dx%d: got %+v, want %+v", c.proc, c.w, c.h, px.Frames, c.want)
		}
	}
}

// Ensure a batch is the pictures one by one.
func TestBatch(t *testing.T) {
	a := processorInput(t, "testdata", "strokes_20x20.png")
	b := processorInput(t, "testdata", "gradient_61x84.png")
	for name := range processorConfigs {
		proc := goldenProcessor(t, name)
		both, err := proc.Process([]*Picture{a, b})
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for i, p := range []*Picture{a, b} {
			one, err := proc.Process([]*Picture{p})
			if err != nil {
				t.Fatal(err)
			}
			if both.Tiles != nil { // short ones are filled with zeros
				at = i * len(both.Data) / 2
			}
			if string(floatBytes(both.Data[at:at+len(one.Data)])) != string(floatBytes(one.Data)) {
				t.Errorf("%s: picture %d differs in a batch", name, i)
			}
			at += len(one.Data)
			if both.Frames[i] != one.Frames[0] || both.ImageSizes[i] != one.ImageSizes[0] {
				t.Errorf("%s: picture %d: frame or size differs in a batch", name, i)
			}
		}
	}
}

// Ensure very long pictures cost what their window costs, or give an error.
func TestElongated(t *testing.T) {
	thin := solid(1, 5000, [3]byte{9, 99, 199})
	for name := range processorConfigs {
		px, err := goldenProcessor(t, name).Process([]*Picture{thin})
		if strings.HasPrefix(name, "qwen") {
			if err == nil || !strings.Contains(err.Error(), "aspect ratio 5000, limit 200") {
				t.Errorf("%s: got %v, want an error about the aspect ratio", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if name == "clip" {
			table := goldenProcessor(t, "clip").(*CLIP).lut
			for i, v := range px.Data {
				if c := i / (336 * 336); v != table[c][thin.Pix[c]] {
					t.Fatalf("value %d: got %v, want the one colour", i, v)
				}
			}
		}
	}
	proc := goldenProcessor(t, "clip")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := proc.Process([]*Picture{thin}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	// 336·336·3·4 bytes of result and about as much again of scratch.
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 {
		t.Errorf("1x5000: %d bytes allocated, want under 8 MiB", allocated)
	}
	long := solid(1, 4_000_000, [3]byte{})
	if _, err := goldenProcessor(t, "llava_pad").Process([]*Picture{long}); err == nil ||
		!strings.Contains(err.Error(), "too elongated") {
		t.Errorf("1x4000000: got %v, want an error", err)
	}
}

// Ensure padding by view equals padding for real.
func TestPadIsACanvas(t *testing.T) {
	for _, name := range []string{
		"strokes_20x20.png", "gradient_61x84.png", "gradient_1000x200.png",
	} {
		p := processorInput(t, "testdata", name)
		border := [3]byte{200, 10, 30}
		v := padSquare(p, border)
		canvas := solid(v.width, v.height, border)
		for y := range p.Height {
			copy(canvas.Pix[((y+v.y)*v.width+v.x)*3:], p.Pix[y*p.Width*3:][:p.Width*3])
		}
		for f := Nearest; f <= Hamming; f++ {
			for _, side := range []int{7, 61, v.width, 300} {
				want, err := resized(canvas, side, side, f)
				if err != nil {
					t.Fatal(err)
				}
				got := make([]byte, side*side*3)
				if err := v.resize(got, side*3, side, side, window{w: side, h: side},
					f); err != nil {
					t.Fatal(err)
				}
				if string(got) != string(want.Pix) {
					t.Errorf("%s to %d, %v: differs from a real canvas", name, side, f)
				}
			}
		}
	}
}

// Ensure a window of a resize is that part of the full resize.
func TestWindow(t *testing.T) {
	p := processorInput(t, "testdata", "gradient_61x84.png")
	for f := Nearest; f <= Hamming; f++ {
		full, err := resized(p, 100, 37, f)
		if err != nil {
			t.Fatal(err)
		}
		win := window{x: 13, y: 5, w: 40, h: 31}
		got := make([]byte, win.w*win.h*3)
		if err := whole(p).resize(got, win.w*3, 100, 37, win, f); err != nil {
			t.Fatal(err)
		}
		for y := range win.h {
			want := full.Pix[((win.y+y)*100+win.x)*3:][:win.w*3]
			if string(got[y*win.w*3:][:win.w*3]) != string(want) {
				t.Errorf("%v: row %d differs", f, y)
			}
		}
	}
}

// Ensure the rescaling and normalising switches act as in the reference.
func TestNormalisationSwitches(t *testing.T) {
	for _, c := range []struct {
		config string
		want   float64 // of byte 100 in channel 0
	}{
		{`"do_rescale":false,"do_normalize":false`, 100},
		{`"do_normalize":false`, 100.0 / 255},
		{`"image_mean":0.5,"image_std":[0.5,0.5,0.5]`, 2*100.0/255 - 1},
		{`"rescale_factor":0.01,"image_mean":[0,0,0],"image_std":[1,1,1]`, 1},
		{`"do_rescale":false,"image_mean":[50,0,0],"image_std":[25,1,1]`, 2},
	} {
		p, err := ParseProcessor([]byte(`{"image_processor_type":"CLIPImageProcessor","size":2,"crop_size":2,`+c.config+`}`), kinds)
		if err != nil {
			t.Fatal(err)
		}
		px, err := p.Process([]*Picture{solid(2, 2, [3]byte{100, 100, 100})})
		if err != nil {
			t.Fatal(err)
		}
		const roundoff = 1e-6 // float32
		if !(math.Abs(float64(px.Data[0])-c.want) <= roundoff) {
			t.Errorf("%s: got %v, want %v", c.config, px.Data[0], c.want)
		}
	}
}

// Ensure unusable pictures are refused.
func TestProcessErrors(t *testing.T) {
	for name := range processorConfigs {
		proc := goldenProcessor(t, name)
		for _, pics := range [][]*Picture{
			nil, {nil}, {{}}, {{Width: 2, Height: 2, Pix: make([]byte, 11)}},
		} {
			if _, err := proc.Process(pics); err == nil {
				t.Errorf("%s: %v: want an error", name, pics)
			}
		}
	}
	p, err := ParseProcessor([]byte(`{"image_processor_type":"CLIPImageProcessor","size":8,"do_center_crop":false}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Process([]*Picture{solid(8, 8, [3]byte{}), solid(8, 9,
		[3]byte{})}); err == nil || !strings.Contains(err.Error(), "one size") {
		t.Errorf("different sizes: got %v", err)
	}
	p, err = ParseProcessor([]byte(`{"image_processor_type":"Qwen2VLImageProcessor","do_resize":false}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Process([]*Picture{solid(56, 30, [3]byte{})}); err == nil ||
		!strings.Contains(err.Error(), "multiples of 28") {
		t.Errorf("odd size without resizing: got %v", err)
	}
}

func ExampleParseProcessor() {
	data, err := os.ReadFile("testdata/inputs/photo_640x480.png")
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := Decode(data, "photo.png", DecodeOptions{EXIF: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	proc, err := ParseProcessor([]byte(`{"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 336}, "crop_size": 336}`), kinds)
	if err != nil {
		fmt.Println(err)
		return
	}
	proc.(*CLIP).Pad = true // as the original LLaVA code: nothing is cut off
	px, err := proc.Process([]*Picture{p})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(px.Shape, px.Frames[0])
	// Output: [1 3 336 336] {0 -80 640 640}
}

// Ensure that limits given apart from the configuration act as those in it, and that those that
// cannot act are refused by name.
func TestLimitPixels(t *testing.T) {
	b := goldenProcessor(t, "qwen_b")
	limited, err := LimitPixels(b, 200704, 1003520) // those of qwen_a
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range [][2]int{{30, 40}, {900, 700}, {2000, 1100}} {
		p := []*Picture{solid(size[0], size[1], [3]byte{1, 2, 3})}
		want, err := goldenProcessor(t, "qwen_a").Process(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := limited.Process(p); err != nil || got.GridTHW[0] != want.GridTHW[0] {
			t.Errorf("%v: got %v, %v, want %v", size, got, err, want.GridTHW)
		}
	}
	if same, err := LimitPixels(b, 0, 0); err != nil || same != b {
		t.Errorf("no limits: got %v, %v, want the processor itself", same, err)
	}
	fixed, err := ParseProcessor([]byte(`{"image_processor_type": "Qwen2VLImageProcessor", "do_resize": false}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		p      Processor
		lo, hi int
		names  string
	}{
		{goldenProcessor(t, "clip"), 0, 5000, "max-pixels: got 5000, which has no effect with CLIPImageProcessor"},
		{goldenProcessor(t, "llava_next"), 50, 0, "min-pixels: got 50, which has no effect with LlavaNextImageProcessor"},
		{fixed, 50, 0, "do_resize"}, {b, -1, 0, "min-pixels"}, {b, 5000, 4000, "min-pixels: got 5000, want at most max-pixels 4000"},
		{b, 1, 783, "max-pixels: got 783, want at least 784"}, {b, 0, math.MaxInt, "max-pixels"},
	} {
		if _, err := LimitPixels(c.p, c.lo, c.hi); err == nil ||
			!strings.Contains(err.Error(), c.names) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s, %d to %d: got %v, want one line that names %q", c.p.Name(), c.lo, c.hi,
				err, c.names)
		}
	}
}
