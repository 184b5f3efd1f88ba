package idefics3

import (
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// The texts of a picture.
const (
	fake   = "<fake_token_around_image>"
	global = "<global-img>"
	place  = "<image>" // stands for the tokens of a view
)

// spelled returns the text of a picture of rows by cols tiles, or of one that is a single view if
// rows is 0.
func spelled(rows, cols int) string {
	var b strings.Builder
	for y := range rows {
		for x := range cols {
			fmt.Fprintf(&b, "%s<row_%d_col_%d>%s", fake, y+1, x+1, place)
		}
		b.WriteString("\n")
	}
	if rows > 0 {
		b.WriteString("\n")
	}
	b.WriteString(fake + global + place + fake)
	return b.String()
}

// layout tells how a picture's tokens come from its views: the tiles, row by row, then the whole
// picture. A cell is one token.
type layout struct {
	model.Views
	cells []nn.Mix // the patches of each token that is no text
}

// layout lays out a picture of rows by cols tiles whose text has the given ids. View 0 is the whole
// picture, whose pixels come last.
func (c *Config) layout(rows, cols int, ids []int32) (*layout, error) {
	tiles, side := rows*cols, c.side()
	n := side * side
	l := &layout{Views: model.Views{Count: tiles + 1, Side: side}}
	next := int32(0)
	for _, id := range ids {
		if id != c.ImageToken {
			l.Source, l.Texts = append(l.Source, -1), append(l.Texts, id)
			continue
		}
		for range n {
			l.Source = append(l.Source, next)
			next++
		}
	}
	if int(next) != l.Count*n {
		return nil, fmt.Errorf("idefics3: tokenizer: the text of a picture has %d places (%s, "+
			"image_token_id %d), want %d", int(next)/n, place, c.ImageToken, l.Count)
	}
	for v := range l.Count {
		of := int32(v + 1)
		if v == tiles {
			of = 0
		}
		for k := range n {
			l.Of = append(l.Of, of)
			l.cells = append(l.cells, nn.Mix{From: c.cell(v, k/side, k%side)})
		}
	}
	for k := range n {
		l.All = append(l.All, int32(tiles*n+k))
	}
	l.Grids = append(l.Grids, [2]int{side, side})
	if tiles > 0 {
		for y := range rows * side {
			for x := range cols * side {
				tile := y/side*cols + x/side
				l.All = append(l.All, int32(tile*n+y%side*side+x%side))
			}
		}
		l.Grids = append(l.Grids, [2]int{rows * side, cols * side})
	}
	return l, nil
}

// cell returns the patches of a cell of view v, row by row.
func (c *Config) cell(v, y, x int) (patches []int32) {
	grid := c.Vision.Grid()
	for dy := range c.Scale {
		for dx := range c.Scale {
			patches = append(patches,
				int32((v*grid+y*c.Scale+dy)*grid+x*c.Scale+dx))
		}
	}
	return patches
}
