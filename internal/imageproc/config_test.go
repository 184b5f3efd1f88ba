package imageproc

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// Ensure each form of a configuration gives the intended processor.
// kinds are those of the families of models.
var kinds = []Kind{
	{[]string{"CLIPImageProcessor", "CLIPFeatureExtractor"}, NewCLIP},
	{[]string{"LlavaImageProcessor"}, NewPadded},
	{[]string{"LlavaNextImageProcessor"}, NewTiles},
	{[]string{"SiglipImageProcessor"}, NewSigLIP},
	{[]string{"Idefics3ImageProcessor"}, NewSplits},
	{[]string{"Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor"}, NewPatches},
	{[]string{"GotOcr2ImageProcessor"}, NewCrops},
}

func TestParseProcessorForms(t *testing.T) {
	type shape struct{ w, h, ow, oh, cropW, cropH int }
	for _, c := range []struct {
		name, json string
		want       shape
	}{
		{"int size", `{"image_processor_type":"CLIPImageProcessor","size":10,"crop_size":8}`, shape{20, 40, 10, 20, 8, 8}},
		{"truncated longer side", `{"image_processor_type":"CLIPImageProcessor","size":10,"crop_size":8}`, shape{3, 4, 10, 13, 8, 8}}, // 10·4/3 = 13.3
		{"exact size", `{"image_processor_type":"CLIPImageProcessor","size":{"height":6,"width":5},"crop_size":[4,3]}`, shape{20, 40, 5, 6, 3, 4}},
		{"pair", `{"image_processor_type":"CLIPImageProcessorFast","size":[6,5],"crop_size":{"shortest_edge":4}}`, shape{20, 40, 5, 6, 4, 4}},
		{"no crop", `{"image_processor_type":"CLIPImageProcessorPil","size":10,"do_center_crop":false}`, shape{20, 40, 10, 20, 10, 20}},
		{"no resize", `{"image_processor_type":"CLIPImageProcessor","do_resize":false,"crop_size":8}`, shape{20, 40, 20, 40, 8, 8}},
		{"null flags", `{"image_processor_type":"CLIPImageProcessor","do_resize":null,"do_center_crop":null}`, shape{20, 40, 20, 40, 20, 40}},
		{"defaults", `{"image_processor_type":"CLIPImageProcessor","size":null}`, shape{20, 40, 224, 448, 224, 224}},
		{"flags that are null", `{"image_processor_type":"CLIPImageProcessor","do_resize":null,"do_center_crop":null}`, shape{20, 40, 20, 40, 20, 40}},
		{"square", `{"image_processor_type":"CLIPImageProcessor","size":7,"default_to_square":true,"do_pad":false,"pad_size":null}`, shape{20, 40, 7, 7, 224, 224}},
		{"nested", `{"processor_class":"LlavaProcessor","image_processor":{"image_processor_type":"CLIPImageProcessor","size":10,"crop_size":8}}`, shape{20, 40, 10, 20, 8, 8}},
		{"ignored keys", `{"image_processor_type":"CLIPImageProcessor","size":10,"crop_size":8,"processor_class":"x","data_format":"channels_first","do_flip_channel_order":false}`, shape{20, 40, 10, 20, 8, 8}},
	} {
		p, err := ParseProcessor([]byte(c.json), kinds)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		ow, oh, crop := p.(*CLIP).geometry(c.want.w, c.want.h)
		if got := (shape{c.want.w, c.want.h, ow, oh, crop.w, crop.h}); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	p, err := ParseProcessor([]byte(`{"image_processor_type":"LlavaImageProcessor","do_pad":true,"background_color":[122,116,104]}`), kinds)
	if err != nil || !p.(*CLIP).Pad {
		t.Errorf("LlavaImageProcessor: got %+v, %v, want padding", p, err)
	}
}

// Ensure what would change the result is refused by key and value.
func TestParseProcessorErrors(t *testing.T) {
	clip := func(rest string) string { return `{"image_processor_type":"CLIPImageProcessor",` + rest + `}` }
	next := func(tile, height, width int) string {
		return fmt.Sprintf(`{"image_processor_type":"LlavaNextImageProcessor","size":%d,"crop_size":%[1]d,`+
			`"image_grid_pinpoints":[[%d,%d]]}`, tile, height, width)
	}
	for _, c := range []struct{ json, want string }{
		{``, "not a JSON object"},
		{`[]`, "not a JSON object"},
		{`{}`, "image_processor_type is missing"},
		{`{"image_processor_type":"ViTImageProcessor"}`, `"ViTImageProcessor" is not supported`},
		{`{"image_processor_type":3}`, "image_processor_type: got 3"},
		{clip(`"size":{"longest_edge":336}`), `size: got {"longest_edge":336}`},
		{clip(`"size":0`), "shortest_edge: got 0, want 1 to 8192"},
		{clip(`"size":99999999`), "got 99999999"},
		{clip(`"size":"big"`), `size: got "big"`},
		{clip(`"crop_size":-1`), "crop_size: height: got -1"},
		{clip(`"resample":6`), "resample: got 6, want an integer from 0 to 5"},
		{clip(`"resample":"bicubic"`), `resample: got "bicubic"`},
		{clip(`"resample":null`), "resample: got null, want an integer from 0 to 5"},
		{clip(`"image_std":[1,0,1]`), "image_std: channel 1: got 0"},
		{clip(`"image_mean":[1,2]`), "image_mean: got [1,2], want 3 numbers"},
		{clip(`"do_resize":"yes"`), `do_resize: got "yes"`},
		{clip(`"do_pad":true`), "do_pad: got true, which is not supported, want false"},
		{clip(`"do_thumbnail":true`), "do_thumbnail: got true, which is not supported, want false"},
		{clip(`"use_square_size":true`), "use_square_size: got true, which is not supported, want false"},
		{`{"image_processor_type":"SiglipImageProcessor","size":28}`, `size: got {"shortest_edge":28}`},
		{`{"image_processor_type":"GotOcr2ImageProcessor","size":28,"default_to_square":null}`, `size: got {"shortest_edge":28}`},
		{`{"image_processor_type":"Idefics3ImageProcessor","size":28}`, `size: got {"shortest_edge":28}`},
		{clip(`"crop_pct":0.9`), "crop_pct: got 0.9, which is not supported, want null"},
		{clip(`"data_format":"channels_last"`), `data_format: got "channels_last", which is not supported, want "channels_first"`},
		{`{"image_processor_type":"LlavaImageProcessor","do_pad":true,"background_color":0}`, "background_color"},
		{`{"image_processor_type":"LlavaNextImageProcessor","size":336,"crop_size":224}`, "one square tile"},
		{`{"image_processor_type":"LlavaNextImageProcessor","size":336,"crop_size":336,"image_grid_pinpoints":[[336,300]]}`, "got [336, 300]"},
		{`{"image_processor_type":"LlavaNextImageProcessor","size":336,"crop_size":336,"image_grid_pinpoints":[]}`, "empty list"},
		{next(8, 64<<10, 8), "at most 256 tiles"}, {next(8, 8, 64<<10), "at most 256 tiles"}, {next(8, -8, -8), "multiples of the tile 8"},
		{next(8, 2048, math.MaxInt-7), "at most 256 tiles"}, {next(8, math.MaxInt-7, 2048), "at most 256 tiles"},
		{next(8192, 8192, 16384), "got [8192, 16384], want at most 67108864 pixels"},
		{`{"image_processor_type":"Qwen2VLImageProcessor","min_pixels":9000,"max_pixels":8000}`, "min_pixels: got 9000, more than max_pixels 8000"},
		{`{"image_processor_type":"Qwen2VLImageProcessor","min_pixels":1,"max_pixels":100}`, "less than one block of 28x28"},
		{`{"image_processor_type":"Qwen2VLImageProcessor","size":{"height":3}}`, `size: got {"height":3}`},
		{strings.Repeat(" ", maxConfigBytes) + "{}", "limit 1048576"},
	} {
		_, err := ParseProcessor([]byte(c.json), kinds)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.HasPrefix(err.Error(), "imageproc: processor config: ") {
			t.Errorf("%.60s: got error %v, want %q", c.json, err, c.want)
		}
	}
}

// Ensure that pictures whose pixel values do not fit are refused before memory is allocated.
func TestTooManyValues(t *testing.T) {
	small := &Picture{Width: 1, Height: 1, Pix: make([]byte, 3)}
	line := &Picture{Width: 300_000, Height: 1, Pix: make([]byte, 900_000)}
	for want, c := range map[string]struct {
		json string
		pics []*Picture
	}{
		"50 pictures of 50331648 pixel values": {`{"image_processor_type":"CLIPImageProcessor","size":4096,"crop_size":4096}`,
			slices.Repeat([]*Picture{small}, 50)},
		"20 pictures of 402653184 pixel values": {`{"image_processor_type":"LlavaNextImageProcessor","size":8192,"crop_size":8192,"image_grid_pinpoints":[[8192,8192]]}`,
			slices.Repeat([]*Picture{small}, 20)},
		"too elongated to resize its shorter side to 8192": {`{"image_processor_type":"CLIPImageProcessor","size":8192,"crop_size":224}`,
			[]*Picture{line}},
	} {
		p, err := ParseProcessor([]byte(c.json), kinds)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Process(c.pics); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}
