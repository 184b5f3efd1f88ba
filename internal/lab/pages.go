package lab

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
)

// PageKinds are the kinds of pages that Page draws.
var PageKinds = []string{"text", "screen", "scan"}

// Sizes of a drawn page in pixels.
const (
	pageText    = 20 // of letters
	pageLeading = 30 // from line to line
	pageMargin  = 56
)

// page draws on a picture.
type page struct {
	im   *image.RGBA
	face font.Face
	rng  *rand.Rand
}

// Page draws a page of width w and height h: "text", black paragraphs on white; "screen", a window
// with a title, a list, a text, cards and a picture; "scan", the text with noise of one level.
func Page(kind string, w, h int, seed uint64) (*imageproc.Picture, error) {
	f, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, fmt.Errorf("lab: page: %w", err)
	}
	face, err := opentype.NewFace(f, &opentype.FaceOptions{
		Size: pageText, DPI: 72, Hinting: font.HintingFull,
	})
	if err != nil {
		return nil, fmt.Errorf("lab: page: %w", err)
	}
	p := &page{image.NewRGBA(image.Rect(0, 0, w, h)), face, rand.New(rand.NewPCG(seed, 0))}
	p.fill(0, 0, w, h, color.White)
	switch kind {
	case "text":
		p.text(pageMargin, pageMargin, w-pageMargin, h-pageMargin)
	case "screen":
		p.screen(w, h)
	case "scan":
		p.text(pageMargin, pageMargin, w-pageMargin, h-pageMargin)
		p.noise()
	default:
		return nil, fmt.Errorf("lab: page: got %q, want one of %q", kind, PageKinds)
	}
	out := &imageproc.Picture{Width: w, Height: h, Pix: make([]byte, 0, 3*w*h), Format: "PNG"}
	for at := 0; at < len(p.im.Pix); at += 4 {
		out.Pix = append(out.Pix, p.im.Pix[at:at+3]...)
	}
	return out, nil
}

func (p *page) fill(x0, y0, x1, y1 int, c color.Color) {
	draw.Draw(p.im, image.Rect(x0, y0, x1, y1), image.NewUniform(c), image.Point{}, draw.Src)
}

// line writes words from x0 on that end before x1, on the baseline y.
func (p *page) line(x0, x1, y int) {
	d := font.Drawer{Dst: p.im, Src: image.Black, Face: p.face, Dot: fixed.P(x0, y)}
	for {
		word := make([]byte, 2+p.rng.IntN(8))
		for i := range word {
			word[i] = byte('a' + p.rng.IntN(26))
		}
		if (d.Dot.X + d.MeasureBytes(word)).Ceil() > x1 {
			return
		}
		d.DrawBytes(append(word, ' '))
	}
}

// text fills a box with paragraphs of three to eight lines, of which the last is short.
func (p *page) text(x0, y0, x1, y1 int) {
	left := 3 + p.rng.IntN(6)
	for y := y0 + pageText; y < y1; y += pageLeading {
		end := x1
		if left--; left == 0 {
			end = x0 + (x1-x0)*(2+p.rng.IntN(6))/10
		}
		p.line(x0, end, y)
		if left == 0 {
			left = 3 + p.rng.IntN(6)
			y += pageLeading
		}
	}
}

// screen draws a window: a bar above, a list on the left, and on the right a text, cards, and a
// picture whose colours change.
func (p *page) screen(w, h int) {
	bar, list := 64, w/4
	p.fill(0, 0, w, bar, color.RGBA{45, 55, 72, 255})
	p.fill(0, bar, list, h, color.RGBA{237, 242, 247, 255})
	for y := bar + 40; y < h-pageMargin; y += 48 {
		p.line(24, list-24-p.rng.IntN(list/3+1), y)
	}
	p.text(list+pageMargin, bar+pageMargin, w-pageMargin, h/2-pageMargin)
	for x := list + pageMargin; x+160 < w; x += 200 {
		p.fill(x, h/2, x+160, h/2+100, color.RGBA{226, 232, 240, 255})
		p.line(x+12, x+148, h/2+40)
	}
	for y := h/2 + 140; y < h-pageMargin; y++ {
		for x := list + pageMargin; x < list+(w-list)/2; x++ {
			noise := p.rng.IntN(24)
			p.im.SetRGBA(x, y, color.RGBA{
				byte(40 + 150*x/w + noise), byte(60 + 120*y/h + noise), byte(120 + noise), 255,
			})
		}
	}
}

// noise changes every byte by -1, 0 or 1.
func (p *page) noise() {
	for i, v := range p.im.Pix {
		if i%4 < 3 {
			p.im.Pix[i] = byte(min(255, max(0, int(v)+p.rng.IntN(3)-1)))
		}
	}
}

// Encoding is one encoding of a picture.
type Encoding struct {
	Tokens  int           // of the picture
	Kept    []int32       // tokens that were encoded; nil: all
	Width   int           // of a row
	X       []float32     // [tokens that were encoded, Width] after the projector
	Prepare time.Duration // pixel values, and the choice of the tokens to encode
	Encode  time.Duration
	CPU     time.Duration // of all processors, for both; 0 if the system does not say
}

// EncodeOnce prepares, encodes and reduces a picture as o says, without any cache. The times mean
// something only if no other request runs.
func EncodeOnce(
	ctx context.Context, e *engine.Engine, pic *imageproc.Picture, o methods.Options,
) (*Encoding, error) {
	start := time.Now()
	used, _ := kernel.CPUTime()
	p, err := e.NewPrompt(ctx, engine.Request{
		Tokens: []int32{e.Model().ImageToken()}, Images: engine.Pictures(pic), Reduce: o,
		NoCache: true,
	})
	if err != nil {
		return nil, err
	}
	defer p.Free()
	out := &Encoding{
		Tokens: len(p.IDs()), Width: e.Model().Decoder().Shape().Hidden, Prepare: time.Since(start),
	}
	return out, e.Do(ctx, func(r *model.Run) error {
		start := time.Now()
		got, err := p.Reduce(r, 0)
		if err != nil {
			return err
		}
		now, _ := kernel.CPUTime()
		out.Encode, out.CPU, out.X = time.Since(start), now-used, got.X
		if got.Reduction != nil {
			out.Kept = got.Reduction.Kept
		}
		return nil
	})
}

// Apart returns for each row of x how far it is from the row of the same token in whole, relative
// to the length of the latter.
func (x *Encoding) Apart(whole *Encoding) []float64 {
	n := len(x.X) / x.Width
	out := make([]float64, n)
	for i := range n {
		t := i
		if x.Kept != nil {
			t = int(x.Kept[i])
		}
		var apart, length float64
		for j, v := range whole.X[t*x.Width : (t+1)*x.Width] {
			d := float64(x.X[i*x.Width+j]) - float64(v)
			apart, length = apart+d*d, length+float64(v)*float64(v)
		}
		out[i] = math.Sqrt(apart / length)
	}
	return out
}
