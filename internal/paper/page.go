package paper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/table"
)

// Item is a table or a figure of the paper.
type Item struct {
	Figure bool
	Number int
}

// Items are all tables, and the figures that show measurements.
func Items() (all []Item) {
	for n := 1; n <= Tables; n++ {
		all = append(all, Item{Number: n})
	}
	for _, n := range Figures {
		all = append(all, Item{Figure: true, Number: n})
	}
	return all
}

func (i Item) String() string {
	if i.Figure {
		return fmt.Sprintf("figure %d", i.Number)
	}
	return fmt.Sprintf("table %d", i.Number)
}

// Title is the item's title.
func (i Item) Title() string {
	if i.Figure {
		return figureTitles[i.Number]
	}
	if t, err := tableOf(i.Number); err == nil {
		return t.Title
	}
	return ""
}

// Needs are the benchmarks that the item shows.
func (i Item) Needs() (names []string) {
	switch {
	case i.Figure && i.Number == 3:
		return nil
	case i.Figure && i.Number == 4:
		return []string{"gqa", "mmbench-en"}
	case i.Figure, i.Number == 9, i.Number == 18:
		return []string{"gqa"}
	case i.Number == 8, i.Number == 20:
		return nil
	case i.Number == 11:
		return []string{"ocrbench"}
	case i.Number == 12:
		return []string{"textvqa"}
	}
	t, err := tableOf(i.Number)
	if err != nil {
		return nil
	}
	for _, c := range t.averaged() {
		names = append(names, c.key)
	}
	return names
}

// Check refuses items that the paper does not have or that show no measurement.
func (i Item) Check() error {
	switch {
	case !i.Figure:
		_, err := tableOf(i.Number)
		return err
	case i.Number == 1:
		return fmt.Errorf("paper: figure 1: illustrates the method and measures nothing, " +
			"want 2, 3, 4 or 5")
	case !slices.Contains(Figures, i.Number):
		return fmt.Errorf("paper: figure: got %d, want 2, 3, 4 or 5", i.Number)
	}
	return nil
}

// Page is a measured item.
type Page struct {
	Item   string `json:"item"`
	Model  string `json:"model"`
	Data   string `json:"data,omitempty"` // "" if no questions are asked
	Scenes bool   `json:"scenes"`         // not the paper's benchmarks
	*table.Table
	Panels []chart.Panel `json:"-"` // for figures
}

// Write writes the page in a format of package table. CSV has no title, so each line has columns
// for the model and the data.
func (p *Page) Write(w io.Writer, format string) error {
	if format != "csv" || p.Data == "" {
		return p.Table.Write(w, format)
	}
	out := *p.Table
	n := len(out.Columns)
	out.Columns = append(slices.Clip(out.Columns),
		table.Column{Name: "model"}, table.Column{Name: "data"})
	out.Rows = slices.Clone(out.Rows)
	for i, r := range out.Rows {
		if len(r) == n {
			out.Rows[i] = append(slices.Clip(r), p.Model, p.Data)
		}
	}
	return out.Write(w, format)
}

// Make makes an item; it runs evaluations that have no record.
func (mk *Maker) Make(ctx context.Context, i Item, src *Source) (*Page, error) {
	if err := i.Check(); err != nil {
		return nil, err
	}
	p := &Page{Item: i.String(), Model: mk.Name()}
	if i.Needs() != nil {
		p.Data, p.Scenes = src.title(), src.Scenes
	}
	d := &draft{Maker: mk, ctx: ctx, src: src}
	switch {
	case !i.Figure:
		d.t, d.err = tableOf(i.Number)
		p.Table = d.table()
	case i.Number == 3:
		p.Table, p.Panels = decay()
	case i.Number == 4:
		p.Table, p.Panels = d.tradeoff()
	default:
		p.Table, p.Panels = d.attention(i.Number)
	}
	if d.err == nil && mk.work == nil && mk.ran == 0 && mk.first != "" {
		d.err = errors.New(mk.first) // no cell has a value
	}
	return p, d.err
}
