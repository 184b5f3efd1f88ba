package methods

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/reduce"
)

// Facts are the facts about the model and the picture that a plan needs.
type Facts struct {
	Tokens       int   // number of the picture's tokens
	Views        []int // tokens of each view; nil: the picture was encoded whole
	GridH, GridW int   // rows and columns of tokens; 0: not known, or several grids
	NoClass      bool  // the encoder has no class token
	Newlines     bool  // the model's pictures have newline tokens
	Texts        bool  // there are texts between the picture's tokens, which stay
	// tokens that a method before the encoder left out, which are not among Tokens; nil: none
	Pruned *reduce.Pruned

	Axes bool // positions have rows and columns

	Layers        int // layers of the decoder; 0: not known
	EncoderBlocks int // up to the block whose output is the features; 0: no encoder
	EncoderDepth  int // all blocks of the encoder; 0: not known
	// EncoderFull are the encoder's blocks that see the whole picture, ascending; nil: all.
	EncoderFull []int

	// Recipe returns the model's FitPrune recipe, nil if it has none. It is called only if a plan
	// needs it; a nil function means no recipe.
	Recipe func() (*Recipe, error)

	// Budgets returns the model's thresholds for budgets by content, nil if it has none, and Gains
	// the first gains of the picture. They are called only if a plan needs them.
	Budgets func() (*Budgets, error)
	Gains   func(most int) ([]float64, error)

	any bool // the picture is not known: refuse only settings that no picture allows
}

// Plan is a complete, checked reduction of one picture, made by Resolve from Options. It never
// changes, so requests can share it.
type Plan struct {
	reduce.Resolved

	method  *method
	facts   Facts
	own     own           // the method's parameters, nil if it has none
	inViews bool          // this is the plan of one view of several
	inside  *insideMethod // what acts inside the decoder; nil: nothing
	first   *Plan         // what leaves out tokens before inside; nil: nothing
	before  *Before       // what happens before the encoder; nil: nothing
}

// own are a method's parameters: a struct whose Declare declares its fields.
type own interface {
	Declare(d *reduce.Declaration)
}

// completer is an own that sets defaults that depend on the plan, and refuses values that would
// have no effect in it. d tells which values were given.
type completer interface {
	complete(p *Plan, d *reduce.Declaration) error
}

// manyTokens exceeds any schedule's count.
const manyTokens = 1 << 24

// Check reports errors in o that do not depend on the model and the picture. It accepts
// any budget, because it might be all tokens, and does not compare a schedule's shares with counts.
func Check(o Options) error {
	for _, name := range o.Defaults {
		of := func(p reduce.Parameter) bool { return p.Name == name }
		if !slices.ContainsFunc(parameters(), of) {
			return refused("defaults", errs.Unknown, strconv.Quote(name), "names of parameters", "")
		}
	}
	n := max(o.NVis, o.AutoMean)
	if n <= 0 {
		n = manyTokens
		if o.KeepRatio > 0 && o.KeepRatio <= 1 {
			o.KeepRatio = 1
		}
	}
	_, err := Resolve(o, Facts{Tokens: n, any: true})
	return err
}

// Resolve checks o for a picture and sets every default. Nothing is clamped: a value that cannot be
// honoured is an [errs.OptionError].
func Resolve(o Options, f Facts) (*Plan, error) {
	m, err := lookup(o.Base)
	if err != nil {
		return nil, err
	}
	if f.Tokens < 1 {
		return nil, fmt.Errorf("methods: tokens: got %d, want at least 1", f.Tokens)
	}
	o.dropDefaults(&f)
	p := &Plan{method: m, facts: f, inside: m.inside}
	if p.before, err = NewBefore(&o); err != nil {
		return nil, err
	}
	d, err := p.declare(&o)
	if err != nil {
		return nil, err
	}
	if err := p.checkUse(&o, d); err != nil {
		return nil, err
	}
	n := f.Tokens
	p.Resolved = reduce.Resolved{
		Base: m.Name, N: n, NVis: n, Keep: n, Gamma: 1, Restore: o.Restore, Compat: o.Compat,
		Positions: or(o.Positions, defaults[o.Compat].positions), Calibrate: "off",
	}
	if m == noneMethod {
		p.Restore = false
		return p, nil
	}
	p.NoClass = f.NoClass
	if o.Seed != nil {
		p.Seed = *o.Seed
	}
	if m.before != nil {
		return p, p.encodedOnly(&o, d)
	}
	if err := p.precede(&o); err != nil {
		return nil, err
	}
	if err := p.content(&o); err != nil {
		return nil, err
	}
	if err := p.spend(&o, d); err != nil {
		return nil, err
	}
	p.choose(&o)
	if f.Views != nil && !f.Texts {
		p.Newlines = or(o.Newlines, "drop")
	}
	if err := p.complete(&o, d); err != nil {
		return nil, err
	}
	return p, p.check()
}

// dropDefaults unsets the defaults to which the model gives no effect.
func (o *Options) dropDefaults(f *Facts) {
	if f.any {
		return
	}
	if !f.Newlines && slices.Contains(o.Defaults, "newlines") {
		o.Newlines = ""
	}
	if !f.Axes && o.PerAxis() && slices.Contains(o.Defaults, "merge-position") {
		o.MergePosition = ""
	}
}

// declare checks the given values, each by itself, and returns the method's own parameters with
// their values set.
func (p *Plan) declare(o *Options) (*reduce.Declaration, error) {
	all := shared()
	for _, v := range o.given() {
		i := slices.IndexFunc(all, func(a reduce.Parameter) bool { return a.Name == v.Name })
		if v.Name == "base" {
			continue // checked by Lookup
		}
		if _, err := all[i].Parse(v.Value); err != nil {
			return nil, err
		}
	}
	d := new(reduce.Declaration)
	if p.method.parameters != nil {
		p.own = p.method.parameters()
		p.own.Declare(d)
	}
	mine := parameterNames(d.Parameters())
	for _, name := range slices.Sorted(maps.Keys(o.Own)) {
		if p.method.before == nil && p.before.has(name) {
			continue // set by NewBefore
		}
		if slices.Contains(mine, name) {
			if err := d.Set(name, o.Own[name]); err != nil {
				return nil, err
			}
			continue
		}
		known := parameters()
		i := slices.IndexFunc(known, func(a reduce.Parameter) bool { return a.Name == name })
		if i < 0 {
			return nil, unknown(name, fmt.Sprint(o.Own[name]), parameterNames(known))
		}
		if _, err := known[i].Parse(o.Own[name]); err != nil {
			return nil, err
		}
		return nil, useless(name, shown(o.Own[name]), belongs(p.method, &known[i]))
	}
	return d, nil
}

// belongs explains why a parameter of other methods has no effect.
func belongs(m *method, p *reduce.Parameter) string {
	list := p.Methods[0]
	for i, name := range p.Methods[1:] {
		if list += ", " + name; i == len(p.Methods)-2 {
			list = fmt.Sprint(list[:len(list)-len(name)-2], " and ", name)
		}
	}
	return fmt.Sprintf("with base %s (it belongs to %s)", m.Name, list)
}

// shown formats a value for an error.
func shown(v any) string {
	if _, ok := v.([]byte); ok {
		return "a file"
	}
	return fmt.Sprint(v)
}

// checkUse refuses given values that would change nothing.
func (p *Plan) checkUse(o *Options, d *reduce.Declaration) error {
	m, values := p.method, o.given()
	first := func(why string, names ...string) error {
		for _, v := range values {
			if slices.Contains(names, v.Name) {
				return useless(v.Name, fmt.Sprint(v.Value), why)
			}
		}
		return nil
	}
	own := func(why string) error {
		for _, q := range d.Parameters() {
			if d.Given(q.Name) {
				return useless(q.Name, shown(o.Own[q.Name]), why)
			}
		}
		return nil
	}
	if o.Budgets != nil && o.AutoMean == 0 && !o.Guard {
		return useless("budget-file", "a file", "without a budget by content, or a guard")
	}
	if err := p.checkBefore(o); err != nil {
		return err
	}
	if m == noneMethod {
		for _, v := range values {
			if v.Name != "base" {
				return useless(v.Name, fmt.Sprint(v.Value), "without a base")
			}
		}
		return nil
	}
	if !m.Draws {
		if err := first("with base "+m.Name+" (which draws nothing)", "seed"); err != nil {
			return err
		}
	}
	if m.before != nil {
		if err := first("with base "+m.Name+" (the picture sets the number of its tokens)", "n-vis",
			"keep-ratio"); err != nil {
			return err
		}
	}
	if err := p.checkSite(o, first, own); err != nil {
		return err
	}
	if !o.Restore && o.Calibrate == "off" { // it is off anyway
		values = slices.DeleteFunc(values, func(v reduce.Value) bool {
			return v.Name == "calibrate"
		})
	}
	for _, r := range p.withoutEffect(o) {
		if err := first(r.why, r.names...); err != nil {
			return err
		}
	}
	return nil
}

// idle are options that change nothing, and why.
type idle struct {
	why   string
	names []string
}

// withoutEffect lists the options of RESTORE that change nothing with the others.
func (p *Plan) withoutEffect(o *Options) (all []idle) {
	add := func(why string, names ...string) { all = append(all, idle{why, names}) }
	if !o.Restore {
		add("with restore=false", "gamma", "calibrate", "merge-position", "anchors", "anchor-pool",
			"join", "first-layer-size", "decode-distance", "guard")
		return all
	}
	if p.method.before != nil {
		add("with base "+p.method.Name+
			" (which keeps every token that is encoded: RESTORE only calibrates)", "gamma",
			"merge-position", "anchors", "anchor-pool", "join", "guard")
		return append(all, uncalibrated(o)...)
	}
	if p.method.whole {
		add("with base "+p.method.Name+" (which makes every row itself: RESTORE only calibrates)",
			"gamma", "anchors", "anchor-pool", "join", "merge-position")
	}
	switch o.gamma() {
	case 0:
		add("with gamma 0 (no token is kept)", "join", "anchor-pool")
	case 1:
		names := []string{"anchors", "anchor-pool"}
		if o.Join != "all" && o.Join != "count" {
			names = append(names, "join")
		}
		if o.Join != "all" {
			names = append(names, "merge-position")
		}
		add("with gamma 1 (there are no anchors)", names...)
	}
	set := defaults[o.Compat]
	if rule := or(o.Anchors, set.anchors); rule == "uniform" || rule == "covered" {
		add("with anchors "+rule, "anchor-pool")
	}
	return append(all, uncalibrated(o)...)
}

// uncalibrated lists the options that change nothing without a term of the calibration.
func uncalibrated(o *Options) []idle {
	switch or(o.Calibrate, defaults[o.Compat].calibrate) {
	case "off":
		return []idle{{"with calibrate off", []string{"first-layer-size", "decode-distance"}}}
	case "size":
		return []idle{{"with calibrate size", []string{"decode-distance"}}}
	case "distance":
		return []idle{{"with calibrate distance", []string{"first-layer-size"}}}
	}
	return nil
}

// checkSite refuses values that are meaningless at the method's site, or with this model.
func (p *Plan) checkSite(o *Options, first func(why string, names ...string) error,
	own func(why string) error) error {
	m, f := p.method, &p.facts
	if !f.any && !f.Newlines {
		if err := first(
			"with this model (its pictures have no newline tokens)", "newlines"); err != nil {
			return err
		}
	}
	if !f.any && !f.Axes && o.PerAxis() {
		return refused("merge-position", errs.Useless, o.MergePosition, "",
			"with this model (its positions have one axis)")
	}
	cannot := func(why string) error {
		return refused("newlines", errs.Conflict, o.Newlines, "no say about newlines",
			m.Name+" acts "+why)
	}
	switch {
	case m.encoder != nil && (o.Newlines == "keep" || o.Newlines == "skip"):
		return cannot("inside the encoder, where there are none")
	case m.encoder != nil && m.encoder.partners && o.Restore:
		return first("with base "+m.Name+" (which makes every row itself: RESTORE only calibrates)",
			"gamma", "anchors", "anchor-pool", "join")
	case m.inside == nil:
		return first("with base "+m.Name+" (it belongs to methods inside the decoder)", "schedule")
	case o.Newlines == "drop" || o.Newlines == "skip":
		return cannot("inside the decoder, where newlines are rows like the others")
	case o.Schedule != "":
		if err := own("with a schedule"); err != nil {
			return err
		}
	}
	if o.Anchors == "covered" || o.Join == "all" || o.Join == "count" {
		name, got := "join", o.Join
		if o.Anchors == "covered" {
			name, got = "anchors", o.Anchors
		}
		return refused(name, errs.Conflict, got, "another one",
			m.Name+" acts inside the decoder, where rows that are kept stay as they are")
	}
	return first("inside the decoder (layer 0 sees every token)", "first-layer-size")
}

// ownBudget returns the name of the method's own parameter that was given as the budget, or "".
func ownBudget(d *reduce.Declaration) string {
	for _, q := range d.Parameters() {
		if q.Budget && d.Given(q.Name) {
			return q.Name
		}
	}
	return ""
}

// spend converts the budget to numbers of rows.
func (p *Plan) spend(o *Options, d *reduce.Declaration) (err error) {
	m, n := p.method, p.N
	own := ownBudget(d)
	switch {
	case own != "" && (o.NVis != 0 || o.KeepRatio != 0 || o.AutoMean != 0):
		return conflict(own, shown(o.Own[own]), o)
	case own != "":
	case m.inside != nil:
		if p.Stages, p.Mean, err = p.stages(o); err != nil {
			return err
		}
		if len(p.Stages) > 0 {
			p.NVis = p.Stages[len(p.Stages)-1].Rows()
		}
	case m.Adaptive && !o.Restore && o.NVis == 0 && o.KeepRatio == 0:
		p.NVis = 0
	default:
		if p.NVis, err = p.budget(o); err != nil {
			return err
		}
	}
	if m.encoder != nil {
		p.EncoderBlocks = p.facts.EncoderBlocks
		if err := p.resolveEncoder(own != ""); err != nil {
			return err
		}
	}
	if m.budgets != nil && p.NVis < n && !p.facts.any {
		if err := m.budgets(p); err != nil {
			return err
		}
	}
	p.Keep = p.NVis
	if o.Restore {
		p.Gamma = o.gamma()
		p.Keep = int(p.Gamma * float64(p.NVis))
		p.Merge = p.NVis - p.Keep
	}
	return nil
}

// conflict is the error that two budgets are given.
func conflict(name, got string, o *Options) error {
	other := fmt.Sprintf("n-vis %v", o.getNVis())
	switch {
	case o.KeepRatio != 0:
		other = fmt.Sprintf("keep-ratio %v", o.KeepRatio)
	case o.Guard && o.NVis == 0 && o.AutoMean == 0:
		other = "guard, which needs a budget,"
	}
	return refused(name, errs.Conflict, got, "one budget", other+" is given too")
}

// budget returns the number of tokens for n-vis or keep-ratio. Both count the picture's tokens, but
// no more are left than were encoded.
func (p *Plan) budget(o *Options) (int, error) {
	n, err := o.budget(p.facts.tokens())
	return min(n, p.N), err
}

// budget returns the number of tokens for n-vis or keep-ratio, of n tokens.
func (o *Options) budget(n int) (int, error) {
	const tokens = "the picture's tokens"
	switch {
	case o.NVis != 0 && o.KeepRatio != 0:
		return 0, refused("n-vis", errs.Conflict, fmt.Sprint(o.NVis), "one budget",
			fmt.Sprintf("keep-ratio %v is given too", o.KeepRatio))
	case o.KeepRatio != 0:
		b := int(math.RoundToEven(o.KeepRatio * float64(n)))
		if b < 1 {
			// The smallest share that rounds to a token is above half of one.
			return 0, refused("keep-ratio", errs.TooSmall, formatFloat(o.KeepRatio),
				fmt.Sprintf("more than %.4g", 0.5/float64(n)),
				fmt.Sprintf("that is no token of %d", n))
		}
		return b, nil
	case o.NVis == 0:
		return 0, refused("n-vis", errs.Missing, "", "a budget of tokens for "+o.Base, "")
	case o.NVis > n && o.UpTo:
		return n, nil
	case o.NVis > n:
		return 0, refused("n-vis", errs.TooLarge, fmt.Sprint(o.NVis),
			fmt.Sprintf("at most %d", n), tokens)
	}
	return o.NVis, nil
}

// choose sets the switches that differ between the paper and the released code, and those that have
// only one value at the method's site.
func (p *Plan) choose(o *Options) {
	m, d, released := p.method, defaults[o.Compat], o.Compat == "released"
	if o.Restore {
		p.Calibrate = or(o.Calibrate, d.calibrate)
		p.MergePosition = or(o.MergePosition, d.mergePosition)
		p.anchorRules(o)
		p.FirstLayerSize = or(o.FirstLayerSize, d.firstLayerSize)
		p.DecodeDistance = d.decodeDistance
		if o.DecodeDistance != nil {
			p.DecodeDistance = *o.DecodeDistance
		}
		p.MirrorLast = released && p.MergePosition == "last"
		p.TruncateDistances = released
	} else if released {
		p.ReleasedOrder = !m.raster && !(p.NoClass && m.classlessRaster)
		positions := "sequential"
		if m.places || p.NoClass && m.Site == reduce.AfterEncoder {
			// The authors' codes for encoders without a class token keep original positions.
			positions = "original"
		}
		p.Positions = or(o.Positions, positions)
	}
	if m.encoder != nil { // Eqs. 5-8 use the rows that a block does not keep
		p.ReleasedOrder = p.ReleasedOrder && !m.encoder.raster
		if o.Restore && p.Anchors != "covered" {
			p.AnchorPool = or(o.AnchorPool, "rest")
		}
		if o.Restore && m.encoder.partners {
			p.Gamma, p.Keep, p.Merge, p.Anchors, p.AnchorPool, p.Join = 0, 0, p.NVis, "", "", ""
		}
	}
	if m.inside != nil {
		// Rows keep their order, and layer 0 sees all of them. Eqs. 5-8 use the rows that a stage
		// does not keep.
		p.ReleasedOrder, p.FirstLayerSize = false, ""
		if released && !o.Restore && !m.inside.sequential {
			p.Positions = or(o.Positions, "original")
		}
		if o.Restore {
			p.FirstLayerSize, p.AnchorPool = "group", or(o.AnchorPool, "rest")
		}
	}
	if m.whole && o.Restore {
		p.Gamma, p.Keep, p.Merge = 0, 0, p.NVis
		p.MergePosition, p.Anchors, p.AnchorPool, p.Join = "anchor", "cells", "all", ""
	}
}

// anchorRules sets how anchors are chosen and which rows tokens may join. Without anchors tokens
// may only join kept tokens.
//
// Covered anchors are better below a ninth of the tokens, and only if kept tokens may be joined;
// above there is no difference beyond doubt.
func (p *Plan) anchorRules(o *Options) {
	d := defaults[o.Compat]
	p.Anchors, p.AnchorPool = or(o.Anchors, d.anchors), or(o.AnchorPool, d.anchorPool)
	if p.Anchors == "auto" {
		few := p.NVis > 0 && 9*p.NVis < p.N && p.method.inside == nil && !p.facts.any
		if p.Anchors = "released"; few && o.AnchorPool == "" {
			p.Anchors = "covered"
		}
	}
	if p.Join = or(o.Join, d.join); p.Join == "auto" {
		if p.Join = "rest"; p.Anchors == "covered" && p.Merge > 0 {
			p.Join = "all"
		}
	}
	if p.Anchors == "covered" {
		p.AnchorPool = ""
	}
}

// complete sets the method's own parameters.
func (p *Plan) complete(o *Options, d *reduce.Declaration) error {
	if p.method.pick != nil && p.Restore && p.Keep == 0 {
		why := fmt.Sprintf("with gamma %v of a budget of %d (the base keeps nothing)", p.Gamma,
			p.NVis)
		for _, q := range d.Parameters() {
			if d.Given(q.Name) {
				return useless(q.Name, shown(valueOf(d, q.Name)), why)
			}
		}
		if o.Seed != nil {
			return useless("seed", fmt.Sprint(*o.Seed), why)
		}
	}
	if p.own == nil {
		return nil
	}
	if c, ok := p.own.(completer); ok {
		if err := c.complete(p, d); err != nil {
			return err
		}
	}
	p.Own = notZero(d.Values())
	return nil
}

// notZero leaves out defaults that are the zero value.
func notZero(values []reduce.Value) []reduce.Value {
	return slices.DeleteFunc(values, func(v reduce.Value) bool {
		return v.Default && isZero(v.Value)
	})
}

// valueOf returns the value of the parameter of that name.
func valueOf(d *reduce.Declaration, name string) any {
	for _, v := range d.Values() {
		if v.Name == name {
			return v.Value
		}
	}
	return nil
}

// isZero reports whether a parameter's value is the zero value.
func isZero(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case int:
		return v == 0
	case float64:
		return v == 0
	case bool:
		return !v
	case string:
		return v == ""
	case []int:
		return len(v) == 0
	}
	return false
}

// check asks the criterion whether it can keep its share. A share of 0, and a budget of N, are
// always possible.
func (p *Plan) check() error {
	views := p.facts.Views
	if p.NVis == p.N {
		return nil
	}
	if p.method.PerView && len(views) > 1 {
		if err := p.checkViews(views); err != nil {
			return err
		}
	}
	return p.checkShares(views)
}
