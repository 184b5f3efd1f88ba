package restore_test

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"log"
	"os"
	"path/filepath"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/imageproc"
	"github.com/restore-vlm/restore/reduce"
)

// square returns a pale picture with a red square at the bottom right.
func square() *imageproc.Picture {
	p := &imageproc.Picture{Width: 336, Height: 336, Pix: make([]byte, 3*336*336)}
	for y := range 336 {
		for x := range 336 {
			c := color.RGBA{220, 225, 215, 255}
			if (image.Point{X: x, Y: y}).In(image.Rect(240, 240, 300, 300)) {
				c = color.RGBA{220, 40, 40, 255}
			}
			copy(p.Pix[3*(y*336+x):], []byte{c.R, c.G, c.B})
		}
	}
	return p
}

func ExampleModel_ask() {
	m, err := restore.Open("", restore.OpenOptions{}) // the embedded model
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	ans, err := m.Ask(context.Background(), restore.Request{
		Prompt: "What color is the square?",
		Images: []*imageproc.Picture{square()},
		Reduce: reduce.Options{Base: "holov", NVis: 64, Restore: true},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ans.Text)
	r := ans.Report
	fmt.Printf("%d visual tokens read as %d kept and %d merged\n", r.Before, r.Kept, r.Merged)
	// Output:
	// red
	// 576 visual tokens read as 32 kept and 32 merged
}

// A conversation reads the picture once; later questions reuse its reduced
// tokens, keys and values.
func ExampleConversation() {
	m, err := restore.Open("", restore.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	c := m.NewConversation(reduce.Options{Base: "divprune", NVis: 64, Restore: true})
	pics := []*imageproc.Picture{square()}
	for _, q := range []string{"Is there a red square in the image?", "Where is the red square?"} {
		ans, err := c.Ask(context.Background(), restore.Request{Prompt: q, Images: pics, OnText: func(s string) { fmt.Print(s) }})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf(" (%t)\n", ans.Report.CachedTokens > 0)
		pics = nil
	}
	// Output:
	// yes (false)
	// bottom right (true)
}

// A packed file is ready to run: its weights are of the types that were asked for.
func ExamplePack() {
	dir, err := os.MkdirTemp("", "restore")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	f, err := os.Create(filepath.Join(dir, "model.rst"))
	if err != nil {
		log.Fatal(err)
	}
	if err := restore.Pack("", restore.OpenOptions{Quant: "q8"}, f); err != nil {
		log.Fatal(err)
	}
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
	m, err := restore.Open(f.Name(), restore.OpenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	info := m.Info()
	fmt.Printf("%.1f million numbers in %.1f MB\n", float64(info.Params)/1e6, float64(info.Resident)/1e6)
	// Output:
	// 4.1 million numbers in 5.7 MB
}
