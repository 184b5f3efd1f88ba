package restore_test

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"log"
	"os"
	"path/filepath"

	"github.com/restore-vlm/restore"
)

// square returns a pale picture with a red square at the bottom right.
func square() *restore.Picture {
	m := image.NewRGBA(image.Rect(0, 0, 336, 336))
	fill := func(r image.Rectangle, c color.Color) {
		draw.Draw(m, r, image.NewUniform(c), image.Point{}, draw.Src)
	}
	fill(m.Rect, color.RGBA{220, 225, 215, 255})
	fill(image.Rect(240, 240, 300, 300), color.RGBA{220, 40, 40, 255})
	p, err := restore.FromImage(m)
	if err != nil {
		log.Fatal(err)
	}
	return p
}

func ExampleModel_Ask() {
	ctx := context.Background()
	m, err := restore.Open(ctx, "", nil) // the embedded model
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	ans, err := m.Ask(ctx, restore.Request{
		Prompt:    "What color is the square?",
		Pictures:  []*restore.Picture{square()},
		Reduction: &restore.Reduction{Base: "holov", NVis: 64},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ans.Text)
	p := ans.Pictures[0]
	fmt.Printf("%d visual tokens read as %d kept and %d merged\n", p.Tokens, p.Kept, p.Merged)
	// Output:
	// red
	// 576 visual tokens read as 32 kept and 32 merged
}

// Stream yields the answer while it is generated.
func ExampleModel_Stream() {
	ctx := context.Background()
	m, err := restore.Open(ctx, "", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	q := restore.Request{Prompt: "Describe the image.", Pictures: []*restore.Picture{square()}}
	for piece, err := range m.Stream(ctx, q) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(piece.Text)
		if a := piece.Answer; a != nil {
			fmt.Printf(" (%s)\n", a.Finish)
		}
	}
	// Output:
	// A red square at the bottom right. (stop)
}

// A conversation reads the picture once; later questions reuse its reduced tokens,
// keys and values.
func ExampleConversation() {
	ctx := context.Background()
	m, err := restore.Open(ctx, "", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	c, err := restore.NewConversation(m, &restore.Reduction{Base: "divprune", NVis: 64})
	if err != nil {
		log.Fatal(err)
	}
	q := restore.Request{
		Prompt: "Is there a red square in the image?", Pictures: []*restore.Picture{square()},
	}
	for _, next := range []string{"Where is the red square?", ""} {
		ans, err := c.Ask(ctx, q)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s (%t)\n", ans.Text, ans.Usage.Cached > 0)
		q = restore.Request{Prompt: next}
	}
	// Output:
	// yes (false)
	// bottom right (true)
}

// A packed file needs no conversion at startup: its weights already have the requested types.
func ExamplePack() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "restore")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "model.rst"))
	if err != nil {
		log.Fatal(err)
	}
	how := &restore.Options{Weights: restore.Q8, Encoder: restore.AsStored}
	if err := restore.Pack(ctx, "", f, how); err != nil {
		log.Fatal(err)
	}
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
	m, err := restore.Open(ctx, f.Name(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	info := m.Info()
	fmt.Printf("%.1f million numbers in %.1f MB\n", float64(info.Params)/1e6,
		float64(info.Bytes)/1e6)
	// Output:
	// 4.1 million numbers in 5.7 MB
}
