package onevision

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model/llava"
)

func published(t testing.TB) *Config {
	t.Helper()
	c, err := ParseConfig(Family.Shape("llava-onevision-0.5b"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Ensure that the map of tiles has the size of transformers' for 355 pictures, of which some need
// Python's floor division, and that every token is a blend of patches.
func TestPackSizes(t *testing.T) {
	c := published(t)
	var table struct{ Rows [][12]int }
	golden.JSON(t, "testdata/anyres.json", &table)
	if len(table.Rows) < 300 {
		t.Fatalf("%d rows", len(table.Rows))
	}
	for _, row := range table.Rows {
		l := c.pack(c.Map(row[0], row[1]))
		if got, want := l.Grids[1], [2]int{row[8], row[9]}; got != want ||
			len(l.Source) != row[10] || l.Count != 1+row[2]/384*(row[3]/384) {
			t.Errorf("%v: map %v, %d tokens, %d views, want %v and %d tokens", row[:2], got,
				len(l.Source), l.Count, want, row[10])
		}
		checkRows(t, c, l)
	}
	checkRows(t, c, c.single())
	video := c.clip(3)
	if len(video.Source) != 3*196+1 {
		t.Errorf("a video of 3 frames: %d tokens, want 3·196 and a newline", len(video.Source))
	}
	checkRows(t, c, video)
}

// Ensure that without the canvases above a limit of pixels, pictures have as many views and tokens
// as with transformers 5.24 (image_size_to_num_patches and LlavaOnevisionModel.pack_image_features
// with image_grid_pinpoints without these), also where a map is shrunk.
func TestPackLimited(t *testing.T) {
	sizes := [][2]int{ // height, width
		{1, 1}, {200, 3000}, {3000, 200}, {480, 640}, {641, 480}, {1080, 1920}, {2048, 2048},
		{33, 100}, {672, 336},
	}
	for limit, want := range map[int][][2]int{ // views, tokens
		384 * 384: {{2, 1485}, {2, 757}, {2, 783}, {2, 1317}, {2, 1323}, {2, 1149}, {2, 1485},
			{2, 981}, {2, 1107}},
		4 * 384 * 384: {{2, 1485}, {5, 1492}, {5, 1593}, {5, 2929}, {5, 2943}, {5, 2379}, {5, 3699},
			{2, 981}, {3, 2241}},
		12 * 384 * 384: {{2, 1485}, {7, 2522}, {7, 2673}, {5, 2929}, {5, 2943}, {13, 7378},
			{10, 7371}, {2, 981}, {3, 2241}},
	} {
		c := published(t)
		c.Canvases = imageproc.Within(c.Canvases, limit)
		for i, s := range sizes {
			l := c.pack(c.Map(s[0], s[1]))
			if got := [2]int{l.Count, len(l.Source)}; got != want[i] {
				t.Errorf("at most %d pixels: %v: got %v, want %v", limit, s, got, want[i])
			}
		}
	}
}

// checkRows checks that rows are in order, lie in their views, and that their weights sum to 1.
func checkRows(t testing.TB, c *Config, l *layout) {
	t.Helper()
	next, patches := int32(0), c.Vision.Grid()*c.Vision.Grid()
	for _, s := range l.Source {
		if s == llava.Newline {
			continue
		}
		if s != next {
			t.Fatalf("row %d, want %d", s, next)
		}
		next++
		m, sum, own := &l.rows[s], float32(0), false
		for i, p := range m.From {
			view := int(p) / patches
			if p < 0 || view >= l.Count {
				t.Fatalf("row %d: patch %d of %d views", s, p, l.Count)
			}
			own = own || view == int(l.Of[s])
			if sum++; m.Weight != nil {
				sum += m.Weight[i] - 1
			}
		}
		if !own || m.Weight != nil && (sum < 0.99999 || sum > 1.00001) ||
			m.Weight == nil && len(m.From) != 1 {
			t.Fatalf("row %d of view %d: %+v", s, l.Of[s], m)
		}
	}
	if int(next) != len(l.rows) || len(l.Of) != len(l.rows) {
		t.Fatalf("%d rows of %d are tokens", next, len(l.rows))
	}
}

// Ensure that an unsupported config is refused with an error of one line that names the member.
func TestConfigRefused(t *testing.T) {
	for _, c := range []struct{ old, new, names string }{
		{`"anyres_max_9"`, `"anyres_max_0"`, "vision_aspect_ratio"},
		{`"anyres_max_9"`, `"pad"`, "vision_aspect_ratio"},
		{`"full"`, `"default"`, "vision_feature_select_strategy"},
		{`"vision_feature_layer": -1`, `"vision_feature_layer": 27`, "vision_feature_layer"},
		{`151647`, `151646`, "video_token_index"},
		{`151646`, `152000`, `"image_token_index": got 152000`},
		{`"image_token_index": 151646`, `"image_token_id": 152000`, `"image_token_id": got 152000`},
		{`"vocab_size"`, `"use_sliding_window": true, "vocab_size"`, "use_sliding_window"},
		{`"siglip_vision_model"`, `"clip_vision_model"`, "model_type"},
		{`"patch_size": 14`, `"patch_size": 385`, "patch_size"},
		{`"num_attention_heads": 16`, `"num_attention_heads": 7`, "num_attention_heads"},
		{`"projector_hidden_act"`, `"image_grid_pinpoints": [[384, 100]], "projector_hidden_act"`, "image_grid_pinpoints"},
		{`"projector_hidden_act"`, `"use_image_newline_parameter": false, "projector_hidden_act"`, "use_image_newline_parameter"},
	} {
		data := strings.Replace(string(Family.Shape("llava-onevision-0.5b")), c.old, c.new, 1)
		_, err := ParseConfig([]byte(data))
		if err == nil || !strings.Contains(err.Error(), c.names) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want one line that names %s", c.new, err, c.names)
		}
	}
	c := published(t)
	if !c.Text.Tied || c.Text.Eps != 1e-6 || c.Most != 9 || len(c.Canvases) != 36 ||
		c.Vision.Grid() != 27 || c.Features[0] != 26 {
		t.Errorf("the published config: %+v", c)
	}
}

// Ensure that a model whose vocabulary lacks a video's token, also by default, takes no videos, as
// transformers runs it with text and pictures.
func TestNoVideoToken(t *testing.T) {
	for _, video := range []string{`151647`, `152000`, `null`} {
		data := strings.NewReplacer(`: 151647`, `: `+video, `: 151646`, `: 90`,
			`: 152000`, `: 151647`).Replace(string(Family.Shape("llava-onevision-0.5b")))
		c, err := ParseConfig([]byte(data))
		if err != nil || c.VideoToken != -1 || c.ImageToken != 90 || c.Text.Vocab != 151647 {
			t.Errorf("%s: %+v, %v, want no videos", video, c, err)
		}
	}
}

// Ensure that the newer name of a token goes before the older one, as in transformers 5.24.
func TestTokenNames(t *testing.T) {
	data := strings.Replace(string(Family.Shape("llava-onevision-0.5b")), `"image_token_index": 151646`,
		`"image_token_index": 151646, "image_token_id": 5, "video_token_id": 6`, 1)
	if c, err := ParseConfig([]byte(data)); err != nil || c.ImageToken != 5 || c.VideoToken != 6 {
		t.Errorf("got %+v, %v, want the tokens 5 and 6", c, err)
	}
}

// Ensure that an exported processor has as many tokens as the tower of a config without its sizes.
func TestExportDefaults(t *testing.T) {
	got, err := export.Processor(map[string]json.RawMessage{"vision_config": []byte("{}")})
	// SiglipVisionConfig of transformers: 224 pixels in patches of 16
	if err != nil || got.(map[string]any)["num_image_tokens"] != 14*14 {
		t.Errorf("%v, %v, want 196 tokens", got, err)
	}
}

// FuzzConfig ensures that no config makes the parser panic, and that every picture can be laid out
// under an accepted one.
func FuzzConfig(f *testing.F) {
	f.Add(Family.Shape("llava-onevision-0.5b"), uint16(97), uint16(131))
	f.Add([]byte(strings.Replace(string(Family.Shape("llava-onevision-7b")), `"patch_size": 14`, `"patch_size": 100`, 1)),
		uint16(1), uint16(65535))
	f.Fuzz(func(t *testing.T, data []byte, h, w uint16) {
		c, err := ParseConfig(data)
		if err != nil || h == 0 || w == 0 || c.Vision.Grid() > 32 {
			return
		}
		checkRows(t, c, c.pack(c.Map(int(h), int(w))))
	})
}
