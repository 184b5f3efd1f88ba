package reduce

import (
	"fmt"
	"slices"
	"strings"
)

// Site is the place in the model where a method works.
type Site uint8

// Where a method may work.
const (
	BeforeEncoder Site = iota // on the picture
	InsideEncoder             // between the encoder's blocks
	AfterEncoder              // on the encoder's output, before or after the projector
	InsideDecoder             // between the decoder's layers
	Calibration               // on top of another method
)

// String returns the site in words.
func (s Site) String() string {
	names := [...]string{
		"before the encoder", "inside the encoder", "after encoder or projector",
		"inside the decoder", "over another method",
	}
	if int(s) >= len(names) {
		return fmt.Sprintf("site %d", uint8(s))
	}
	return names[s]
}

// Method describes a method.
type Method struct {
	Name    string // such as "holov"
	Title   string
	Summary string // what it does, in one sentence without terms
	Paper   string // address of the paper; empty for controls
	Site    Site

	Needs      []Need // data that its criterion reads in addition to X
	NeedsPlain []Need // more data that it reads without RESTORE

	Parameters []Parameter // its own

	Adaptive bool // determines the number of tokens itself, without RESTORE and without a budget
	PerView  bool // its criterion looks at each view of a picture separately
	Draws    bool // its choice depends on the seed
	Text     bool // reads the question, so its choice holds only for that question

	Minimum string // smallest share of tokens that its criterion can keep, in words
	Cost    string // of its choice, in multiply-adds for N tokens of width C and a budget of n
	Notes   Notes
}

// Notes is prose about a method. Paragraphs are separated by an empty line; a single line
// break means nothing.
type Notes struct {
	Equations  string // of the method
	Departures string // from the paper and from the authors' released code
	Licence    string // of the authors' code, if known
}

// Require returns what the method reads in addition to X, with RESTORE or without it.
func (m *Method) Require(restore bool) []Need {
	if restore {
		return slices.Clone(m.Needs)
	}
	return slices.Concat(m.Needs, m.NeedsPlain)
}

// TakesBudget reports whether a number of tokens can be asked of the method.
func (m *Method) TakesBudget() bool {
	return m.Name != "none" && !(m.Site == BeforeEncoder && m.Adaptive)
}

// EachQuestion reports whether what the method chooses holds for one question only, so that each
// question reads the picture's tokens again.
func (m *Method) EachQuestion() bool { return m.Text || m.Site == InsideDecoder }

// writtenFrom applies to every published method.
const writtenFrom = "Written from the paper and a description of the authors' code; none of that " +
	"code is included, so Apache-2.0 applies."

// Licence returns how the method was written and the licence of its authors' code.
func (m *Method) Licence() string {
	if m.Paper == "" {
		return m.Notes.Licence
	}
	return strings.TrimSpace(writtenFrom + " " + m.Notes.Licence)
}

// Criterion is a method of your own. Keep returns k different tokens of the in.N, in the
// criterion's order, 0 <= k <= in.N. It may read in.X and the data in Method.Needs. The same input
// must give the same result.
//
// Every picture gets its own criterion. A criterion with parameters declares them in a
// method Declare (see [Declarer]); they are set before Keep is called.
type Criterion interface {
	Keep(in *Input, k int) ([]int32, error)
}

// KeepFunc is a Criterion without parameters.
type KeepFunc func(in *Input, k int) ([]int32, error)

// Keep implements Criterion.
func (f KeepFunc) Keep(in *Input, k int) ([]int32, error) { return f(in, k) }
