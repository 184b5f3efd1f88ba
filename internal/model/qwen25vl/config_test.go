package qwen25vl

import (
	"os"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model/cells"
)

// Ensure that a video token is optional, and refused if it is the picture's token or not in the
// vocabulary.
func TestConfigVideo(t *testing.T) {
	data, err := os.ReadFile("../../engine/testdata/qwen25vl-tiny/config.json")
	if err != nil {
		t.Fatal(err)
	}
	for from, c := range map[string]struct {
		to    string
		token int32
		names string // of the error; "" means none
	}{
		`"video_token_id": 337`:   {`"video_token_id": 337`, 337, ""},
		`"video_token_id": 337,`:  {``, -1, ""},
		`"video_token_id": 337 `:  {`"video_token_id": 336`, 0, `"video_token_id": got 336`},
		`"video_token_id": 337  `: {`"video_token_id": 340`, -1, ""},
		`"tokens_per_second": 2`:  {`"tokens_per_second": 0`, 0, "tokens_per_second"},
	} {
		from = strings.TrimSpace(from)
		if !strings.Contains(string(data), from) {
			t.Fatalf("config.json has no %s", from)
		}
		got, err := ParseConfig([]byte(strings.Replace(string(data), from, c.to, 1)))
		switch {
		case c.names == "" && (err != nil || got.Tokens.Video != c.token):
			t.Errorf("%s: got %v, %v, want %d", c.to, got, err, c.token)
		case c.names != "" &&
			(err == nil || !strings.Contains(err.Error(), c.names) ||
				strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: got %v, want one line that names %q", c.to, err, c.names)
		}
	}
}

// FuzzConfig ensures that no config makes the parser panic, and that heads and windows of an
// accepted config divide evenly.
func FuzzConfig(f *testing.F) {
	for _, name := range []string{
		"qwen25vl-tiny/config.json", "qwen25vl-tied-tiny/config.json", "qwen25vl-tiny/config-5.x.ref",
	} {
		data, err := os.ReadFile("../../engine/testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		sum := 0
		for _, s := range c.Text.Sections {
			sum += s
		}
		if c.Vision.Hidden%c.Vision.Heads != 0 || c.Vision.side() < 1 || 2*sum != c.Text.HeadDim ||
			c.Text.Heads%c.Text.KVHeads != 0 {
			t.Fatalf("accepted %+v", c)
		}
	})
}

// FuzzGrids ensures that any grids are either refused or laid out completely.
func FuzzGrids(f *testing.F) {
	f.Add(int64(1), int64(10), int64(6), int64(1), int64(2), int64(2), uint16(64), false)
	f.Add(int64(3), int64(4), int64(6), int64(1), int64(2), int64(2), uint16(76), true)
	f.Add(int64(1)<<62, int64(1)<<62, int64(4), int64(1), int64(2), int64(2), uint16(4), true)
	f.Fuzz(func(t *testing.T, t1, h1, w1, t2, h2, w2 int64, rows uint16, video bool) {
		px := &imageproc.Pixels{
			Shape: []int{int(rows), 1176}, GridTHW: [][3]int{
				{int(t1), int(h1), int(w1)}, {int(t2), int(h2), int(w2)},
			},
		}
		if video {
			px.SecondsPerMoment = 1
		}
		if cells.Check(px, 1176, 2, "qwen25vl") != nil {
			return
		}
		order, bounds := windows(moments(px.GridTHW), 2, 4)
		if last := bounds[len(bounds)-1]; 4*len(order) != int(rows) || int(last) != int(rows) {
			t.Fatalf("%v: %d cells and %d patches of %d", px.GridTHW, len(order), last, rows)
		}
	})
}
