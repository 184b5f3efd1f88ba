package reduce

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Space tells which features a Reduction holds.
type Space uint8

const (
	// Decoder means rows of width C, ready for the decoder.
	Decoder Space = iota
	// Encoder means rows of width Cv, which still go through the projector.
	Encoder
)

// Row is one token that the decoder gets.
type Row struct {
	Members []int32 // original indices, ascending; nil for a class-token or zero row

	// Anchor is the member that the row began with: the anchor of a merged row, the token itself of
	// a kept one. It is -1 if Members is nil, and in a row that merges all remaining tokens.
	Anchor int32

	Merged   bool    // made by merging, even if no other token joined its anchor
	IsClass  bool    // the class token itself (plain VisionZip)
	IsZero   bool    // a vector of zeros (the authors' HoloV)
	Size     int     // tokens that it stands for: len(Members), or 1 if Members is nil
	Position float64 // 0 to N-1, from the first visual token; only a mean may be fractional
}

// Reduction is the result for one picture. It shares no memory with its Input. In JSON, which has
// no infinity, the MaxSim, Score and Merit of a token without a superior are null.
type Reduction struct {
	Options Resolved

	N        int       // tokens before
	Rows     []Row     // in the order in which the decoder gets them
	Width    int       // features per row: C, or Cv if Space is Encoder; 0: they are not kept
	Features []float32 // [len(Rows), Width]
	Space    Space
	Group    []int32 // [N] row of every original token, -1 dropped

	Kept    []int32 // tokens that the base kept, in its order; -1 is a zero vector
	Anchors []int32 // in the order of Rest; covered ones in the order of choice

	// Rest are the tokens from which the anchors were chosen, in the base's order. For each of them
	// Density, MaxSim and Score are R, the masked maximum and R·(1-max) of Eqs. 5-8. The three are
	// nil if another rule chose, or nothing was merged.
	Rest                   []int32
	Density, MaxSim, Score []float32

	// Gains has one number for each covered anchor, in the order of Anchors: how much it adds to
	// the coverage of the tokens chosen before it. The numbers never rise.
	Gains []float64

	Scores  map[string][]float32 // the base's own scores, by the names in its description
	Indices map[string][]int32   // the base's own lists of tokens or counts

	Stages []StageResult // of a method inside the encoder or the decoder

	SelectTime, MergeTime time.Duration
}

// Stage is one step in which a method inside the decoder removes rows.
type Stage struct {
	Layer  int `json:"layer"`            // its attention or input decides; see the method
	Kept   int `json:"kept"`             // rows kept as they are by the criterion
	Merged int `json:"merged,omitempty"` // rows that merging adds
}

// Rows returns the number of rows after the stage.
func (s Stage) Rows() int { return s.Kept + s.Merged }

// StageResult is the result of one stage. Rows before the stage are numbered in their order before
// it.
type StageResult struct {
	Stage
	From    int // first layer, or block of the encoder, that the rows enter
	Before  int
	Rows    []Row     // after the stage, in decoder order
	Sources []int32   // for each row after it, the row before it that was kept; -1: merged
	Score   []float32 // [Before]
	Kept    []int32   // rows before the stage, ascending

	// The choice of anchors, as in Reduction; rows before the stage.
	Pool, Anchors, Assign  []int32
	Density, MaxSim, Merit []float32

	Scores  map[string][]float32 // the method's own
	Indices map[string][]int32
}

// numbers are written as null where they are infinite.
type numbers []float32

// MarshalJSON implements [json.Marshaler].
func (n numbers) MarshalJSON() ([]byte, error) {
	if n == nil {
		return []byte("null"), nil
	}
	out := make([]*float32, len(n))
	for i, v := range n {
		if !math.IsInf(float64(v), 0) {
			out[i] = &n[i]
		}
	}
	return json.Marshal(out)
}

// MarshalJSON implements [json.Marshaler].
func (r Reduction) MarshalJSON() ([]byte, error) {
	type plain Reduction
	return json.Marshal(struct {
		plain
		MaxSim, Score numbers
	}{plain(r), r.MaxSim, r.Score})
}

// MarshalJSON implements [json.Marshaler].
func (s StageResult) MarshalJSON() ([]byte, error) {
	type plain StageResult
	return json.Marshal(struct {
		plain
		MaxSim, Merit numbers
	}{plain(s), s.MaxSim, s.Merit})
}

// Identity reports whether nothing was reduced: N rows, each its own token at its own
// place. Such a picture needs no calibration.
func (r *Reduction) Identity() bool {
	return len(r.Rows) == r.N && r.N == r.Options.NVis && r.Space == Decoder
}

// Counts returns how many rows are tokens kept unchanged (including class-token and zero rows) and
// how many were merged.
func (r *Reduction) Counts() (kept, merged int) {
	for i := range r.Rows {
		if r.Rows[i].Merged {
			merged++
		}
	}
	return len(r.Rows) - merged, merged
}

// LayerSizes returns, for each row, the size s that calibration gives the decoder (Eq. 4): all 1 if
// sizes are not calibrated or nothing was reduced, otherwise the group sizes. In the first layer,
// with FirstLayerSize "uniform", every row counts N/n, as in the released code.
func (r *Reduction) LayerSizes(first bool) []float32 {
	o := &r.Options
	s := make([]float32, len(r.Rows))
	use := o.Restore && !r.Identity() && (o.Calibrate == "full" || o.Calibrate == "size")
	for i := range s {
		switch {
		case !use:
			s[i] = 1
		case first && o.FirstLayerSize == "uniform":
			s[i] = float32(r.N) / float32(len(r.Rows))
		default:
			s[i] = float32(r.Rows[i].Size)
		}
	}
	return s
}

// AfterStage returns the result of a method with stages after its i-th stage, 0 <= i <
// len(r.Stages). It holds no features.
func (r *Reduction) AfterStage(i int) *Reduction {
	out := &Reduction{Options: r.Options, N: r.N, Stages: r.Stages[:i+1]}
	st, o := &r.Stages[i], &out.Options
	o.NVis, o.Keep, o.Merge = st.Stage.Rows(), st.Stage.Kept, st.Stage.Merged
	if o.EncoderBlocks == 0 {
		o.Stages = o.Stages[:i+1]
	}
	out.SetRows(st.Rows)
	return out
}

// SetRows sets Rows, and Group, Kept and Anchors to match.
func (r *Reduction) SetRows(rows []Row) {
	r.Rows, r.Group = append([]Row(nil), rows...), make([]int32, r.N)
	r.Kept, r.Anchors = nil, nil
	for i := range r.Group {
		r.Group[i] = -1
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, t := range row.Members {
			r.Group[t] = int32(i)
		}
		if row.Merged && row.Anchor >= 0 {
			r.Anchors = append(r.Anchors, row.Anchor)
		} else if !row.Merged {
			r.Kept = append(r.Kept, row.Anchor)
		}
	}
}

// Check returns the first broken invariant as an error: every token is in at most one row, Group
// agrees with the rows, sizes add up, every merged row has exactly one anchor, features are finite,
// and positions are in range and in the order that the options promise.
func (r *Reduction) Check() error {
	if err := r.checkShape(); err != nil {
		return err
	}
	isAnchor := make([]bool, r.N)
	for _, a := range r.Anchors {
		if a < 0 || int(a) >= r.N || isAnchor[a] {
			return broken("anchor %d out of range or repeated", a)
		}
		isAnchor[a] = true
	}
	for _, t := range r.Kept {
		switch {
		case int(t) >= r.N:
			return broken("kept token %d, want at most %d", t, r.N-1)
		case t >= 0 && r.open(): // kept tokens may be joined
			isAnchor[t] = true
		}
	}
	covered := 0
	for i := range r.Rows {
		if err := r.checkRow(i, isAnchor); err != nil {
			return err
		}
		covered += len(r.Rows[i].Members)
	}
	dropped := 0
	for _, g := range r.Group {
		if g < 0 {
			dropped++
		}
	}
	if covered+dropped != r.N {
		return broken("%d tokens in rows and %d dropped, want %d together", covered, dropped, r.N)
	}
	if (r.Options.Merge > 0 || r.joins()) && dropped > 0 {
		return broken("%d tokens dropped though merging is on", dropped)
	}
	return nil
}

// open reports whether other tokens may be part of a kept token's row.
func (r *Reduction) open() bool {
	return r.joins() || r.Options.Restore && r.Options.Before != nil
}

// joins reports whether tokens that are neither kept nor anchors may join kept ones.
func (r *Reduction) joins() bool { return r.Options.Join == "all" || r.Options.Join == "count" }

// broken returns an error of Check.
func broken(format string, a ...any) error {
	return fmt.Errorf("reduce: invariant: "+format, a...)
}

// checkShape checks what does not belong to a single row.
func (r *Reduction) checkShape() error {
	if len(r.Group) != r.N {
		return broken("group has %d entries, want %d", len(r.Group), r.N)
	}
	if len(r.Rows) != r.Options.NVis {
		return broken("%d rows, want the budget %d", len(r.Rows), r.Options.NVis)
	}
	if len(r.Features) != len(r.Rows)*r.Width {
		return broken("%d feature values, want %d rows of %d",
			len(r.Features), len(r.Rows), r.Width)
	}
	for i, v := range r.Features {
		if v-v != 0 {
			return broken("feature %d of row %d is %v", i%r.Width, i/r.Width, v)
		}
	}
	return nil
}

// checkRow checks row i.
func (r *Reduction) checkRow(i int, isAnchor []bool) error {
	row := &r.Rows[i]
	if want := max(1, len(row.Members)); row.Size != want {
		return broken("row %d: size %d, want %d", i, row.Size, want)
	}
	if (len(row.Members) == 0) != (row.IsClass || row.IsZero) {
		return broken("row %d: %d members, but class %v and zero %v",
			i, len(row.Members), row.IsClass, row.IsZero)
	}
	anchors := 0
	for k, m := range row.Members {
		if m < 0 || int(m) >= r.N || k > 0 && row.Members[k-1] >= m {
			return broken("row %d: members are not ascending in 0..%d: %v", i, r.N-1, row.Members)
		}
		if r.Group[m] != int32(i) {
			return broken("row %d: token %d has group %d", i, m, r.Group[m])
		}
		if isAnchor[m] {
			anchors++
		}
	}
	leftover := row.Merged && row.Anchor < 0 && anchors == 0
	counts := r.Options.Join == "count" || r.Options.Before != nil // a kept row's size only
	alone := !row.Merged && len(row.Members) <= 1 && (anchors == 0 || r.open())
	named := row.Anchor >= 0 && int(row.Anchor) < r.N && isAnchor[row.Anchor]
	group := anchors == 1 && named && (row.Merged || counts)
	if !leftover && !alone && !group {
		return broken("row %d: %d members and %d anchors, merged %v",
			i, len(row.Members), anchors, row.Merged)
	}
	if !(row.Position >= 0 && row.Position <= float64(r.N-1)) {
		return broken("row %d: position %v, want 0..%d", i, row.Position, r.N-1)
	}
	ordered := !r.Options.ReleasedOrder || r.Options.Positions == "sequential"
	if ordered && i > 0 && row.Position < r.Rows[i-1].Position {
		return broken("row %d: position %v after %v", i, row.Position, r.Rows[i-1].Position)
	}
	return nil
}
