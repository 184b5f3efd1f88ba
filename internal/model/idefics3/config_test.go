package idefics3

import (
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/imageproc"
)

// sized is a config.json with small sizes.
const sized = `{"image_token_id":9,"text_config":{"hidden_size":8,"num_attention_heads":2,` +
	`"vocab_size":20},"vision_config":{"image_size":32,"patch_size":4}}`

// Ensure that absent keys have transformers' defaults, that only the top level ties the head, and
// that settings that would change the result are refused by name.
func TestConfig(t *testing.T) {
	c, err := ParseConfig([]byte(sized))
	if err != nil {
		t.Fatal(err)
	}
	if v := c.Vision; c.Scale != 2 || v.Hidden != 1152 || v.Heads != 16 || v.Layers != 12 ||
		v.MLP != 3072 || v.Eps != 1e-6 || v.Act != "gelu_pytorch_tanh" || !v.LastNorm ||
		c.Text.Tied || c.side() != 4 {
		t.Errorf("got %+v", c)
	}
	for change, want := range map[string]string{
		`"image_token_id":9 -> "image_token_id":20`:                               "image_token_id",
		`"image_token_id":9 -> "image_token_id":9,"scale_factor":3`:               "scale_factor",
		`"image_token_id":9 -> "image_token_id":9,"scale_factor":0`:               "scale_factor",
		`"vocab_size":20 -> "vocab_size":20,"model_type":"gemma"`:                 "model_type",
		`"patch_size":4 -> "patch_size":4,"model_type":"clip"`:                    "model_type",
		`"patch_size":4 -> "patch_size":4,"num_channels":1`:                       "num_channels",
		`"patch_size":4 -> "patch_size":[4,5]`:                                    "patch_size",
		`"vocab_size":20 -> "vocab_size":20,"rope_parameters":{"rope_type":"su"}`: "rope_type",
		`"vision_config":{ -> "vision":{`:                                         "vision_config",
	} {
		from, to, _ := strings.Cut(change, " -> ")
		if _, err := ParseConfig([]byte(strings.Replace(sized, from, to, 1))); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", change, err, want)
		}
	}
	for change, want := range map[string]bool{
		`{"image -> {"tie_word_embeddings":true,"image`:           true,
		`"vocab_size" -> "tie_word_embeddings":true,"vocab_size"`: false,
	} {
		from, to, _ := strings.Cut(change, " -> ")
		c, err := ParseConfig([]byte(strings.Replace(sized, from, to, 1)))
		if err != nil || c.Text.Tied != want {
			t.Errorf("%s: got %v, want tied %v", change, err, want)
		}
	}
}

// Ensure that a tokenizer without the token around pictures is refused by the token's name.
func TestNoToken(t *testing.T) {
	c, err := ParseConfig([]byte(sized))
	if err != nil {
		t.Fatal(err)
	}
	m := &Model{cfg: c, spell: func(string) ([]int32, error) { return []int32{1, 2}, nil }}
	_, err = m.Pictures(&imageproc.Pixels{
		Shape: []int{1, 1, 3, 32, 32}, Data: make([]float32, 3*32*32), Splits: [][2]int{{}},
	})
	if want := "got 2 tokens for " + fake + ", want a token of its own"; err == nil ||
		!strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// FuzzConfig ensures that no config makes the parser panic, and that pictures can be laid out with
// an accepted one.
func FuzzConfig(f *testing.F) {
	f.Add(Family.Shape("smolvlm-256m"), uint8(3), uint8(4))
	f.Add(Family.Shape("smolvlm2-2.2b"), uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, rows, cols uint8) {
		c, err := ParseConfig(data)
		if err != nil || c.Vision.Grid() > 32 {
			return
		}
		views := int(rows%5)*int(cols%5) + 1
		l, err := c.layout(int(rows%5), int(cols%5), slices.Repeat([]int32{c.ImageToken}, views))
		if err != nil || len(l.cells) != views*c.side()*c.side() || len(l.All) != len(l.cells) {
			t.Errorf("%v: %d views with %+v", err, views, l)
		}
	})
}

// Ensure that the text of a picture is as worked out by hand.
func TestSpelled(t *testing.T) {
	const f = "<fake_token_around_image>"
	for _, c := range []struct {
		rows, cols int
		want       string
	}{
		{0, 0, f + "<global-img><image>" + f},
		{2, 1, f + "<row_1_col_1><image>\n" + f + "<row_2_col_1><image>\n\n" + f +
			"<global-img><image>" + f},
	} {
		if got := spelled(c.rows, c.cols); got != c.want {
			t.Errorf("%d by %d: got %q, want %q", c.rows, c.cols, got, c.want)
		}
	}
}

// Ensure that a cell has the patches of its square, that views have their cells, and that a text
// with other places is an error. Tiles of 4x4 patches have 2x2 cells.
func TestLayout(t *testing.T) {
	c, err := ParseConfig([]byte(strings.Replace(sized, `"image_size":32`, `"image_size":16`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.layout(1, 2, []int32{1, 9, 2, 9, 3, 4, 9, 5})
	if err != nil {
		t.Fatal(err)
	}
	// tile 0 has the patches 0 to 15, row by row; its last cell those of rows and columns 2 and 3
	if got := l.cells[3].From; !slices.Equal(got, []int32{10, 11, 14, 15}) {
		t.Errorf("cell 3: got %v", got)
	}
	if got := l.cells[4].From; !slices.Equal(got, []int32{16, 17, 20, 21}) {
		t.Errorf("cell 4: got %v", got)
	}
	want := []int32{-1, 0, 1, 2, 3, -1, 4, 5, 6, 7, -1, -1, 8, 9, 10, 11, -1}
	if !slices.Equal(l.Source, want) || !slices.Equal(l.Texts, []int32{1, 2, 3, 4, 5}) {
		t.Errorf("got %v with texts %v, want %v", l.Source, l.Texts, want)
	}
	if of := []int32{1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0}; !slices.Equal(l.Of, of) {
		t.Errorf("views: got %v, want %v", l.Of, of)
	}
	// the whole, then the map of two tiles: 0 1 4 5 / 2 3 6 7
	if all := []int32{8, 9, 10, 11, 0, 1, 4, 5, 2, 3, 6, 7}; !slices.Equal(l.All, all) {
		t.Errorf("patches: got %v, want %v", l.All, all)
	}
	if _, err := c.layout(1, 2, []int32{1, 9, 2, 9}); err == nil ||
		!strings.Contains(err.Error(), "2 places") {
		t.Errorf("a place is missing: got %v", err)
	}
}
