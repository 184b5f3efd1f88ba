package methods

import (
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/reduce"
)

// method is one line of the table: a method's description, and its functions.
type method struct {
	reduce.Method

	parameters func() own // a new set of its own parameters; nil: none

	// budgets refuses a budget that the method cannot meet; nil: it meets every budget
	budgets func(p *Plan) error
	check   func(p *Plan, k int) error               // whether the criterion can keep k >= 1
	pick    func(w *work, k int) (*selection, error) // the criterion, k >= 0
	plain   func(w *work) (*reduce.Reduction, error) // without RESTORE, if more than pick
	split   func(p *Plan, sizes, keep []int) []own   // own parameters of each view
	ops     func(p *Plan, d Dims) float64            // multiply-adds without the anchors' cosines
	unit    int                                      // a view's share is a multiple of it; 0: any
	whole   bool                                     // plain also makes every row with RESTORE
	raster  bool                                     // the released code keeps raster order
	places  bool                                     // the released code keeps original positions
	before  beforeMethod                             // what it leaves out before the encoder
	encoder *encoderMethod                           // its functions inside the encoder
	inside  *insideMethod                            // its functions inside the decoder

	classlessRaster bool // the released code for encoders without a class token keeps raster order
}

// table lists the methods of this module, one per line.
var table = []*method{
	noneMethod,
	holovMethod,
	divPruneMethod,
	visPrunerMethod,
	visionZipMethod,
	fasterVLMMethod,
	apetMethod,
	scopeMethod,
	hiPruneMethod,
	vScanMethod,
	cdPrunerMethod,
	mmTokMethod,
	pruMergeMethod,
	pruMergePlusMethod,
	dartMethod,
	toMeMethod,
	flowCutMethod,
	dartTextMethod,
	fastVMethod,
	pdropMethod,
	sparseVLMMethod,
	fitPruneMethod,
	pixelPruneMethod,
	randomMethod,
	gridMethod,
	poolMethod,
	downsampleMethod,
}

// noCode is the licence note of methods that were not published as a method.
const noCode = "Ours; Apache-2.0."

var noneMethod = &method{
	Method: reduce.Method{
		Name: "none", Title: "no reduction",
		Summary: "Reads every patch of the picture.",
		Site:    reduce.AfterEncoder, Cost: "none",
		Notes: reduce.Notes{
			Equations: "Every token reaches the decoder as it is.", Licence: noCode,
		},
	},
	ops: noOps,
}

// Methods returns the table in its order: no reduction, published methods, controls, then
// registered methods.
func Methods() []reduce.Method {
	all, given := methods(), parameters()
	out := make([]reduce.Method, len(all))
	for i, m := range all {
		out[i] = m.describe(given)
	}
	return out
}

// OnTop describes RESTORE itself, which runs over any of Methods (Options.Restore) and is not a
// base.
func OnTop() reduce.Method { return restoreMethod.describe(parameters()) }

// Lookup returns the method with that name; "" means none.
func Lookup(name string) (reduce.Method, error) {
	m, err := lookup(name)
	if err != nil {
		return reduce.Method{}, err
	}
	return m.describe(parameters()), nil
}

// Covers reports whether RESTORE may choose covered anchors over a method, with kept tokens that
// may be joined.
func Covers(base string) bool {
	m, err := lookup(base)
	return err == nil && m != noneMethod && !m.whole && m.inside == nil &&
		!(m.encoder != nil && m.encoder.partners)
}

// describe returns the description of m, with its parameters out of all.
func (m *method) describe(all []reduce.Parameter) reduce.Method {
	c := m.Method
	c.Needs, c.NeedsPlain = slices.Clone(m.Needs), slices.Clone(m.NeedsPlain)
	var d reduce.Declaration
	if m.parameters != nil {
		m.parameters().Declare(&d)
	}
	for _, p := range all {
		if !slices.Contains(p.Methods, m.Name) {
			continue
		}
		for _, mine := range d.Parameters() {
			if mine.Name == p.Name { // another method may have another default
				p.Default = mine.Default
			}
		}
		c.Parameters = append(c.Parameters, p)
	}
	return c
}

// Parameters returns every parameter, once: first the parameters of all methods, then each
// method's own, with the names of the methods that have it.
func Parameters() []reduce.Parameter { return slices.Clone(parameters()) }

func parametersOf(all []*method) []reduce.Parameter {
	out := shared()
	for _, m := range all {
		if m.parameters == nil {
			continue
		}
		var d reduce.Declaration
		m.parameters().Declare(&d)
		for _, p := range d.Parameters() {
			i := slices.IndexFunc(out, func(q reduce.Parameter) bool { return q.Name == p.Name })
			if i < 0 {
				i = len(out)
				out = append(out, p)
			} else if p.Default != out[i].Default {
				out[i].Default += "; " + m.Name + ": " + p.Default
			}
			out[i].Methods = append(out[i].Methods, m.Name)
		}
	}
	return out
}

// names are the values of Options.Base.
func names() []string { return namesOf(func(*method) bool { return true }) }

// insiders are the methods inside the decoder.
func insiders() []string { return namesOf(func(m *method) bool { return m.inside != nil }) }

// drawers are the random methods.
func drawers() []string { return namesOf(func(m *method) bool { return m.Draws }) }

func namesOf(which func(*method) bool) []string {
	var out []string
	for _, m := range methods() {
		if which(m) {
			out = append(out, m.Name)
		}
	}
	return out
}

func lookup(name string) (*method, error) {
	if name == "" {
		return noneMethod, nil
	}
	for _, m := range methods() {
		if m.Name == name {
			return m, nil
		}
	}
	return nil, unknown("base", strconv.Quote(name), names())
}
