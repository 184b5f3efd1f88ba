package paper

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
)

// valuesJSON holds the values printed in the paper's tables.
//
//go:embed values.json
var valuesJSON []byte

// printed is a table of the paper.
type printed struct {
	Number  int
	Title   string
	Model   string
	Columns []string
	Rows    []printedRow
}

// printedRow is a row: its cells, and for rows of methods the method and budget.
type printedRow struct {
	Cells   []any // texts, numbers, and nil for an empty cell
	Section string
	Method  string
	Restore bool
	NVis    int     `json:"n_vis"`
	Percent float64 // of the visual tokens
	Gamma   float64
}

// tables are the paper's tables.
var tables = sync.OnceValue(func() []printed {
	var all []printed
	if err := json.Unmarshal(valuesJSON, &all); err != nil {
		panic("paper: values.json: " + err.Error()) // embedded and tested
	}
	return all
})

// Tables is the number of the paper's tables.
const Tables = 20

func tableOf(number int) (*printed, error) {
	all := tables()
	i := slices.IndexFunc(all, func(t printed) bool { return t.Number == number })
	if i < 0 {
		return nil, fmt.Errorf("paper: table: got %d, want 1 to %d", number, Tables)
	}
	return &all[i], nil
}

// value is the number in a row's column, nil if the paper prints none.
func (t *printed) value(row int, column string) any {
	i := slices.Index(t.Columns, column)
	if i < 0 || row < 0 || row >= len(t.Rows) {
		return nil
	}
	if v, ok := t.Rows[row].Cells[i].(float64); ok {
		return v
	}
	return nil
}

// text is the text in a row's column.
func (t *printed) text(row int, column string) string {
	if i := slices.Index(t.Columns, column); i >= 0 {
		if s, ok := t.Rows[row].Cells[i].(string); ok {
			return s
		}
	}
	return ""
}
