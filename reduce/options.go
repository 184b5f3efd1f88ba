package reduce

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Options is what a user asks for. The zero value of a string means "not given": the default of Compat, or the measured one, applies, and
// such a default is never refused as useless; a value that is given is, where it would change nothing.
type Options struct {
	Base string // a name of Methods; "" is none

	NVis      int     // budget n in tokens, 1..N; with KeepRatio 0 too, plain prumerge and prumerge-plus find it in the picture
	KeepRatio float64 // or as a share of N, rounded to the nearest token, ties to even. Exactly one of the two

	UpTo bool // NVis is the most: a picture of fewer tokens is read whole. For budgets that nobody asked for

	Restore bool   // merge what is not kept and calibrate the decoder's attention; false: the plain base
	Compat  string // "", paper or released: sets the default of every switch below

	Gamma    float64 // share of the budget that the base keeps itself, floor(Gamma*n) tokens; the others become merged anchors. Default 0.5
	GammaSet bool    // Gamma was given (needed to tell 0 from the default)

	Positions      string // original|sequential
	Calibrate      string // full|size|distance|off
	MergePosition  string // median|median-mean|mean|first|last|anchor, or axes-median|axes-mean where tokens have rows and columns
	Anchors        string // paper|released|uniform
	AnchorPool     string // all|rest
	FirstLayerSize string // group|uniform
	DecodeDistance string // true|false

	HolovOverflow string // redistribute|zero

	Newlines string // drop|keep|skip, for pictures whose rows end in newline tokens: see Resolved

	Seed int64 // of random

	// NoClass says that the encoder has no class token: ClsAttn is the attention that patches receive and row 0 of Hidden and Keys is
	// zeros. Methods then take the form that their authors gave them for such encoders. Whoever makes the Input sets it.
	NoClass bool

	// Parameters of one method each; zero is the authors' default.
	HolovPatches        int     // 1-D runs that the tokens are split into; default 16
	VisPrunerRatio      float64 // share of the kept tokens chosen by attention; default 0.5
	VisPrunerRatioSet   bool    // VisPrunerRatio was given (needed to tell 0 from the default)
	VisPrunerStep       int     // tokens dropped a pass; default 8
	VisionZipContextual int     // merged tokens of plain VisionZip; default n*10/64 to the nearest, the authors' 54:10
	DartPivots          int     // tokens that the others are compared with; default 8

	// Of methods inside the encoder.
	ToMeR                 string // merges a block, instead of NVis or KeepRatio: see ToMe's file
	ProportionalAttention string // true|false: the encoder's attention counts a row as the patches it stands for
	EncoderBlocks         int    // of the model's encoder, up to the one that hands on features; whoever runs the model sets it
	EncoderDepth          int    // all blocks of the model's encoder; likewise

	// Of methods inside the decoder, for which NVis and KeepRatio are the mean number of tokens that enter a layer.
	Schedule        string  // "layer:count" or "layer:share" entries separated by commas, instead of NVis or KeepRatio
	FastVLayer      int     // stage of FastV; default 2
	PDropLayers     string  // stages of PyramidDrop, separated by commas; default see its file
	SparseVLMLayers string  // stages of SparseVLM, separated by commas; default see its file
	FitPruneRecipe  *Recipe // of FitPrune, for the model's decoder; not needed beside a schedule
	Layers          int     // of the model's decoder; whoever runs the model sets it

	anyPicture bool // Check: the number of tokens is not known
}

// Resolved is a complete, checked set of options for one number of tokens.
type Resolved struct {
	Base  string  `json:"base"`
	N     int     `json:"n"`     // tokens before
	NVis  int     `json:"n_vis"` // tokens after; 0 where the method finds their number
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
	AnchorPool     string `json:"anchor_pool"`
	FirstLayerSize string `json:"first_layer_size"`
	DecodeDistance bool   `json:"decode_distance"`

	// Newlines says what becomes of newline tokens: "drop" leaves them out and does not count them in positions, as the released code does;
	// "skip" leaves them out and counts them; "keep" lets them compete as tokens, as DivPrune's own code does. Empty where there are none.
	Newlines string `json:"newlines,omitempty"`

	// Habits of the released code that no switch of their own reaches; set by Compat "released".
	ReleasedOrder       bool    `json:"released_order,omitempty"`     // plain base: rows in the criterion's order instead of raster order
	MirrorLast          bool    `json:"mirror_last,omitempty"`        // position "last" is N-1-last
	TruncateDistances   bool    `json:"truncate_distances,omitempty"` // fractional distances are cut to integers for the bias
	HolovOverflow       string  `json:"holov_overflow,omitempty"`
	HolovPatches        int     `json:"holov_patches,omitempty"`
	VisPrunerRatio      float64 `json:"vispruner_ratio,omitempty"`
	VisPrunerStep       int     `json:"vispruner_step,omitempty"`
	VisionZipContextual int     `json:"visionzip_contextual,omitempty"`
	DartPivots          int     `json:"dart_pivots,omitempty"`
	Seed                int64   `json:"seed,omitempty"`

	// Of methods inside the encoder.
	EncoderBlocks         int   `json:"encoder_blocks,omitempty"` // blocks up to the one that hands on features
	ToMeR                 []int `json:"tome_r,omitempty"`         // merges a block; of a picture in views the first view's
	ProportionalAttention bool  `json:"proportional_attention,omitempty"`

	// Of methods inside the decoder; NVis, Keep and Merge are then those of the last stage.
	Stages []Stage `json:"stages,omitempty"` // of those that take rows away
	Mean   float64 `json:"mean,omitempty"`   // tokens that enter a layer, on average

	toMeBehind []int // merges of blocks behind the features, for traces
	checked    bool  // made by Resolve
	inViews    bool  // these are the options of one view of several
	splitViews bool  // each view splits its own share by the default
}

// switches are the options that paper and released code set differently.
type switches struct {
	positions, calibrate, mergePosition, anchors, anchorPool, firstLayerSize, decodeDistance string
}

// defaults by Compat. The entry "" is what does best on the built-in benchmark (1416 questions on 120 drawn pictures, HoloV, n = 64,
// percent of the unreduced accuracy): anchors of the released rule over the rest 98.0, Eq. 6 as printed over all 90.2.
var defaults = map[string]switches{
	"":         {"original", "full", "median", "released", "rest", "group", "true"},
	"paper":    {"original", "full", "median", "paper", "all", "group", "true"},
	"released": {"original", "full", "median", "released", "rest", "uniform", "false"},
}

const defaultGamma = 0.5

// values lists what each switch accepts, for checks and for help texts.
var values = map[string][]string{
	"compat":           {"paper", "released"},
	"positions":        {"original", "sequential"},
	"calibrate":        {"full", "size", "distance", "off"},
	"merge-position":   {"median", "median-mean", "mean", "first", "last", "anchor", "axes-median", "axes-mean"},
	"anchors":          {"paper", "released", "uniform"},
	"anchor-pool":      {"all", "rest"},
	"first-layer-size": {"group", "uniform"},
	"decode-distance":  {"true", "false"},
	"holov-overflow":   {"redistribute", "zero"},
	"newlines":         {"drop", "keep", "skip"},

	"proportional-attention": {"true", "false"},
}

// Values returns what the switch of that name accepts, nil for an unknown name.
func Values(name string) []string { return slices.Clone(values[name]) }

// manyTokens is more than any schedule's count.
const manyTokens = 1 << 24

// Check reports what is wrong with o whatever the picture: a budget of all tokens asks nothing of it, and shares of a schedule are not
// compared with counts.
func (o Options) Check() error {
	n := o.NVis
	if n == 0 {
		n = manyTokens
		if o.KeepRatio != 0 {
			o.KeepRatio = 1
		}
	}
	o.anyPicture = true
	_, err := o.Resolve(n)
	return err
}

// Resolve checks o for a picture of n tokens and fills in every default. An error names the option, the value got and the limit;
// nothing is clamped.
func (o Options) Resolve(n int) (Resolved, error) { return o.ResolveViews(n, nil) }

// ResolveViews is Resolve for a picture that was encoded in views of so many tokens each; nil is a picture that was encoded whole. Tokens
// that are in no view are newlines.
func (o Options) ResolveViews(n int, views []int) (Resolved, error) {
	if o.Base == "" {
		o.Base = "none"
	}
	m, err := lookup(o.Base)
	if err != nil {
		return Resolved{}, err
	}
	if n < 1 {
		return Resolved{}, fmt.Errorf("reduce: tokens: got %d, want at least 1", n)
	}
	if err := o.checkValues(); err != nil {
		return Resolved{}, err
	}
	if err := o.checkUse(m); err != nil {
		return Resolved{}, err
	}
	if m.Name == "none" {
		return Resolved{Base: "none", N: n, NVis: n, Keep: n, Gamma: 1, Positions: "original", Calibrate: "off", checked: true}, nil
	}
	budget := 0
	var stages []Stage
	var mean float64
	if m.inside != nil {
		if stages, mean, err = o.stages(m, n); err != nil {
			return Resolved{}, err
		}
		budget = n
		if len(stages) > 0 {
			budget = stages[len(stages)-1].Rows()
		}
	} else if o.ToMeR != "" {
		if budget = n; o.NVis != 0 || o.KeepRatio != 0 {
			return Resolved{}, fmt.Errorf("reduce: tome-r: got %q beside n-vis or keep-ratio, want one of them", o.ToMeR)
		}
		if _, err := parseToMeR(o.ToMeR, o.EncoderDepth); err != nil {
			return Resolved{}, err
		}
	} else if !m.Adaptive || o.Restore || o.NVis != 0 || o.KeepRatio != 0 {
		if budget, err = o.budget(n); err != nil {
			return Resolved{}, err
		}
	}

	d := defaults[o.Compat]
	r := Resolved{
		Base: o.Base, N: n, NVis: budget, Keep: budget, Gamma: 1, Restore: o.Restore, Compat: o.Compat,
		Positions: or(o.Positions, d.positions), Calibrate: "off", NoClass: o.NoClass, Seed: o.Seed, Stages: stages, Mean: mean, checked: true,
	}
	released := o.Compat == "released"
	if m.encoder != nil {
		if err := o.resolveEncoder(m, &r, views); err != nil {
			return Resolved{}, err
		}
		budget = r.NVis
		r.Keep = budget
	}
	if o.Restore {
		r.Gamma = defaultGamma
		if o.gammaGiven() {
			r.Gamma = o.Gamma
		}
		r.Keep = int(r.Gamma * float64(budget))
		r.Merge = budget - r.Keep
		r.Calibrate = or(o.Calibrate, d.calibrate)
		r.MergePosition = or(o.MergePosition, d.mergePosition)
		r.Anchors = or(o.Anchors, d.anchors)
		r.AnchorPool = or(o.AnchorPool, d.anchorPool)
		r.FirstLayerSize = or(o.FirstLayerSize, d.firstLayerSize)
		r.DecodeDistance = or(o.DecodeDistance, d.decodeDistance) == "true"
		r.MirrorLast = released && r.MergePosition == "last"
		r.TruncateDistances = released
	} else if released {
		r.ReleasedOrder = true
		r.Positions = or(o.Positions, "sequential")
		if o.NoClass && m.Site == AfterEncoder { // the authors' codes for such encoders renumber nothing, and VisionZip's keeps raster order
			r.Positions, r.ReleasedOrder = or(o.Positions, "original"), m.Name != "visionzip"
		}
	}
	if m.encoder != nil { // Eqs. 5-8 run over what a block does not keep
		r.ReleasedOrder = r.ReleasedOrder && !m.encoder.raster
		if o.Restore {
			r.AnchorPool = or(o.AnchorPool, "rest")
		}
		if o.Restore && m.encoder.partners {
			r.Gamma, r.Keep, r.Merge, r.Anchors, r.AnchorPool = 0, 0, budget, "", ""
		}
	}
	if m.inside != nil { // rows keep their order, and nothing is reduced yet in layer 0; Eqs. 5-8 run over what a stage does not keep
		r.ReleasedOrder, r.FirstLayerSize = false, ""
		if released && !o.Restore && !m.inside.sequential {
			r.Positions = or(o.Positions, "original")
		}
		if o.Restore {
			r.FirstLayerSize, r.AnchorPool = "group", or(o.AnchorPool, "rest")
		}
	}
	switch m.Name {
	case "holov":
		r.HolovOverflow = or(o.HolovOverflow, "redistribute")
		r.HolovPatches = o.HolovPatches
		if r.HolovPatches == 0 {
			r.HolovPatches = holovRuns(n, budget, o.NoClass)
		}
	case "vispruner":
		r.VisPrunerRatio, r.VisPrunerStep = visPrunerRatio, visPrunerStep
		if o.VisPrunerRatioSet || o.VisPrunerRatio != 0 {
			r.VisPrunerRatio = o.VisPrunerRatio
		}
		if o.VisPrunerStep != 0 {
			r.VisPrunerStep = o.VisPrunerStep
		}
	case "dart":
		if r.DartPivots = o.DartPivots; r.DartPivots == 0 {
			r.DartPivots = dartPivots
		}
	case "pool", "downsample":
		if o.Restore {
			r.Gamma, r.Keep, r.Merge = 0, 0, budget
			r.MergePosition, r.Anchors, r.AnchorPool = "anchor", "cells", "all"
		}
	case "visionzip":
		r.VisionZipContextual = o.VisionZipContextual
		if r.VisionZipContextual == 0 && !o.Restore {
			r.VisionZipContextual = visionZipSplit(budget)
			if o.NoClass {
				r.VisionZipContextual = min(budget, max(1, n/visionZipShare))
			}
		}
	}
	if views != nil {
		r.Newlines = or(o.Newlines, "drop")
		r.splitViews = o.VisionZipContextual == 0
	}
	if m.PerView && r.splitViews && r.VisionZipContextual > 0 && budget < n {
		total := 0
		for _, v := range r.views(m, views) {
			total += v.VisionZipContextual
		}
		r.VisionZipContextual = total
	}
	// A share of 0 asks nothing of the base, and a budget of N nothing of anyone.
	if m.PerView && len(views) > 1 && budget < n {
		if err := r.checkViews(m, views); err != nil {
			return Resolved{}, err
		}
	} else if m.check != nil && r.Keep > 0 && budget < n {
		if err := m.check(&r, r.Keep); err != nil {
			return Resolved{}, err
		}
	}
	return r, nil
}

// resolveEncoder completes r for a method inside the encoder. Without an encoder only what reduces nothing can be resolved.
func (o *Options) resolveEncoder(m *Method, r *Resolved, views []int) error {
	r.EncoderBlocks = o.EncoderBlocks
	r.ProportionalAttention = m.encoder.proportional(o)
	if o.ProportionalAttention != "" {
		r.ProportionalAttention = o.ProportionalAttention == "true"
	}
	if views == nil {
		views = []int{r.N}
	}
	if o.EncoderBlocks == 0 && (o.ToMeR != "" || r.NVis == r.N) {
		return nil
	}
	if o.EncoderBlocks == 0 {
		return fmt.Errorf("reduce: %s: acts inside the encoder, got none, want a model", m.Name)
	}
	return m.encoder.resolve(o, r, views)
}

// InsideEncoder reports whether the method of o acts inside the encoder, where every patch takes part.
func (o *Options) InsideEncoder() bool {
	m, err := lookup(o.Base)
	return err == nil && m.encoder != nil
}

// Inside reports whether the method of o acts inside the decoder, where every row of a picture takes part and NVis is a mean over layers.
func (o *Options) Inside() bool {
	m, err := lookup(o.Base)
	return err == nil && m.inside != nil
}

// PerAxis reports whether merged tokens sit at a median or mean of their own on each axis of positions.
func (o *Options) PerAxis() bool { return strings.HasPrefix(o.MergePosition, "axes-") }

// WantsRecipe reports whether the method needs a recipe for its budget and o holds none.
func (o *Options) WantsRecipe() bool {
	m, err := lookup(o.Base)
	return err == nil && m.inside != nil && m.inside.recipe && o.Schedule == "" && o.FitPruneRecipe == nil
}

func (o *Options) gammaGiven() bool { return o.GammaSet || o.Gamma != 0 }

func (o *Options) budget(n int) (int, error) {
	switch {
	case o.NVis != 0 && o.KeepRatio != 0:
		return 0, fmt.Errorf("reduce: n-vis and keep-ratio: got %d and %v, want one of them", o.NVis, o.KeepRatio)
	case o.KeepRatio != 0:
		if !(o.KeepRatio > 0 && o.KeepRatio <= 1) {
			return 0, fmt.Errorf("reduce: keep-ratio: got %v, want more than 0 and at most 1", o.KeepRatio)
		}
		b := int(math.RoundToEven(o.KeepRatio * float64(n)))
		if b < 1 {
			return 0, fmt.Errorf("reduce: keep-ratio: got %v, which is no token of %d, want at least %.2g", o.KeepRatio, n, 1/float64(n))
		}
		return b, nil
	case o.NVis < 1:
		return 0, fmt.Errorf("reduce: n-vis: got %d, want 1 to %d (the picture's tokens)", o.NVis, n)
	case o.NVis > n && o.UpTo:
		return n, nil
	case o.NVis > n:
		return 0, fmt.Errorf("reduce: n-vis: got %d, want at most %d (the picture's tokens)", o.NVis, n)
	}
	return o.NVis, nil
}

// checkValues looks at each option alone.
func (o *Options) checkValues() error {
	for _, v := range []struct{ name, value string }{
		{"compat", o.Compat}, {"positions", o.Positions}, {"calibrate", o.Calibrate}, {"merge-position", o.MergePosition},
		{"anchors", o.Anchors}, {"anchor-pool", o.AnchorPool}, {"first-layer-size", o.FirstLayerSize},
		{"decode-distance", o.DecodeDistance}, {"holov-overflow", o.HolovOverflow}, {"newlines", o.Newlines},
		{"proportional-attention", o.ProportionalAttention},
	} {
		if v.value != "" && !slices.Contains(values[v.name], v.value) {
			return fmt.Errorf("reduce: %s: got %q, want one of %s", v.name, v.value, strings.Join(values[v.name], ", "))
		}
	}
	if _, err := parseLayers("pdrop-layers", o.PDropLayers, 1); err != nil {
		return err
	}
	if l, err := parseLayers("sparsevlm-layers", o.SparseVLMLayers, 0); err != nil {
		return err
	} else if l != nil && len(l) != len(sparseLayers) {
		return fmt.Errorf("reduce: sparsevlm-layers: got %q, want %d layers", o.SparseVLMLayers, len(sparseLayers))
	}
	if o.gammaGiven() && !(o.Gamma >= 0 && o.Gamma <= 1) {
		return fmt.Errorf("reduce: gamma: got %v, want 0 to 1", o.Gamma)
	}
	if !(o.VisPrunerRatio >= 0 && o.VisPrunerRatio <= 1) {
		return fmt.Errorf("reduce: vispruner-ratio: got %v, want 0 to 1", o.VisPrunerRatio)
	}
	for _, v := range []struct {
		name  string
		value int
	}{{"holov-patches", o.HolovPatches}, {"vispruner-step", o.VisPrunerStep}, {"visionzip-contextual", o.VisionZipContextual}, {"dart-pivots", o.DartPivots},
		{"fastv-layer", o.FastVLayer}} {
		if v.value < 0 {
			return fmt.Errorf("reduce: %s: got %d, want at least 1", v.name, v.value)
		}
	}
	return nil
}

// checkUse refuses options that were given and would change nothing.
func (o *Options) checkUse(m *Method) error {
	type given struct {
		name  string
		value any
		set   bool
	}
	budget := []given{{"n-vis", o.NVis, o.NVis != 0}, {"keep-ratio", o.KeepRatio, o.KeepRatio != 0}}
	general := []given{{"compat", o.Compat, o.Compat != ""}, {"positions", o.Positions, o.Positions != ""}, {"newlines", o.Newlines, o.Newlines != ""}}
	calibrate := given{"calibrate", o.Calibrate, o.Calibrate != ""}
	gamma := given{"gamma", o.Gamma, o.gammaGiven()}
	merging := []given{
		{"merge-position", o.MergePosition, o.MergePosition != ""}, {"anchors", o.Anchors, o.Anchors != ""},
		{"anchor-pool", o.AnchorPool, o.AnchorPool != ""},
	}
	sizes := given{"first-layer-size", o.FirstLayerSize, o.FirstLayerSize != ""}
	distance := given{"decode-distance", o.DecodeDistance, o.DecodeDistance != ""}
	first := func(why string, gs ...given) error {
		for _, g := range gs {
			if g.set {
				return fmt.Errorf("reduce: %s: got %v, which has no effect %s", g.name, g.value, why)
			}
		}
		return nil
	}
	all := func(parts ...[]given) []given { return slices.Concat(parts...) }

	for _, p := range []struct {
		method string
		given
	}{
		{"holov", given{"holov-overflow", o.HolovOverflow, o.HolovOverflow != ""}},
		{"holov", given{"holov-patches", o.HolovPatches, o.HolovPatches != 0}},
		{"vispruner", given{"vispruner-ratio", o.VisPrunerRatio, o.VisPrunerRatioSet || o.VisPrunerRatio != 0}},
		{"vispruner", given{"vispruner-step", o.VisPrunerStep, o.VisPrunerStep != 0}},
		{"visionzip", given{"visionzip-contextual", o.VisionZipContextual, o.VisionZipContextual != 0}},
		{"dart", given{"dart-pivots", o.DartPivots, o.DartPivots != 0}},
		{"tome", given{"tome-r", o.ToMeR, o.ToMeR != ""}},
		{"fastv", given{"fastv-layer", o.FastVLayer, o.FastVLayer != 0}},
		{"pdrop", given{"pdrop-layers", o.PDropLayers, o.PDropLayers != ""}},
		{"sparsevlm", given{"sparsevlm-layers", o.SparseVLMLayers, o.SparseVLMLayers != ""}},
		{"fitprune", given{"fitprune-recipe", "a recipe", o.FitPruneRecipe != nil}},
	} {
		if p.method != m.Name {
			if err := first("with base "+m.Name+" (it belongs to "+p.method+")", p.given); err != nil {
				return err
			}
		}
	}
	proportional := given{"proportional-attention", o.ProportionalAttention, o.ProportionalAttention != ""}
	switch {
	case m.encoder == nil:
		if err := first("with base "+m.Name+" (it belongs to methods inside the encoder)", proportional); err != nil {
			return err
		}
	case o.Newlines == "keep" || o.Newlines == "skip":
		return fmt.Errorf("reduce: newlines: got %s, which %s cannot honour: inside the encoder there are none", o.Newlines, m.Name)
	case !m.encoder.partners && !o.Restore:
		if err := first("with restore=false (nothing is merged)", proportional); err != nil {
			return err
		}
	case m.encoder.partners && o.Restore:
		if err := first("with base "+m.Name+" (which makes every row itself: RESTORE only calibrates)", gamma, merging[1], merging[2]); err != nil {
			return err
		}
	}
	schedule := given{"schedule", o.Schedule, o.Schedule != ""}
	if m.inside == nil {
		if err := first("with base "+m.Name+" (it belongs to methods inside the decoder)", schedule); err != nil {
			return err
		}
	} else {
		if err := first("inside the decoder (layer 0 sees every token)", sizes); err != nil {
			return err
		}
		if o.Newlines == "drop" || o.Newlines == "skip" {
			return fmt.Errorf("reduce: newlines: got %s, which %s cannot honour: inside the decoder newlines are rows like the others", o.Newlines, m.Name)
		}
	}
	if schedule.set {
		if err := first("beside a schedule", given{"fastv-layer", o.FastVLayer, o.FastVLayer != 0}, given{"pdrop-layers", o.PDropLayers, o.PDropLayers != ""},
			given{"sparsevlm-layers", o.SparseVLMLayers, o.SparseVLMLayers != ""}, given{"fitprune-recipe", "a recipe", o.FitPruneRecipe != nil}); err != nil {
			return err
		}
	}
	switch {
	case m.Name == "none":
		return first("without a base", all(budget, []given{gamma}, general, []given{calibrate}, merging, []given{sizes, distance})...)
	case !o.Restore:
		if o.Calibrate == "off" { // says what is done anyway
			calibrate.set = false
		}
		return first("with restore=false", all([]given{gamma, calibrate}, merging, []given{sizes, distance})...)
	}
	if m.whole {
		if err := first("with base "+m.Name+" (which makes every row itself: RESTORE only calibrates)", all([]given{gamma}, merging)...); err != nil {
			return err
		}
	}
	keepAll := o.gammaGiven() && o.Gamma == 1
	if keepAll {
		if err := first("with gamma 1 (nothing is merged)", merging...); err != nil {
			return err
		}
	}
	if m.Name == "visionzip" && o.VisionZipContextual != 0 {
		return first("with restore on (anchors take the place of contextual tokens)", given{"visionzip-contextual", o.VisionZipContextual, true})
	}
	if o.Gamma == 0 && o.GammaSet {
		if err := first("with gamma 0 (the base keeps nothing)",
			given{"holov-overflow", o.HolovOverflow, o.HolovOverflow != ""},
			given{"holov-patches", o.HolovPatches, o.HolovPatches != 0},
			given{"vispruner-ratio", o.VisPrunerRatio, o.VisPrunerRatioSet || o.VisPrunerRatio != 0},
			given{"vispruner-step", o.VisPrunerStep, o.VisPrunerStep != 0},
			given{"dart-pivots", o.DartPivots, o.DartPivots != 0}); err != nil {
			return err
		}
	}
	d := defaults[o.Compat]
	if or(o.Anchors, d.anchors) == "uniform" {
		if err := first("with anchors uniform", merging[2]); err != nil {
			return err
		}
	}
	switch c := or(o.Calibrate, d.calibrate); c {
	case "off":
		return first("with calibrate off", sizes, distance)
	case "size":
		return first("with calibrate size", distance)
	case "distance":
		return first("with calibrate distance", sizes)
	}
	return nil
}

// or returns the first string that is not empty.
func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
