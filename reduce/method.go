package reduce

import (
	"slices"
	"strings"
)

// Site is where a method acts.
type Site uint8

// Where a method may act.
const (
	BeforeEncoder Site = iota // on the picture
	InsideEncoder             // between the encoder's blocks
	AfterEncoder              // on the encoder's output, before or after the projector
	InsideDecoder             // between the decoder's layers
	Calibration               // over another method
)

// String returns the site in words.
func (s Site) String() string {
	return [...]string{
		"before the encoder", "inside the encoder", "after encoder or projector",
		"inside the decoder", "over another method",
	}[s]
}

// Method is what a method says of itself.
type Method struct {
	Name  string // as in Options.Base
	Title string
	Paper string // address of the paper, empty for controls
	Site  Site

	Needs      []Need // what its criterion reads besides X
	NeedsPlain []Need // and what it reads besides when it runs without RESTORE

	Parameters []Parameter // its own

	Adaptive bool // without RESTORE and without a budget it finds the number of tokens itself
	PerView  bool // its criterion looks at each view of a picture on its own
	Draws    bool // its choice depends on Options.Seed
	Text     bool // reads the question: what it keeps holds for that question alone

	Minimum string // what its criterion asks of the share that it keeps, in words
	Cost    string // of its choice, in multiply-adds for N tokens of width C and a budget of n
	Notes   Notes
}

// Notes is prose about a method. Paragraphs are separated by an empty line; a single line
// break means nothing.
type Notes struct {
	Equations  string // what is computed
	Departures string // from the paper and from the authors' released code
	Licence    string // what is known of the authors' code
}

// Require returns what the method reads besides X, with RESTORE or without.
func (m *Method) Require(restore bool) []Need {
	if restore {
		return slices.Clone(m.Needs)
	}
	return slices.Concat(m.Needs, m.NeedsPlain)
}

// writtenFrom holds for every published method.
const writtenFrom = "Written from the paper and a description of the authors' code; none of that " +
	"code is included, so Apache-2.0 applies."

// Licence says how the method was written and what is known of its authors' code.
func (m *Method) Licence() string {
	if m.Paper == "" {
		return m.Notes.Licence
	}
	return strings.TrimSpace(writtenFrom + " " + m.Notes.Licence)
}

// Criterion is a method of your own: Keep returns k of the in.N tokens, distinct, in the
// criterion's order, 0 <= k <= in.N. What it may read besides in.X is what Method.Needs
// lists. The same input must give the same answer.
//
// Every picture gets a criterion of its own. One that has parameters declares them by a
// method Declare (see [Declarer]); their values are set before Keep is called.
type Criterion interface {
	Keep(in *Input, k int) ([]int32, error)
}

// KeepFunc is a Criterion without parameters.
type KeepFunc func(in *Input, k int) ([]int32, error)

// Keep implements Criterion.
func (f KeepFunc) Keep(in *Input, k int) ([]int32, error) { return f(in, k) }
