package methods

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/reduce"
)

// Options say how a picture's tokens are reduced. The zero value reads every token. An unset field
// has the default of Compat, or the measured default, and is never refused as useless. A set field
// is refused if it would change nothing.
type Options struct {
	Base   string // name of a method; "" and "none" read every token
	Before string // method before the encoder that precedes the base; "" and "none": none

	// The budget is one of these fields. For methods inside the decoder NVis and KeepRatio are the
	// mean number of tokens that enter a layer. A method may have a parameter that replaces the
	// budget, or find the number of tokens itself (Method.Adaptive).
	NVis      int     // tokens, 1 to N
	KeepRatio float64 // share of N, rounded to the nearest token, ties to even
	Schedule  string  // stages inside the decoder

	AutoMean int // a budget by the picture's content: mean tokens of a picture

	UpTo bool // NVis is a maximum: a smaller picture keeps all tokens

	Restore bool     // RESTORE over the base; false: the plain base
	Compat  string   // sets every default below
	Gamma   *float64 // share of the budget that the base keeps, floor(Gamma·n)

	Positions, Calibrate, MergePosition string
	Anchors, AnchorPool, Join           string
	FirstLayerSize                      string
	DecodeDistance                      *bool

	Newlines string // for pictures whose rows end in newline tokens
	Seed     *int64 // for random methods

	Guard   bool     // raises budget and gamma of dense pictures
	Budgets *Budgets // thresholds for AutoMean and Guard; nil: the model's

	Own map[string]any // the method's own parameters by name

	// Defaults are names of set fields that are ignored for a model that gives them no effect.
	Defaults []string
}

// declare declares every field that is a parameter of all methods.
func (o *Options) declare(d *reduce.Declaration) {
	type param = reduce.Parameter
	restore := []string{restoreMethod.Name}
	d.Choice(&o.Base, param{
		Name: "base", Default: "none", Values: names(), Help: "method that selects the kept tokens",
	})
	d.Choice(&o.Before, param{
		Name: "before", Default: "none", Values: before(),
		Help: "method that leaves out tokens before the encoder; the base chooses among the others",
	})
	d.Func(param{
		Name: "n-vis", Kind: reduce.Int, Default: "none", Unit: "N|auto:N", Least: new(0.),
		Want: "at least 1", Auto: true, Budget: true,
		Help: "keep N visual tokens of each picture (inside the decoder the mean over layers); " +
			"auto:N keeps N on average, by each picture's content; 0 is for plain methods that " +
			"find their number",
	}, o.setNVis, o.getNVis)
	d.Float(&o.KeepRatio, param{
		Name: "keep-ratio", Default: "none", Unit: "share", Budget: true,
		Least: new(0.), Above: true, Most: new(1.),
		Help: "keep this share of each picture's visual tokens",
	})
	d.Func(param{
		Name: "schedule", Kind: reduce.Text, Default: "none", Unit: "stages", Budget: true,
		Methods: insiders(), Want: "LAYER:COUNT or LAYER:SHARE, as in 2:0.5,16:64",
		Help: "rows that remain after each stage inside the decoder, as LAYER:SHARE or " +
			"LAYER:COUNT, separated by commas",
	}, func(x any) error { o.Schedule = x.(string); return nil },
		func() any { return o.Schedule })
	d.Bool(&o.Restore, param{
		Name: "restore", Default: "true",
		Help: "merge the tokens that the base does not keep, and calibrate attention (RESTORE)",
	})
	d.Func(param{
		Name: "gamma", Kind: reduce.Float, Default: formatFloat(defaultGamma), Unit: "share",
		Least: new(0.), Most: new(1.), Methods: restore,
		Help: "share of the budget that the base keeps, the rest is merged; 1 is calibrated " +
			"pruning",
	}, func(x any) error { o.Gamma = new(x.(float64)); return nil }, optional(&o.Gamma))
	d.Choice(&o.Compat, param{
		Name: "compat", Default: "none", Values: []string{"paper", "released"},
		Help: "set the defaults of the others as in the paper or in the released code",
	})
	d.Choice(&o.Positions, param{
		Name: "positions", Default: "original", Values: []string{"original", "sequential"},
		Help: "positions of the kept tokens",
	})
	d.Choice(&o.Calibrate, param{
		Name: "calibrate", Default: "full", Values: []string{"full", "size", "distance", "off"},
		Methods: restore, Help: "terms of Eq. 4 that act on the decoder's attention",
	})
	d.Choice(&o.MergePosition, param{
		Name: "merge-position", Default: "median", Methods: restore,
		Values: []string{
			"median", "median-mean", "mean", "first", "last", "anchor", "axes-median", "axes-mean",
		},
		Help: "position of a merged row among its members in reading order; axes-: row and " +
			"column separately (M-RoPE)",
	})
	d.Choice(&o.Anchors, param{
		Name: "anchors", Default: "auto", Methods: restore,
		Values: []string{"auto", "covered", "paper", "released", "uniform"},
		Help: "which rule chooses anchors; auto is released for a ninth of the tokens and more, " +
			"covered below",
	})
	d.Choice(&o.Join, param{
		Name: "join", Default: "auto", Values: []string{"auto", "rest", "all", "count"},
		Methods: restore,
		Help: "which rows the tokens join that are neither kept nor anchors: only anchors " +
			"(rest), also kept tokens (all), or kept tokens in size only (count); auto is all " +
			"with covered anchors, else rest",
	})
	d.Choice(&o.AnchorPool, param{
		Name: "anchor-pool", Default: "rest", Values: []string{"all", "rest"}, Methods: restore,
		Help: "whether densities are sums over all tokens or over those not kept",
	})
	d.Choice(&o.FirstLayerSize, param{
		Name: "first-layer-size", Default: "group", Values: []string{"group", "uniform"},
		Methods: restore, Help: "sizes in the decoder's first layer: each group's, or N/n for all",
	})
	d.Func(param{
		Name: "decode-distance", Kind: reduce.Bool, Default: "true", Methods: restore,
		Help: "also calibrate generated tokens for distance",
	}, func(x any) error { o.DecodeDistance = new(x.(bool)); return nil },
		optional(&o.DecodeDistance))
	d.Choice(&o.Newlines, param{
		Name: "newlines", Default: "drop", Values: []string{"drop", "keep", "skip"},
		Help: "newline tokens of pictures in tiles: dropped (drop), dropped but counted in " +
			"positions (skip), or tokens like others (keep)",
	})
	d.Bool(&o.Guard, param{
		Name: "guard", Default: "false", Methods: restore,
		Help: "double the budget of dense pictures, with gamma 0.75 unless it is given",
	})
	d.Func(param{
		Name: "budget-file", Kind: reduce.File, Default: "budget.json in the model's folder",
		Unit: "file", Want: "a file of budgets",
		Help: "file of thresholds for n-vis auto:N and guard, from restore-lab budget",
	}, func(x any) (err error) { o.Budgets, err = budgetsOf(x.([]byte)); return err },
		func() any { return nil })
	d.Func(param{
		Name: "seed", Kind: reduce.Int, Default: "0", Methods: drawers(),
		Help: "same seed, same tokens",
	}, func(x any) error { o.Seed = new(x.(int64)); return nil }, optional(&o.Seed))
}

// setNVis parses a number of tokens, or "auto:N".
func (o *Options) setNVis(x any) (err error) {
	o.NVis, o.AutoMean = 0, 0
	if text, ok := x.(string); ok {
		o.AutoMean, err = strconv.Atoi(strings.TrimPrefix(text, reduce.AutoPrefix))
		return err
	}
	n := x.(int64)
	if n > math.MaxInt {
		return fmt.Errorf("this machine has numbers up to %d", math.MaxInt)
	}
	o.NVis = int(n)
	return nil
}

func (o *Options) getNVis() any {
	if o.AutoMean != 0 {
		return autoText(o.AutoMean)
	}
	return o.NVis
}

// optional returns a getter for *p, nil if p is nil.
func optional[T any](p **T) func() any {
	return func() any {
		if *p == nil {
			return nil
		}
		return **p
	}
}

// given returns every parameter of all methods that o sets, with its value.
func (o *Options) given() []reduce.Value {
	var d reduce.Declaration
	o.declare(&d)
	return slices.DeleteFunc(d.Values(), func(v reduce.Value) bool {
		switch x := v.Value.(type) {
		case nil:
			return true
		case string:
			return x == ""
		case int:
			return x == 0
		case float64:
			return x == 0 && v.Name != "gamma"
		case bool:
			return v.Name == "restore" || !x
		}
		return false
	})
}

// shared returns the parameters of all methods.
func shared() []reduce.Parameter {
	var d reduce.Declaration
	new(Options).declare(&d)
	return d.Parameters()
}

// switches are the defaults that differ between the paper and the released code.
type switches struct {
	positions, calibrate, mergePosition, anchors, anchorPool, join, firstLayerSize string
	decodeDistance                                                                 bool
}

// defaults by Compat. The entry "" does best on the built-in benchmark.
var defaults = map[string]switches{
	"":         {"original", "full", "median", "auto", "rest", "auto", "group", true},
	"paper":    {"original", "full", "median", "paper", "all", "rest", "group", true},
	"released": {"original", "full", "median", "released", "rest", "rest", "uniform", false},
}

const defaultGamma = 0.5

// gamma is the share of the budget that the base keeps under RESTORE.
func (o *Options) gamma() float64 {
	if o.Gamma != nil {
		return *o.Gamma
	}
	return defaultGamma
}

// PerAxis reports whether merged rows have a separate median or mean on each axis of positions.
func (o *Options) PerAxis() bool { return strings.HasPrefix(o.MergePosition, "axes-") }

// Inside reports whether rows are reduced inside the decoder; NVis is then a mean over layers.
func (o *Options) Inside() bool {
	m, err := lookup(o.Base)
	return err == nil && m.inside != nil
}

// ReadsText reports whether the method reads the question, so that its choice holds only for it.
func (o *Options) ReadsText() bool {
	m, err := lookup(o.Base)
	return err == nil && m.Text
}

// or returns the first string that is not empty.
func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func formatFloat(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
