package reduce

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Resolved describes completely how one picture was reduced: the options with every default filled
// in.
type Resolved struct {
	Base  string  `json:"base"`
	N     int     `json:"n"`     // tokens before
	NVis  int     `json:"n_vis"` // tokens after; 0 until the method has determined it
	Keep  int     `json:"keep"`  // kept by the base's criterion
	Merge int     `json:"merge"` // merged into anchors
	Gamma float64 `json:"gamma"`

	Restore bool   `json:"restore"`
	Compat  string `json:"compat,omitempty"`
	NoClass bool   `json:"no_class,omitempty"` // the encoder has no class token

	Positions      string `json:"positions"`
	Calibrate      string `json:"calibrate"`
	MergePosition  string `json:"merge_position"`
	Anchors        string `json:"anchors"`
	AnchorPool     string `json:"anchor_pool"` // empty if density is not used
	Join           string `json:"join"`        // who may be joined: rest, all or count
	FirstLayerSize string `json:"first_layer_size"`
	DecodeDistance bool   `json:"decode_distance"`

	// Newlines tells how newline tokens are treated: "drop" leaves them out and does not count them
	// in positions, as in the released code; "skip" leaves them out but counts them; "keep" lets
	// them compete as tokens, as in DivPrune's own code. Empty: there are none.
	Newlines string `json:"newlines,omitempty"`

	// Behaviour of the released code that has no option of its own; set by Compat "released".

	ReleasedOrder     bool `json:"released_order,omitempty"`     // plain rows in the base's order
	MirrorLast        bool `json:"mirror_last,omitempty"`        // position "last" is N-1-last
	TruncateDistances bool `json:"truncate_distances,omitempty"` // to whole numbers, for the bias

	Seed int64 `json:"seed,omitempty"`

	// For methods inside the encoder: blocks up to the one whose output is the features.
	EncoderBlocks int `json:"encoder_blocks,omitempty"`

	// For methods inside the decoder. NVis, Keep and Merge then describe the last stage.
	Stages []Stage `json:"stages,omitempty"` // those that remove rows
	Mean   float64 `json:"mean,omitempty"`   // average number of tokens that enter a layer

	// Before is what a method before the encoder did; N then counts the tokens that it left. nil:
	// there was none, or it is the base itself.
	Before *Before `json:"before,omitempty"`

	// Content tells how the picture's content set the budget; nil: it did not.
	Content *Content `json:"content,omitempty"`

	Own []Value `json:"-"` // the method's own parameters; in JSON they are fields like the others
}

// Before describes a method before the encoder that comes before a base.
type Before struct {
	Base string `json:"base"`
	N    int    `json:"n"`     // tokens before
	NVis int    `json:"n_vis"` // tokens that were encoded

	Own []Value `json:"-"` // its parameters; in JSON they are fields like the others
}

// Content tells how a picture's content set its budget.
type Content struct {
	Mean      int     `json:"mean,omitempty"`      // of pictures' budgets; 0: the budget was fixed
	Threshold float64 `json:"threshold,omitempty"` // of gains, with Mean
	Above     int     `json:"above,omitempty"`     // gains above it, counted up to twice the mean

	Gain   float64 `json:"gain,omitempty"`   // at the budget, if there is a guard
	Guard  float64 `json:"guard,omitempty"`  // a picture with a gain above it is dense
	Raised bool    `json:"raised,omitempty"` // budget and gamma were raised
}

// String describes the budget and the reason for it.
func (c *Content) String() string {
	var parts []string
	if c.Mean > 0 {
		parts = append(parts, fmt.Sprintf("%s%d: %d gains above %.3g",
			AutoPrefix, c.Mean, c.Above, c.Threshold))
	}
	if c.Guard > 0 {
		is := "not above"
		if c.Raised {
			is = "dense: gain above"
		}
		parts = append(parts, fmt.Sprintf("guard: %s %.3g (%.3g)", is, c.Guard, c.Gain))
	}
	return strings.Join(parts, "; ")
}

// Value is a parameter with its value: a number, a boolean, a text or a list of numbers.
type Value struct {
	Name    string
	Value   any
	Default bool // true if it was not given
}

// MarshalJSON writes one flat object.
func (r Resolved) MarshalJSON() ([]byte, error) {
	type plain Resolved
	return marshalWith(plain(r), r.Own)
}

// MarshalJSON writes one flat object.
func (b Before) MarshalJSON() ([]byte, error) {
	type plain Before
	return marshalWith(plain(b), b.Own)
}

// marshalWith writes the object v with own as more fields.
func marshalWith(v any, own []Value) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(bytes.TrimSuffix(text, []byte("}")))
	for _, v := range own {
		name, value := Parameter{Name: v.Name}, []byte(nil)
		if value, err = json.Marshal(v.Value); err != nil {
			return nil, err
		}
		fmt.Fprintf(out, ",%q:%s", name.JSONName(), value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// String describes the reduction in one line; "none" means that every token is read.
func (r Resolved) String() string {
	if r.Base == "none" || r.Base == "" {
		return "none"
	}
	var b strings.Builder
	if r.Restore {
		fmt.Fprintf(&b, "RESTORE over %s, %s, gamma %v, positions %s, calibrate %s",
			r.Base, r.budget(), r.Gamma, r.Positions, r.Calibrate)
	} else {
		fmt.Fprintf(&b, "%s, %s, positions %s", r.Base, r.budget(), r.Positions)
	}
	// tokens become part of rows of others
	if r.Restore && (r.Merge > 0 || r.Join == "all" || r.Join == "count") {
		if r.MergePosition != "" { // "" if kept tokens only count others
			fmt.Fprintf(&b, ", merge-position %s", r.MergePosition)
		}
		fmt.Fprintf(&b, ", %s", r.merging())
	}
	writeGiven(&b, r.Own)
	if r.Before != nil {
		fmt.Fprintf(&b, ", before %s (%d of %d tokens)", r.Before.Base, r.Before.NVis, r.Before.N)
		writeGiven(&b, r.Before.Own)
	}
	if r.Newlines != "" {
		fmt.Fprintf(&b, ", newlines %s", r.Newlines)
	}
	if r.Compat != "" {
		fmt.Fprintf(&b, ", compat %s", r.Compat)
	}
	return b.String()
}

// writeGiven writes the parameters that were given.
func writeGiven(b *strings.Builder, own []Value) {
	for _, v := range own {
		if !v.Default {
			fmt.Fprintf(b, ", %s %v", v.Name, v.Value)
		}
	}
}

// merging describes how tokens are merged.
func (s *Resolved) merging() string {
	var parts []string
	if s.Anchors != "" {
		parts = append(parts, "anchors "+s.Anchors)
	}
	if n := len(parts); n > 0 && s.AnchorPool != "" && s.Anchors != "uniform" {
		parts[n-1] += " of " + s.AnchorPool
	}
	if s.Join != "" && s.Join != "rest" {
		parts = append(parts, "join "+s.Join)
	}
	return strings.Join(parts, ", ")
}

// budget describes the number of tokens that remain of a picture or, for a method inside the
// decoder, the number after each stage.
func (r *Resolved) budget() string {
	why := ""
	if r.Content != nil {
		why = fmt.Sprintf(" (%s)", r.Content)
	}
	if len(r.Stages) == 0 {
		return fmt.Sprintf("n-vis %d%s", r.NVis, why)
	}
	stages := make([]string, len(r.Stages))
	for i, s := range r.Stages {
		stages[i] = fmt.Sprintf("%d:%d", s.Layer, s.Rows())
	}
	return fmt.Sprintf("schedule %s (%.4g of %d tokens a layer)%s", strings.Join(stages, ","),
		r.Mean, r.N, why)
}
