package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/reduce"
	"github.com/spf13/pflag"
)

// reductionFlags are the flags that say how visual tokens are reduced, shared by run, trace, reduce and eval.
type reductionFlags struct {
	fs      *pflag.FlagSet
	o       reduce.Options
	restore bool
	recipe  string
}

// add declares the flags. base and nVis are the defaults of the command, "" and 0 when reduction has to be asked for.
func (r *reductionFlags) add(fs *pflag.FlagSet, base string, nVis int) {
	r.fs = fs
	o := &r.o
	fs.StringVar(&o.Base, "base", base, "how the kept tokens are selected, see 'restore methods'")
	fs.Lookup("base").Annotations = map[string][]string{choices: {strings.Join(methodNames(), "|")}}
	fs.IntVar(&o.NVis, "n-vis", nVis, "keep `N` visual tokens of each picture; 0 with --restore=false: as many as the method finds (prumerge, prumerge-plus)")
	fs.Float64Var(&o.KeepRatio, "keep-ratio", 0, "keep this `share` of each picture's visual tokens, instead of --n-vis")
	fs.StringVar(&o.Schedule, "schedule", "", "stages inside the decoder as `LAYER:SHARE` or LAYER:COUNT, separated by commas, instead of --n-vis, which there is\n        the mean over layers: 192 of 576 tokens in 32 layers is 2:166 with fastv, 8:144,16:36,24:9 with pdrop")
	fs.BoolVar(&r.restore, "restore", true, "merge and calibrate (RESTORE) over the base; --restore=false is the plain base")
	fs.Float64Var(&o.Gamma, "gamma", 0.5, "`share` of the budget that the base keeps, the rest is merged; 1 is calibrated pruning")
	r.choice(&o.Compat, "compat", "none", "set all switches below as the paper or the released code does")
	r.choice(&o.Positions, "positions", "original", "where tokens sit")
	r.choice(&o.Calibrate, "calibrate", "full", "calibration of the decoder's attention")
	r.choice(&o.MergePosition, "merge-position", "median", "position of a merged token among its members' in reading order; axes-: each of row and column alone (M-RoPE)")
	r.choice(&o.Anchors, "anchors", "released", "choice of anchors; on the embedded model's benchmark HoloV with 64 tokens keeps 98.0 of 100\n        with released, 90.2 with paper (and pool all), 89.7 with uniform")
	r.choice(&o.AnchorPool, "anchor-pool", "rest", "density is taken over all tokens or over those not kept")
	r.choice(&o.FirstLayerSize, "first-layer-size", "group", "sizes that layer 0 sees: each group's, or N/n for all")
	r.choice(&o.DecodeDistance, "decode-distance", "true", "calibrate by distance while decoding too")
	fs.Lookup("decode-distance").NoOptDefVal = "true"
	r.choice(&o.HolovOverflow, "holov-overflow", "redistribute", "what HoloV does when a run is asked for more tokens than it has")
	r.choice(&o.Newlines, "newlines", "drop", "newline tokens of any-resolution pictures: left out of the list (drop), left out but counted in\n        positions (skip), or tokens like others (keep)")
	fs.IntVar(&o.HolovPatches, "holov-patches", 0, "split the tokens into `N` runs (HoloV)")
	fs.Float64Var(&o.VisPrunerRatio, "vispruner-ratio", 0, "`share` of the kept tokens that attention chooses (VisPruner)")
	fs.IntVar(&o.VisPrunerStep, "vispruner-step", 0, "drop `N` tokens a pass (VisPruner)")
	fs.IntVar(&o.VisionZipContextual, "visionzip-contextual", 0, "`N` merged tokens (VisionZip without RESTORE)")
	fs.IntVar(&o.FastVLayer, "fastv-layer", 0, "first layer `K` that sees fewer tokens (FastV)")
	fs.StringVar(&o.PDropLayers, "pdrop-layers", "", "the stages' `layers`, separated by commas (PyramidDrop)")
	fs.StringVar(&o.SparseVLMLayers, "sparsevlm-layers", "", "the three stages' `layers`, separated by commas (SparseVLM)")
	fs.StringVar(&r.recipe, "fitprune-recipe", "", "`file` with the tokens that each layer drops, made by restore fitprune-recipe (FitPrune)")
	fs.StringVar(&o.ToMeR, "tome-r", "", "merges a block of the encoder, instead of --n-vis: `R` in all, R,R,… or R:I with I from -1, falling to 0, to 1 (ToMe)")
	r.choice(&o.ProportionalAttention, "proportional-attention", "true, false with flowcut and compat", "the encoder's attention counts a row as the patches it stands for (ToMe; FlowCut with RESTORE)")
	fs.IntVar(&o.DartPivots, "dart-pivots", 0, "compare the tokens with `N` of them (DART)")
	for name, def := range map[string]string{"keep-ratio": "none", "holov-patches": "16", "vispruner-ratio": "0.5", "vispruner-step": "8",
		"visionzip-contextual": "n*10/64", "dart-pivots": "8", "schedule": "none", "fastv-layer": "2 of 32", "pdrop-layers": "8,16,24 of 32",
		"sparsevlm-layers": "2,6,15 of 32", "fitprune-recipe": "fitprune.json in the model's folder", "tome-r": "solved for --n-vis"} {
		fs.Lookup(name).Annotations = map[string][]string{applies: {def}}
	}
	if nVis == 0 {
		fs.Lookup("n-vis").Annotations = map[string][]string{applies: {"none"}}
	}
}

// methodNames are what --base takes.
func methodNames() (names []string) {
	for _, m := range reduce.Methods() {
		names = append(names, m.Name)
	}
	return names
}

// adaptive says whether the base can do without a budget when it runs alone.
func adaptive(base string) bool {
	for _, m := range reduce.Methods() {
		if m.Name == base {
			return m.Adaptive
		}
	}
	return false
}

// choice declares a switch whose empty value means "not given"; def is what then applies.
func (r *reductionFlags) choice(p *string, name, def, usage string) {
	r.fs.StringVar(p, name, "", usage)
	r.fs.Lookup(name).Annotations = map[string][]string{applies: {def}, choices: {strings.Join(reduce.Values(name), "|")}}
}

// options returns what was asked for. Only switches that were given are set, so that reduce can tell a useless switch from a default.
// A budget typed on the command line wins over the other budget in the environment.
func (r *reductionFlags) options(seed int64) (reduce.Options, error) {
	o := r.o
	o.Seed = seed
	nVis, ratio := r.fs.Lookup("n-vis"), r.fs.Lookup("keep-ratio")
	o.GammaSet = r.fs.Changed("gamma")
	if !o.GammaSet {
		o.Gamma = 0
	}
	o.VisPrunerRatioSet = r.fs.Changed("vispruner-ratio")
	own := !r.restore && adaptive(o.Base) // finds the number of tokens itself
	useN, useRatio := nVis.Changed, ratio.Changed
	o.UpTo = !useN
	if useN && useRatio && onCommandLine(nVis) != onCommandLine(ratio) {
		useN, useRatio = onCommandLine(nVis), onCommandLine(ratio)
	}
	if (o.Schedule != "" && o.Inside() || o.ToMeR != "" && o.InsideEncoder()) && !useN {
		o.NVis = 0
	}
	switch {
	case useN && useRatio:
		return o, usagef("--n-vis and --keep-ratio: both given, got %d and %v, want one of them", o.NVis, o.KeepRatio)
	case useN && o.NVis < 1 && !(o.NVis == 0 && own):
		return o, usagef("--n-vis: out of range, got %d, want at least 1", o.NVis)
	case useRatio && !(o.KeepRatio > 0 && o.KeepRatio <= 1):
		return o, usagef("--keep-ratio: out of range, got %v, want a number above 0 and at most 1", o.KeepRatio)
	case useRatio:
		o.NVis = 0
	case useN:
		o.KeepRatio = 0
	}
	for _, name := range []string{"holov-patches", "vispruner-step", "visionzip-contextual", "dart-pivots", "fastv-layer"} {
		if f := r.fs.Lookup(name); f.Changed && f.Value.String() == "0" { // which would be the default
			return o, usagef("--%s: out of range, got 0, want at least 1", name)
		}
	}
	if o.Base == "none" || o.Base == "" {
		if name := r.given(); name != "" {
			return o, usagef("--%s: has no use without a reduction, got %s, want --base METHOD beside it", name, r.fs.Lookup(name).Value)
		}
		return reduce.Options{Base: "none", Seed: seed}, nil
	}
	if o.NVis == 0 && o.KeepRatio == 0 && o.Schedule == "" && o.ToMeR == "" && !own {
		return o, usagef("--base %s: no budget, want --n-vis N or --keep-ratio R", o.Base)
	}
	o.Restore = r.restore
	if r.recipe != "" {
		var err error
		if o.FitPruneRecipe, err = readRecipe(r.recipe); err != nil {
			return o, err
		}
	}
	if err := o.Check(); err != nil {
		return o, &usageError{err}
	}
	return o, nil
}

// checkSeed refuses a seed that was typed where nothing is drawn.
func (r *reductionFlags) checkSeed() error {
	if f := r.fs.Lookup("seed"); onCommandLine(f) && r.o.Base != "random" {
		return usagef("--seed: has no use without --base random, got %s", f.Value)
	}
	return nil
}

func readRecipe(path string) (*reduce.Recipe, error) {
	data, err := readFile(path, maxTextBytes)
	if err != nil {
		return nil, err
	}
	recipe, err := reduce.ReadRecipe(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return recipe, nil
}

// given names the first switch of a reduction that was typed, save those in but; "" when there is none. Twins do not count: they may serve other commands.
func (r *reductionFlags) given(but ...string) (name string) {
	r.fs.VisitAll(func(f *pflag.Flag) {
		if name == "" && onCommandLine(f) && reductionSwitch[f.Name] && !slices.Contains(but, f.Name) {
			name = f.Name
		}
	})
	return name
}

// reductionSwitch holds the flags that only a reduction can honour; --restore=false asks for nothing.
var reductionSwitch = map[string]bool{"n-vis": true, "keep-ratio": true, "gamma": true, "compat": true, "positions": true, "calibrate": true,
	"merge-position": true, "anchors": true, "anchor-pool": true, "first-layer-size": true, "decode-distance": true, "holov-overflow": true, "newlines": true,
	"holov-patches": true, "vispruner-ratio": true, "vispruner-step": true, "visionzip-contextual": true, "dart-pivots": true,
	"schedule": true, "fastv-layer": true, "pdrop-layers": true, "sparsevlm-layers": true, "fitprune-recipe": true,
	"tome-r": true, "proportional-attention": true}

// describe says in one line what a reduction is made of.
func describe(o reduce.Resolved) string {
	if o.Base == "none" || o.Base == "" {
		return "none"
	}
	if !o.Restore {
		return fmt.Sprintf("%s, %s, positions %s%s", o.Base, budget(o), o.Positions, compat(o))
	}
	s := fmt.Sprintf("RESTORE over %s, %s, gamma %v, positions %s, calibrate %s", o.Base, budget(o), o.Gamma, o.Positions, o.Calibrate)
	if o.Merge > 0 {
		s += ", merge-position " + o.MergePosition
		if o.Anchors != "" {
			s += ", anchors " + o.Anchors
		}
		if o.Anchors != "" && o.Anchors != "uniform" {
			s += " of " + o.AnchorPool
		}
	}
	return s + compat(o)
}

// budget is what is left of a picture: a number of tokens, or inside the decoder what each stage leaves.
func budget(o reduce.Resolved) string {
	if len(o.Stages) == 0 {
		return fmt.Sprintf("n-vis %d", o.NVis)
	}
	stages := make([]string, len(o.Stages))
	for i, s := range o.Stages {
		stages[i] = fmt.Sprintf("%d:%d", s.Layer, s.Rows())
	}
	return fmt.Sprintf("schedule %s (%.4g of %d tokens a layer)", strings.Join(stages, ","), o.Mean, o.N)
}

// compat says what is left to say: what goes on inside the encoder, newlines and whose habits.
func compat(o reduce.Resolved) string {
	s := ""
	if o.ToMeR != nil {
		s += fmt.Sprintf(", merges a block %v", o.ToMeR)
	}
	if o.EncoderBlocks > 0 && o.ToMeR == nil && o.NVis < o.N {
		s += fmt.Sprintf(", cuts after every second block up to %d of %d", o.EncoderBlocks-1, o.EncoderBlocks)
	}
	if o.ProportionalAttention {
		s += ", proportional attention"
	}
	if o.Newlines != "" {
		s += ", newlines " + o.Newlines
	}
	if o.Compat != "" {
		s += ", compat " + o.Compat
	}
	return s
}
