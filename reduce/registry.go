package reduce

import (
	"fmt"
	"slices"
	"strings"
)

// Site is where a method acts.
type Site uint8

const (
	// BeforeEncoder methods act on the picture.
	BeforeEncoder Site = iota
	// InsideEncoder methods act between the encoder's blocks.
	InsideEncoder
	// AfterEncoder methods act on the encoder's output, before or after the projector.
	AfterEncoder
	// InsideDecoder methods act between the decoder's layers.
	InsideDecoder
	// Calibration acts over another reducer.
	Calibration
)

// String returns the site in words.
func (s Site) String() string {
	return [...]string{"before the encoder", "inside the encoder", "after encoder or projector", "inside the decoder", "over another method"}[s]
}

// Need is a part of Input that a method reads beside X.
type Need string

// What a method may need. The names are those of the tensors that FromTensors reads.
const (
	ClsAttn Need = "cls_attn"
	Hidden  Need = "hidden"
	Keys    Need = "keys"
	Grid    Need = "grid"
	// LastKeys stands for pm_q_cls too: the class token's query and all keys of the encoder's last layer.
	LastKeys Need = "pm_k"
	// Shrunk is the picture encoded at the size that ShrunkGrid says.
	Shrunk Need = "shrunk"
)

// Param is an option of one method.
type Param struct {
	Name, Default, Help string
}

// Method describes one method of the table.
type Method struct {
	Name     string // as in Options.Base
	Title    string
	Paper    string // address of the paper, empty for controls
	Site     Site
	Needs    []Need // by its criterion
	Params   []Param
	Adaptive bool   // without RESTORE and without a budget it finds the number of tokens itself
	PerView  bool   // its criterion looks at each view of a picture on its own (see View)
	Minimum  string // what its criterion asks of the share that it keeps itself, in words
	Text     bool   // reads the question: what it keeps holds for that question, and later turns of a conversation reuse it as it is
	Cost     string // of the choice, in multiply-adds for N tokens of width C with a budget of n
	Notes    Notes

	needsPlain []Need                                   // in addition, when it runs without RESTORE
	check      func(o *Resolved, k int) error           // whether the criterion can keep k >= 1 of o.N tokens
	pick       func(w *work, k int) (*selection, error) // the criterion, k >= 0
	plain      func(w *work) (*Reduction, error)        // the method without RESTORE, where that is more than pick
	whole      bool                                     // plain makes every row with RESTORE too, which then only calibrates
	raster     bool                                     // the criterion hands tokens on in raster order
	ops        func(o *Resolved, d Dims) float64        // multiply-adds of the criterion beside the anchors' cosines
	unit       int                                      // tokens that a view's share is a multiple of where it can be; 0 is 1
	encoder    *encoderMethod                           // what it does inside the encoder
	inside     *insideMethod                            // what it does inside the decoder
}

// methods is the table: one line a method.
var methods = []*Method{
	noneMethod,
	holovMethod,
	divPruneMethod,
	visPrunerMethod,
	visionZipMethod,
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
	randomMethod,
	gridMethod,
	poolMethod,
	downsampleMethod,
}

var noneMethod = &Method{
	Name: "none", Title: "no reduction", Site: AfterEncoder, Cost: "none", ops: noOps,
	Notes: Notes{Equations: "Every token reaches the decoder as it is.", Licence: noCode},
}

// Methods returns the table in its order: no reduction, published methods, controls, then what Register added.
func Methods() []Method {
	all := table()
	out := make([]Method, len(all))
	for i, m := range all {
		out[i] = m.clone()
	}
	return out
}

// OnTop describes RESTORE itself, which acts over any of Methods (Options.Restore) and is no base.
func OnTop() Method { return restoreMethod.clone() }

func (m *Method) clone() Method {
	c := *m
	c.Needs, c.Params = slices.Clone(m.Needs), slices.Clone(m.Params)
	return c
}

// Require returns what the method reads beside X: by its criterion, and when it runs without RESTORE.
func (m *Method) Require(restore bool) []Need { return slices.Clone(m.needs(restore)) }

func (m *Method) needs(restore bool) []Need {
	if restore {
		return m.Needs
	}
	return slices.Concat(m.Needs, m.needsPlain)
}

// Licence is the whole licence note: how the method was written, and what is known of its authors' code.
func (m *Method) Licence() string {
	if m.Paper == "" {
		return m.Notes.Licence
	}
	return strings.TrimSpace(licenceNote + " " + m.Notes.Licence)
}

func lookup(name string) (*Method, error) {
	all := table()
	names := make([]string, len(all))
	for i, m := range all {
		if m.Name == name {
			return m, nil
		}
		names[i] = m.Name
	}
	return nil, fmt.Errorf("reduce: base: got %q, want one of %s", name, strings.Join(names, ", "))
}
