package pixtral

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// small are configs of both classes with small sizes.
const (
	small = `{"image_token_index":9,"vision_feature_layer":-1,` +
		`"vision_feature_select_strategy":"full","text_config":{"hidden_size":8,` +
		`"num_attention_heads":2,"vocab_size":20},"vision_config":{"hidden_act":"silu"}}`
	small3 = `{"image_token_index":9,"text_config":{"hidden_size":8,"num_attention_heads":2,` +
		`"vocab_size":20,"num_key_value_heads":1},"vision_config":{"hidden_act":"silu"}}`
)

// Ensure that absent keys have transformers' defaults, and that settings that would change the
// result are refused by name.
func TestConfig(t *testing.T) {
	c, err := ParseConfig([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	c3, err := ParseMistral3([]byte(small3))
	if err != nil {
		t.Fatal(err)
	}
	v := c.Vision
	if v.Hidden != 1024 || v.Heads != 16 || v.Layers != 24 || v.MLP != 4096 || v.Patch != 16 ||
		v.Theta != 1e4 || v.Merge != 1 || !c.Bias || c.Text.KVHeads != 2 {
		t.Errorf("got %+v", c)
	}
	if c, err := ParseMistral3([]byte(strings.Replace(small3, `"hidden_act":"silu"`,
		`"hidden_act":"swish"`, 1))); err != nil || gates[c.Act] == nil {
		t.Errorf("swish: got %q, %v", c.Act, err)
	}
	other, err := ParseMistral3([]byte(strings.Replace(small3, `"hidden_act":"silu"`, "", 1)))
	if err != nil || c.Act != "silu" || c3.Act != "silu" || other.Act != "gelu" {
		t.Errorf("%v: got the activations %q, %q, %q", err, c.Act, c3.Act, other.Act)
	}
	if c3.Vision.Merge != 2 || c3.Vision.Patch != 16 || c3.Bias || c3.Text.Window != 4096 ||
		c3.Text.KVHeads != 1 {
		t.Errorf("got %+v", c3)
	}
	both, err := ParseConfig([]byte(strings.Replace(small, `{`, `{"image_token_id":7,`, 1)))
	if err != nil || both.ImageToken != 7 || c.ImageToken != 9 {
		t.Errorf("image_token_index 9 and image_token_id 7: got %+v, %v", both, err)
	}
	for _, layer := range []string{`24`, `[-1]`, `-1`} { // of 24
		text := strings.Replace(small3, `{`, `{"vision_feature_layer":`+layer+`,`, 1)
		if _, err := ParseMistral3([]byte(text)); err != nil {
			t.Errorf("vision_feature_layer %s: %v", layer, err)
		}
	}
	for _, kind := range []string{"llama", "mistral", "qwen2", "qwen3"} {
		text := strings.Replace(small, `"vocab_size":20`, `"vocab_size":20,"model_type":"`+kind+
			`","num_key_value_heads":1`, 1)
		if c, err := ParseConfig([]byte(text)); err != nil || c.Text.HeadNorm != (kind == "qwen3") {
			t.Errorf("a decoder of %s: got %+v, %v", kind, c, err)
		}
	}
	const silu = `"hidden_act":"silu"`
	for _, k := range []struct{ from, to, want string }{
		{silu, `"hidden_act":"relu"`, `hidden_act`},
		{silu, silu + `,"head_dim":65`, `"head_dim"`},
		{silu, silu + `,"num_attention_heads":3`, `"num_attention_heads"`},
		{silu, silu + `,"hidden_size":96`, `"num_attention_heads"`},
		{silu, silu + `,"patch_size":[16,14]`, `"patch_size"`},
		{silu, silu + `,"num_channels":1`, `"num_channels"`},
		{silu, silu + `,"model_type":"clip_vision_model"`, `"model_type"`},
		{silu, silu + `,"rope_parameters":{"rope_type":"su"}`, `"rope_type"`},
		{`"image_token_index":9`, `"image_token_index":20`, `"image_token_index"`},
		{`"vocab_size":20`, `"vocab_size":20,"model_type":"ministral"`, `"model_type"`},
		{`"image_token_index"`, `"projector_hidden_act":"silu","image_token_index"`,
			`"projector_hidden_act"`},
		{`"image_token_index"`, `"vision_feature_layer":[-1,-2],"image_token_index"`,
			`"vision_feature_layer"`},
		{`"image_token_index"`, `"vision_feature_layer":23,"image_token_index"`,
			`"vision_feature_layer"`},
		{`"text_config"`, `"text"`, `"text_config"`},
	} {
		text := strings.Replace(small3, k.from, k.to, 1)
		if _, err := ParseMistral3([]byte(text)); err == nil ||
			!strings.Contains(err.Error(), k.want) {
			t.Errorf("%s: got %v, want %q", k.to, err, k.want)
		}
	}
	for _, key := range []string{"vision_feature_layer", "vision_feature_select_strategy"} {
		text := strings.Replace(small, key, "other", 1)
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("without %s: got %v", key, err)
		}
	}
}

// FuzzConfig ensures that no config makes the parsers panic.
func FuzzConfig(f *testing.F) {
	f.Add(Family.Shape("pixtral-12b"))
	f.Add(Family.Shape("mistral-small-3.1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range []func([]byte) (*Config, error){ParseConfig, ParseMistral3} {
			if c, err := parse(data); err == nil {
				nn.NewInterlacedRoPE(c.Vision.Hidden/c.Vision.Heads, c.Vision.Theta)
			}
		}
	})
}

// published are the published settings of pictures.
var published = map[string]struct {
	family    *model.Family
	processor string
}{
	"pixtral-12b": {&Family, `{"do_normalize":true,"do_rescale":true,"do_resize":true,` +
		`"image_processor_type":"PixtralImageProcessor","patch_size":{"height":16,"width":16},` +
		`"resample":3,"size":{"longest_edge":1024}}`},
	"mistral-small-3.1": {&Mistral3, `{"crop_size":null,"do_convert_rgb":true,"do_pad":true,` +
		`"image_processor_type":"PixtralImageProcessorFast","patch_size":14,` +
		`"processor_class":"PixtralProcessor","size":{"longest_edge":1540}}`},
}

func prepare(t *testing.T, kind string) *imageproc.Patches {
	t.Helper()
	k := published[kind]
	p, err := imageproc.ParseProcessor([]byte(k.processor), k.family.Processors)
	if err != nil {
		t.Fatal(err)
	}
	patch, merge, err := k.family.Cell(k.family.Shape(k.family.Published[0]))
	if err != nil {
		t.Fatal(err)
	}
	return p.(*imageproc.Patches).Cells(patch, merge)
}

// Ensure that pictures have the pixel values of transformers' class for Pillow, bit for bit.
func TestPixels(t *testing.T) {
	var cases map[string]struct {
		Picture string
		Grid    [3]int
		SHA256  string
	}
	golden.JSON(t, "testdata/pixels.json", &cases)
	if len(cases) != 12 {
		t.Fatalf("%d cases", len(cases))
	}
	for name, c := range cases {
		kind, _, _ := strings.Cut(name, "/")
		raw, err := os.ReadFile(filepath.Join("../../imageproc/testdata", c.Picture))
		if err != nil {
			t.Fatal(err)
		}
		pic, err := imageproc.Decode(raw, name, imageproc.DecodeOptions{EXIF: true})
		if err != nil {
			t.Fatal(err)
		}
		px, err := prepare(t, kind).Process([]*imageproc.Picture{pic})
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := binary.Write(&b, binary.LittleEndian, px.Data); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b.Bytes())
		if px.GridTHW[0] != c.Grid || hex.EncodeToString(sum[:]) != c.SHA256 {
			t.Errorf("%s: grid %v, other values than the reference's of %v", name, px.GridTHW,
				c.Grid)
		}
	}
}

// Ensure that pictures of many sizes have transformers' grids, and that those of which it leaves no
// pixel are refused.
func TestGrids(t *testing.T) {
	var cases [][6]int // width, height, then rows and columns of each kind
	golden.JSON(t, "testdata/grids.json", &cases)
	if len(cases) < 300 {
		t.Fatalf("%d cases", len(cases))
	}
	for i, kind := range []string{"pixtral-12b", "mistral-small-3.1"} {
		p := prepare(t, kind)
		for _, c := range cases {
			w, h, err := p.Within(c[0], c[1])
			got := []int{h / p.Patch, w / p.Patch}
			if want := c[2+2*i : 4+2*i]; !slices.Equal(got, want) && slices.Min(want) > 0 ||
				(err != nil) != (slices.Min(want) == 0) {
				t.Errorf("%s: %v: got %v, %v, want %v", kind, c[:2], got, err, want)
			}
		}
	}
}

// Ensure that a limit to a picture's pixels is the longest edge of a square, and that limits and
// settings without effect are refused by name.
func TestLimits(t *testing.T) {
	p := prepare(t, "mistral-small-3.1")
	less, err := p.Limit(0, 100_000)
	if err != nil || less.(*imageproc.Patches).Longest != 316 || p.Longest != 1540 {
		t.Errorf("got %+v, %v, want 316 and 1540 pixels", less, err)
	}
	for want, limits := range map[string][2]int{
		"enlarges no pictures": {9, 0}, "got 783": {0, 783}, "to 67108864": {0, 1 << 30},
	} {
		if _, err := p.Limit(limits[0], limits[1]); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", limits, err, want)
		}
	}
	for _, size := range []string{`316`, `[316,316]`, `{"height":316,"width":316}`} {
		text := strings.Replace(published["pixtral-12b"].processor, `{"longest_edge":1024}`, size, 1)
		got, err := imageproc.ParseProcessor([]byte(text), processors)
		if err != nil || got.(*imageproc.Patches).Longest != 316 {
			t.Errorf("size %s: got %+v, %v, want a longest edge of 316 pixels", size, got, err)
		}
	}
	for key, change := range map[string]string{
		"size": `"longest_edge":1024 -> "height":9,"width":8`, "do_center_crop": `"do_resize" -> "do_center_crop"`,
		"resample": `"resample":3 -> "resample":9`,
	} {
		from, to, _ := strings.Cut(change, " -> ")
		text := strings.Replace(published["pixtral-12b"].processor, from, to, 1)
		if _, err := imageproc.ParseProcessor([]byte(text), processors); err == nil ||
			!strings.Contains(err.Error(), key) {
			t.Errorf("%s: got %v, want %q", change, err, key)
		}
	}
}
