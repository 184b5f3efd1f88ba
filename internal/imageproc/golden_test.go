package imageproc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
)

// The goldens in testdata come from Pillow 11.1.0 and the slow processors of
// transformers 5.23.0. RESTORE_ORACLE may name a folder whose subfolder images
// has the same files in full; every golden test then runs on both.

func forEachRoot(t *testing.T, f func(t *testing.T, root string)) {
	t.Run("testdata", func(t *testing.T) { f(t, "testdata") })
	if dir := os.Getenv("RESTORE_ORACLE"); dir != "" {
		t.Run("oracle", func(t *testing.T) { f(t, filepath.Join(dir, "images")) })
	}
}

func readFile(t testing.TB, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func floatBytes(v []float32) []byte {
	b := make([]byte, 4*len(v))
	for i, f := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(f))
	}
	return b
}

type decodeCase struct {
	Format string
	RGB    map[string]struct {
		Height, Width int
		SHA256, PNG   string
	}
}

// Ensure every input decodes to the reference's bytes on white, and upright where nothing is
// transparent.
func TestDecodeGoldens(t *testing.T) {
	forEachRoot(t, func(t *testing.T, root string) {
		var file struct{ Inputs map[string]decodeCase }
		golden.JSON(t, filepath.Join(root, "decode.json"), &file)
		exact := 0
		for name, c := range file.Inputs {
			data := readFile(t, root, "inputs", name)
			policies := map[string]DecodeOptions{"white": {}}
			if c.RGB["rgb"] == c.RGB["white"] { // no transparency
				policies["load_image"] = DecodeOptions{EXIF: true}
			}
			for policy, o := range policies {
				want, ok := c.RGB[policy]
				if !ok {
					t.Errorf("%s: no policy %s", name, policy)
					continue
				}
				p, err := Decode(data, name, o)
				if err != nil {
					t.Error(err)
					continue
				}
				if !strings.EqualFold(p.Format, c.Format) || p.Width != want.Width ||
					p.Height != want.Height {
					t.Errorf("%s %s: got %s %dx%d, want %s %dx%d", name, policy, p.Format, p.Width,
						p.Height, c.Format, want.Width, want.Height)
					continue
				}
				switch {
				case strings.HasSuffix(name, "grey16.png"), strings.HasSuffix(name, "grey16.tif"):
					// The high byte, not the reference's clipping: below.
				default:
					exact++
					if sum(p.Pix) != want.SHA256 {
						t.Errorf("%s %s: bytes differ", name, policy)
					}
				}
			}
		}
		t.Logf("%d exact", exact)
	})
}

// Ensure 16-bit grey is read by its high byte.
func TestDecodeGrey16(t *testing.T) {
	img, err := png.Decode(bytes.NewReader(readFile(t, "testdata", "inputs", "png_grey16.png")))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"png_grey16.png", "tiff_grey16.tif"} {
		p, err := Decode(readFile(t, "testdata", "inputs", name), name, DecodeOptions{EXIF: true})
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Width * p.Height {
			r, _, _, _ := img.At(i%p.Width, i/p.Width).RGBA()
			for c := range 3 {
				if p.Pix[3*i+c] != byte(r>>8) {
					t.Fatalf("%s: pixel %d: got %d, want %d", name, i, p.Pix[3*i+c], r>>8)
				}
			}
		}
	}
}

// Ensure broken files give an error that helps, and readable ones do not.
func TestDecodeMalformed(t *testing.T) {
	forEachRoot(t, func(t *testing.T, root string) {
		var cases map[string]struct {
			Outcome   string
			What      string
			GoodError string `json:"good_error"`
		}
		golden.JSON(t, filepath.Join(root, "malformed.json"), &cases)
		for name, c := range cases {
			p, err := Decode(readFile(t, root, "malformed", name), name, DecodeOptions{EXIF: true})
			switch {
			case c.Outcome == "error" && err == nil:
				t.Errorf("%s (%s): decoded to %dx%d, want an error like %q", name, c.What, p.Width,
					p.Height, c.GoodError)
			case c.Outcome == "decode" && err != nil:
				t.Errorf("%s (%s): %v", name, c.What, err)
			case err != nil:
				t.Logf("%v", err)
				if !strings.HasPrefix(err.Error(), "imageproc: "+name+": ") ||
					strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: error %q, want one line that names the file", name, err)
				}
			}
		}
	})
}

// processors holds the golden configurations under their golden names.
var processorConfigs = map[string]string{
	"clip":       `{"image_processor_type":"CLIPImageProcessor","size":{"shortest_edge":336},"crop_size":{"height":336,"width":336},"do_convert_rgb":true,"resample":3}`,
	"clip_small": `{"feature_extractor_type":"CLIPFeatureExtractor","size":37,"crop_size":[44,50]}`,
	"llava_pad":  `{"image_processor_type":"CLIPImageProcessor","size":{"shortest_edge":336},"crop_size":336,"rescale_factor":0.00392156862745098}`,
	"llava_next": `{"image_processor_type":"LlavaNextImageProcessor","size":{"shortest_edge":336},"crop_size":{"height":336,"width":336},"do_pad":true,
		"image_grid_pinpoints":[[336,672],[672,336],[672,672],[1008,336],[336,1008]],"aspect_ratio_setting":"anyres"}`,
	"qwen_a": `{"image_processor_type":"Qwen2VLImageProcessor","min_pixels":200704,"max_pixels":1003520,"patch_size":14,"merge_size":2,"temporal_patch_size":2}`,
	"qwen_b": `{"image_processor_type":"Qwen2VLImageProcessorFast","size":{"shortest_edge":3136,"longest_edge":12845056},"patch_size":14,"merge_size":2,"temporal_patch_size":2}`,
}

func goldenProcessor(t testing.TB, name string) Processor {
	t.Helper()
	p, err := ParseProcessor([]byte(processorConfigs[name]), kinds)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if c, ok := p.(*CLIP); ok {
		c.Pad = name == "llava_pad"
	}
	return p
}

type processorCase struct {
	Size    [2]int  `json:"input_size"`
	Resized [2]int  `json:"resized"`
	Crop    *[2]int `json:"crop_top_left"`
	Paste   [2]int  `json:"paste"`
	Best    [2]int  `json:"best"`
	Grid    [3]int  `json:"grid_thw"`
	U8Shape []int   `json:"u8_shape"`
	U8      string  `json:"u8_sha256"`
	Shape   []int   `json:"pixel_values_shape"`
	Pixels  string  `json:"pixel_values_sha256"`
	Error   string  `json:"error"`
}

// processorInput decodes an input.
func processorInput(t testing.TB, root, name string) *Picture {
	t.Helper()
	p, err := Decode(readFile(t, root, "inputs", name), name, DecodeOptions{EXIF: true})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Ensure geometry, bytes and pixel values of every processor are the
// reference's bit for bit.
func TestProcessorGoldens(t *testing.T) {
	forEachRoot(t, func(t *testing.T, root string) {
		var file struct {
			Cases map[string]map[string]processorCase
		}
		golden.JSON(t, filepath.Join(root, "processors.json"), &file)
		if len(file.Cases) != len(processorConfigs) {
			t.Fatalf("got %d processors, want %d", len(file.Cases), len(processorConfigs))
		}
		inputs := map[string]*Picture{}
		n := 0
		for kind, cases := range file.Cases {
			proc := goldenProcessor(t, kind)
			for name, want := range cases {
				if inputs[name] == nil {
					inputs[name] = processorInput(t, root, name)
				}
				p := inputs[name]
				px, err := proc.Process([]*Picture{p})
				if err != nil {
					t.Errorf("%s %s: %v", kind, name, err)
					continue
				}
				n++
				shape := px.Shape
				if px.GridTHW == nil {
					shape = shape[1:] // the golden is one picture's
				}
				if fmt.Sprint(shape) != fmt.Sprint(want.Shape) || px.ImageSizes[0] != want.Size {
					t.Errorf("%s %s: got shape %v of %v, want %v of %v", kind, name, shape,
						px.ImageSizes, want.Shape, want.Size)
				}
				if got := sum(floatBytes(px.Data)); got != want.Pixels {
					t.Errorf("%s %s: pixel values differ", kind, name)
				}
				u8 := processorBytes(t, proc, p, want, kind+" "+name)
				if got := sum(u8); got != want.U8 {
					t.Errorf("%s %s: bytes differ", kind, name)
				}
			}
		}
		t.Logf("%d cases exact", n)
	})
}

// processorBytes checks the geometry and returns the picture before
// normalising.
func processorBytes(
	t *testing.T, proc Processor, p *Picture, want processorCase, label string,
) []byte {
	t.Helper()
	switch proc := proc.(type) {
	case *CLIP:
		w, h := p.Width, p.Height
		if proc.Pad {
			w = max(w, h)
			h = w
		}
		ow, oh, crop := proc.geometry(w, h)
		if want.Resized != [2]int{oh, ow} || *want.Crop != [2]int{crop.y, crop.x} {
			t.Errorf("%s: got resized %dx%d crop (%d, %d), want %v %v", label, oh, ow, crop.y,
				crop.x, want.Resized, *want.Crop)
		}
		u8, _, _, err := proc.bytes(p)
		if err != nil {
			t.Fatal(err)
		}
		return u8
	case *Tiles:
		f := proc.fit(p.Width, p.Height)
		if (want.Best != [2]int{f.height, f.width}) || want.Resized != [2]int{f.oh, f.ow} ||
			want.Paste != [2]int{f.y, f.x} {
			t.Errorf("%s: got %+v, want best %v resized %v paste %v", label, f, want.Best,
				want.Resized, want.Paste)
		}
		u8, canvas, err := proc.bytes(p, f)
		if err != nil {
			t.Fatal(err)
		}
		for y := 0; y < f.height; y += proc.Side {
			for x := 0; x < f.width; x += proc.Side {
				for r := range proc.Side {
					u8 = append(u8, canvas[((y+r)*f.width+x)*3:][:proc.Side*3]...)
				}
			}
		}
		return u8
	case *Patches:
		ow, oh, err := proc.Fit(1, 1, p.Width, p.Height)
		if err != nil || want.Resized != [2]int{oh, ow} ||
			want.Grid != [3]int{1, oh / proc.Patch, ow / proc.Patch} {
			t.Errorf("%s: got %dx%d, %v, want %v", label, oh, ow, err, want.Resized)
		}
		out, err := resized(p, ow, oh, proc.filter)
		if err != nil {
			t.Fatal(err)
		}
		return out.Pix
	}
	t.Fatalf("unknown processor %T", proc)
	return nil
}

// Ensure complete pixel values agree, so that a failure can name an index.
func TestFullPixelValues(t *testing.T) {
	forEachRoot(t, func(t *testing.T, root string) {
		for key, want := range golden.Read(t, filepath.Join(root, "full.safetensors")) {
			kind, input, _ := strings.Cut(key, ".")
			px, err := goldenProcessor(t, kind).Process([]*Picture{processorInput(t, root, input)})
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range px.Data {
				if w := binary.LittleEndian.Uint32(want.Data[4*i:]); math.Float32bits(v) != w {
					t.Fatalf("%s: value %d: got %v, want %v", key, i, v, math.Float32frombits(w))
				}
			}
			if 4*len(px.Data) != len(want.Data) {
				t.Errorf("%s: got %d values, want %d", key, len(px.Data), len(want.Data)/4)
			}
		}
	})
}

// Ensure the byte → pixel value table is exact.
func TestPixelTable(t *testing.T) {
	forEachRoot(t, func(t *testing.T, root string) {
		want := golden.Read(t, filepath.Join(root, "pixel_lut.safetensors"))["lut"].Data
		got := goldenProcessor(t, "clip").(*CLIP).lut
		for c := range got {
			if !bytes.Equal(floatBytes(got[c][:]), want[c*1024:][:1024]) {
				t.Errorf("channel %d differs", c)
			}
		}
	})
}

var filters = map[string]Filter{
	"box": Box, "bilinear": Bilinear, "hamming": Hamming, "bicubic": Bicubic, "lanczos": Lanczos, "nearest": Nearest,
}

// Ensure direct resizes and the coefficient tables are exact.
func TestResampleGoldens(t *testing.T) {
	forEachRoot(t, func(t *testing.T, root string) {
		g := golden.Read(t, filepath.Join(root, "resample.safetensors"))
		var index struct {
			Resize []struct {
				Case      string
				OutHeight int `json:"out_height"`
				OutWidth  int `json:"out_width"`
			}
			Coefficients []struct {
				Case   string
				NIn    int `json:"n_in"`
				NOut   int `json:"n_out"`
				Filter string
			}
		}
		golden.JSON(t, filepath.Join(root, "resample.json"), &index)
		for _, c := range index.Resize {
			in := g[c.Case+".in"]
			p := &Picture{Height: in.Shape[0], Width: in.Shape[1], Pix: in.Data}
			for name, f := range filters {
				out, err := resized(p, c.OutWidth, c.OutHeight, f)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(out.Pix, g[c.Case+"."+name].Data) {
					t.Errorf("%s %s: bytes differ", c.Case, name)
				}
			}
			mid, err := resized(p, c.OutWidth, p.Height, Bicubic)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(mid.Pix, g[c.Case+".bicubic.mid"].Data) {
				t.Errorf("%s: the horizontal pass differs", c.Case)
			}
		}
		for _, c := range index.Coefficients {
			a := newAxis(c.NIn, c.NIn, 0, c.NOut, 0, c.NOut, filters[c.Filter])
			f64, fixed := g[c.Case+".weight_f64"], g[c.Case+".weight_fixed"]
			ksize := f64.Shape[1]
			for i := range c.NOut {
				lo, hi := a.bounds(i)
				if int64(lo) != int64(binary.LittleEndian.Uint64(g[c.Case+".xmin"].Data[8*i:])) ||
					int64(hi-lo) != int64(binary.LittleEndian.Uint64(
						g[c.Case+".count"].Data[8*i:])) {
					t.Fatalf("%s: output %d: got %d to %d", c.Case, i, lo, hi)
				}
				k, w, _ := a.taps(i, nil, nil)
				for j := range hi - lo {
					at := i*ksize + j
					if want := math.Float64frombits(binary.LittleEndian.Uint64(
						f64.Data[8*at:])); w[j] != want {
						t.Errorf("%s: weight %d of output %d: got %v, want %v", c.Case, j, i, w[j],
							want)
					}
					if want := int32(binary.LittleEndian.Uint32(
						fixed.Data[4*at:])); k.k[j] != want {
						t.Errorf("%s: fixed weight %d of output %d: got %d, want %d", c.Case, j, i,
							k.k[j], want)
					}
				}
			}
		}
	})
}

// Ensure all 200 sizes are rounded as the reference does, errors included.
func TestSmartSizeGoldens(t *testing.T) {
	forEachRoot(t, func(t *testing.T, root string) {
		var file struct {
			Rows []map[string]json.RawMessage
		}
		golden.JSON(t, filepath.Join(root, "smart_resize.json"), &file)
		limits := map[string]*Patches{
			"default": goldenProcessor(t, "qwen_b").(*Patches),
			"limited": goldenProcessor(t, "qwen_a").(*Patches),
		}
		for _, row := range file.Rows {
			var h, w int
			if json.Unmarshal(row["height"], &h) != nil || json.Unmarshal(row["width"], &w) != nil {
				t.Fatalf("bad row %v", row)
			}
			for key, q := range limits {
				ow, oh, err := q.Fit(1, 1, w, h)
				var want [2]int
				if json.Unmarshal(row[key], &want) != nil {
					if err == nil {
						t.Errorf("%s %dx%d: got %dx%d, want an error", key, h, w, oh, ow)
					}
				} else if err != nil || want != [2]int{oh, ow} {
					t.Errorf("%s %dx%d: got %dx%d, %v, want %v", key, h, w, oh, ow, err, want)
				}
			}
		}
	})
}
