package paper

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/internal/table"
)

// four are the methods in the ablations.
var four = []string{"VisionZip", "DivPrune", "VisPruner", "HoloV"}

// budget is the ablations' budget.
const budget = 64

// holov is the setting of ablations with only one method.
var holov = Setting{Base: "holov", NVis: budget}

// components are the rows of Tables 4 and 14: with and without merging, original positions and
// calibration. Without merging the base keeps the whole budget (gamma 1).
var components = func() (out []Setting) {
	for i := range 8 {
		merge, keep, calibrate := i&4 != 0, i&2 != 0, i&1 != 0
		if !merge && !calibrate {
			s := holov
			s.Plain = true
			if keep {
				s = s.with("positions", "original")
			}
			out = append(out, s)
			continue
		}
		s := holov
		if !merge {
			s = s.with("gamma", 1.0)
		}
		if !keep {
			s = s.with("positions", "sequential")
		}
		if !calibrate {
			s = s.with("calibrate", "off")
		}
		out = append(out, s)
	}
	return out
}()

// calibrations are the columns of Tables 5 and 15.
func calibrations(base string) []Setting {
	s := Setting{Base: bases[base], NVis: budget}
	return []Setting{s.with("calibrate", "off"), s.with("calibrate", "size"), s}
}

// reductions are the columns of Tables 6, 16 and 18: pruning alone (calibrated, at original
// positions), and merging into uniform or distinctive anchors.
func reductions(base string) []Setting {
	s := Setting{Base: bases[base], NVis: budget}
	return []Setting{s.with("gamma", 1.0), s.with("anchors", "uniform"), s}
}

// mergePositions are the rows of Tables 7 and 17.
var mergePositions = []Setting{
	holov.with("merge-position", "first"), holov, holov.with("merge-position", "mean"),
	holov.with("merge-position", "last"),
}

// gammas are the rows of Table 19 after the model's own row, and the columns of Table 12.
var gammas = []float64{0, 0.25, 0.5, 0.75, 1}

// table makes a table of the paper.
func (d *draft) table() *table.Table {
	switch d.t.Number {
	case 8:
		return d.anchorCost()
	case 9:
		return d.latency()
	case 18:
		return d.distances()
	case 20:
		return d.complexity()
	}
	if m, ok := d.t.matrix(); ok {
		return d.matrix(m)
	}
	return d.byBenchmark(d.t.settings())
}

// settings are the settings of a table's rows.
func (t *printed) settings() []Setting {
	switch t.Number {
	case 14:
		return components
	case 15, 16:
		var out []Setting
		for _, base := range four {
			if t.Number == 15 {
				out = append(out, calibrations(base)...)
			} else {
				out = append(out, reductions(base)...)
			}
		}
		return out
	case 17:
		return mergePositions
	case 19:
		plain := holov
		plain.Plain = true
		out := []Setting{full, plain}
		for _, g := range gammas {
			out = append(out, holov.with("gamma", g))
		}
		return out
	}
	var out []Setting
	for i := range t.Rows {
		out = append(out, t.setting(&t.Rows[i]))
	}
	return out
}

// matrix describes a table whose cells are settings; ok is false for other tables.
func (t *printed) matrix() (m matrix, ok bool) {
	m.decimals = 1
	row := func(name string, settings []Setting, columns ...string) {
		i := len(m.rows)
		var paper []any
		for _, c := range columns {
			paper = append(paper, t.value(i, c))
		}
		m.rows = append(m.rows, name)
		m.settings = append(m.settings, settings)
		m.paper = append(m.paper, paper)
	}
	switch t.Number {
	case 4:
		m.corner, m.columns = "components", []string{"Average"}
		for i, s := range components {
			row(t.component(i), []Setting{s}, "Average")
		}
	case 5:
		m.corner, m.columns = "method", []string{"without", "s_n", "s_n(c - D)"}
		for _, base := range four {
			row(base, calibrations(base), t.Columns[1:]...)
		}
	case 6:
		m.corner, m.columns = "method", t.Columns[1:]
		for _, base := range four {
			row(base, reductions(base), t.Columns[1:]...)
		}
	case 7:
		m.corner, m.columns = "position", []string{"Average"}
		for i, s := range mergePositions {
			row(t.text(i, "Position Type"), []Setting{s}, "Average")
		}
	case 11:
		m.corner, m.columns, m.decimals = "tokens", four, 0
		m.of, m.task = column{"OCRBench", "ocrbench", ""}, "text"
		for i := range t.Rows {
			n, _ := strconv.Atoi(strings.TrimPrefix(t.text(i, "Retained Tokens"), "n_vis="))
			var settings []Setting
			for _, base := range four {
				settings = append(settings,
					Setting{Base: bases[base], NVis: n, Plain: !t.Rows[i].Restore})
			}
			row(fmt.Sprintf("%d %s", n, t.text(i, "Method")), settings, four...)
		}
	case 12:
		m.corner, m.columns = "method", t.Columns[1:]
		m.of, m.task = column{"VQA^Text", "textvqa", ""}, "text"
		for _, base := range four {
			s := Setting{Base: bases[base], NVis: 192}
			plain := s
			plain.Plain = true
			settings := []Setting{plain}
			for _, g := range gammas {
				settings = append(settings, s.with("gamma", g))
			}
			row(base, settings, t.Columns[1:]...)
		}
	default:
		return m, false
	}
	return m, true
}
