package paper

import (
	"fmt"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/lab"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/table"
)

// costBudgets are the columns of Table 20 and the rows of Table 8.
var costBudgets = []int{192, 128, 64}

// cost is the operations of a model at the budgets.
type cost struct {
	name    string
	tokens  []int // kept
	counted []*lab.FLOPs
	sizes   *engine.Sizes
}

// costs counts operations for the paper's model, and for the current model if it is a different one
// whose operations are known; out gets a note if they are not.
func (d *draft) costs(out *table.Table) (all []*cost) {
	e, err := d.Paper()
	if err != nil {
		d.fail(err)
		return nil
	}
	defer e.Close()
	for _, e := range []*engine.Engine{e, d.engine()} {
		if e.Info().Sizes == nil {
			out.Notes = append(out.Notes, "Operations of "+d.Name()+" are not counted: its "+
				"encoder attends in windows and sees pictures of any size.")
			return all
		}
		c, err := costOf(e)
		if err != nil {
			d.fail(err)
			return nil
		}
		if all == nil || c.counted[0].Total != all[0].counted[0].Total {
			all = append(all, c)
		}
	}
	return all
}

func costOf(e *engine.Engine) (*cost, error) {
	s := e.Info().Sizes
	c := &cost{name: e.Info().Name, sizes: s}
	for _, n := range costBudgets {
		n = max(1, (n*s.Tokens+288)/576) // the same share for another model
		o := methods.Options{Base: "holov", NVis: n, Restore: true}
		plan, err := methods.Resolve(o, s.Facts())
		if err != nil {
			return nil, err
		}
		f, err := lab.CountFLOPs(s, plan, n, lab.PaperPrompt)
		if err != nil {
			return nil, err
		}
		c.tokens, c.counted = append(c.tokens, n), append(c.counted, f)
	}
	return c, nil
}

// unit is a readable unit for a model's operations.
func (c *cost) unit() (string, float64) {
	if c.counted[0].Total >= 1e11 {
		return "T", 1e12
	}
	return "G", 1e9
}

// costTitle is the title of a table of operations, which runs no model.
func (t *printed) costTitle() string {
	return fmt.Sprintf("Table %d. %s. Counted: multiply-adds, each once, as the paper does; "+
		"paper: %s.", t.Number, t.Title, t.Model)
}

// anchorCost makes Table 8.
func (d *draft) anchorCost() *table.Table {
	t := d.t
	out := &table.Table{Title: t.costTitle(), Columns: []table.Column{
		{Name: "tokens"},
		{Name: "overhead, %", Decimals: 3}, paperColumn("overhead, %", 3),
		{Name: "choosing anchors, G", Decimals: 3}, paperColumn("choosing anchors, G", 3),
		{Name: "model, T", Decimals: 3}, paperColumn("model, T", 3),
	}}
	for k, c := range d.costs(out) {
		out.Rows = append(out.Rows, table.Row{c.name})
		for i, f := range c.counted {
			row := table.Row{
				c.tokens[i], f.Overhead(), nil, f.Choice / 1e9, nil, f.Total / 1e12, nil,
			}
			if k == 0 {
				row[2], row[4], row[6] = t.value(i, "Overhead Ratio"),
					t.value(i, "Anchor Selection (FLOPs)"), t.value(i, "MLLMs Calculation (FLOPs)")
			}
			out.Rows = append(out.Rows, row)
		}
	}
	return out
}

// Numeric rows of the paper's Table 20.
const (
	rowEncoder = 4
	rowTokens  = 7
	rowDecoder = 11
	rowTotal   = 12
	rowRatio   = 15
)

// complexity makes Table 20.
func (d *draft) complexity() *table.Table {
	t := d.t
	anchors, _ := tableOf(8)
	out := &table.Table{Title: t.costTitle(), Columns: []table.Column{{Name: "module"}}}
	for _, n := range t.Columns[3:] {
		out.Columns = append(out.Columns, table.Column{Name: n, Decimals: 3}, paperColumn(n, 3))
	}
	for k, c := range d.costs(out) {
		out.Rows = append(out.Rows, table.Row{c.name})
		unit, by := c.unit()
		add := func(name string, value func(i int) any, paper func(i int) any) {
			row := table.Row{name}
			for i := range c.counted {
				row = append(row, value(i), nil)
				if k == 0 {
					row[len(row)-1] = paper(i)
				}
			}
			out.Rows = append(out.Rows, row)
		}
		printed := func(row int) func(int) any {
			return func(i int) any { return t.value(row, t.Columns[3+i]) }
		}
		whole := func(row int) func(int) any {
			return func(i int) any { v, _ := printed(row)(i).(float64); return int(v) }
		}
		none := func(int) any { return nil }
		add("visual tokens of the encoder", func(int) any { return c.sizes.Tokens }, none)
		add("encoder, "+unit, func(i int) any { return c.counted[i].Encoder / by },
			printed(rowEncoder))
		add("visual tokens of the decoder", func(i int) any { return c.tokens[i] }, none)
		add("rows of the decoder", func(i int) any {
			return c.tokens[i] + lab.PaperPrompt
		}, whole(rowTokens))
		add("decoder, "+unit, func(i int) any { return c.counted[i].Decoder / by },
			printed(rowDecoder))
		add("model, "+unit, func(i int) any { return c.counted[i].Total / by }, printed(rowTotal))
		add("choosing anchors, G", func(i int) any { return c.counted[i].Choice / 1e9 },
			func(i int) any { return anchors.value(i, "Anchor Selection (FLOPs)") })
		add("choosing / model, %", func(i int) any { return c.counted[i].Overhead() },
			printed(rowRatio))
	}
	return out
}
