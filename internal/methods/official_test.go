package methods

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/reduce"
)

// officialScoreTol is relative to the largest density, which reaches 318: their float32 run is
// 1.8e-4 from float64, absolutely.
const officialScoreTol = 3e-6

// officialPrefix is the number of tokens before the picture in the recorded runs.
const officialPrefix = 35

// officialInput is one picture of the end-to-end recordings of the authors' code.
func officialInput(t *testing.T, path string) *reduce.Input {
	g := readGolden(t, path)
	const n = 576
	in := &reduce.Input{N: n, GridH: 24, GridW: 24, X: g.floats(t, "projected"), Heads: 3}
	in.C = len(in.X) / n
	vision := g.floats(t, "vision")
	in.Cv = len(vision) / n
	in.Hidden = append(make([]float32, in.Cv), vision...)
	for h, a := 0, g.floats(t, "attention_heads"); h < 3; h++ {
		in.ClsAttn = append(append(in.ClsAttn, 0), a[h*n:][:n]...)
	}
	return in
}

// paperOptions are the recorded variants of the reference that follows the paper.
var paperOptions = map[string]func(*Options){
	"full":                        func(*Options) {},
	"full-rest":                   func(o *Options) { o.AnchorPool = "rest" },
	"naive":                       func(o *Options) { o.Restore, o.Positions = false, "sequential" },
	"naive-calibrated":            func(o *Options) { o.Gamma, o.Positions = new(1.), "sequential" },
	"prune-positions":             func(o *Options) { o.Restore = false },
	"prune-positions-calibrated":  func(o *Options) { o.Gamma = new(1.) },
	"merge-sequential":            func(o *Options) { o.Positions, o.Calibrate = "sequential", "off" },
	"merge-sequential-calibrated": func(o *Options) { o.Positions = "sequential" },
	"positions-only":              func(o *Options) { o.Calibrate = "off" },
	"positions-size":              func(o *Options) { o.Calibrate = "size" },
	"positions-distance":          func(o *Options) { o.Calibrate = "distance" },
	"gamma0":                      func(o *Options) { o.Gamma = new(0.) },
	"gamma25":                     func(o *Options) { o.Gamma = new(0.25) },
	"gamma75":                     func(o *Options) { o.Gamma = new(0.75) },
	"uniform":                     func(o *Options) { o.Anchors = "uniform" },
	"position-first":              func(o *Options) { o.MergePosition = "first" },
	"position-last":               func(o *Options) { o.MergePosition = "last" },
	"position-mean":               func(o *Options) { o.MergePosition = "mean" },
	"position-median-mean":        func(o *Options) { o.MergePosition = "median-mean" },
	"distance-prefill-only":       func(o *Options) { o.DecodeDistance = new(false) },
	"layer0-uniform":              func(o *Options) { o.FirstLayerSize = "uniform" },
}

var officialName = regexp.MustCompile(`^(\w+?)-(.+)-n(\d+)-p(\d)(?:-(.*))?$`)

// officialOptions translates the name of a recorded run; ok is false for a run that records
// something else.
func officialOptions(t *testing.T, side, name string) (o Options, picture string, ok bool) {
	m := officialName.FindStringSubmatch(name)
	if m == nil || m[5] == "prefix31" { // their literal prefix of 35 misplaces everything there
		return o, "", false
	}
	o = Options{Base: m[1], NVis: int(number(t, m[3], "")), Compat: side}
	if side == "official" {
		o.Compat, o.Restore = "released", m[2] == "restore"
		if m[5] == "first" || m[5] == "mean" || m[5] == "last" {
			o.MergePosition = m[5]
		}
		return o, m[4], true
	}
	o.Restore = true
	change, ok := paperOptions[m[2]]
	if !ok {
		t.Fatalf("unknown variant %q", name)
	}
	change(&o)
	return o, m[4], true
}

// Ensure that what the released code's runs and the paper's kept and merged comes out, with
// positions, sizes per layer, scores and features. engine's TestReferenceRuns needs no files of the
// full set.
func TestOfficialRuns(t *testing.T) {
	dir := os.Getenv("RESTORE_ORACLE")
	if dir == "" {
		t.Skip("RESTORE_ORACLE is not set")
	}
	dir = filepath.Join(dir, "restore-official")
	pictures := map[string]*reduce.Input{
		"0": officialInput(t, filepath.Join(dir, "features-p0.safetensors")),
		"1": officialInput(t, filepath.Join(dir, "features-p1.safetensors")),
	}
	runs := 0
	for _, side := range []string{"official", "paper"} {
		files, err := filepath.Glob(filepath.Join(dir, side, "*.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			name := strings.TrimSuffix(filepath.Base(path), ".safetensors")
			o, picture, ok := officialOptions(t, side, name)
			if !ok {
				continue
			}
			runs++
			t.Run(side+"/"+name, func(t *testing.T) {
				checkOfficial(t, readGolden(t, path), "", pictures[picture], o)
			})
		}
	}
	t.Logf("%d runs", runs)
}

func checkOfficial(t *testing.T, g reference, p string, in *reduce.Input, o Options) {
	r := mustReduce(t, in, o)
	sorted := func(v []int32) []int32 { v = slices.Clone(v); slices.Sort(v); return v }
	if o.Compat == "released" {
		g.wantInts(t, "", p, "kept", r.Kept, false)
	} else if want := g.ints(t, p+"kept"); !sameInts(sorted(r.Kept), sorted(want)) {
		t.Errorf("kept: got %v, want %v", r.Kept, want)
	}
	g.wantInts(t, "", p, "group", r.Group, false)
	g.wantInts(t, "", p, "size", sizesOf(r), false)
	if _, ok := g[p+"anchors"]; ok {
		anchors, rest := r.Anchors, r.Rest
		if o.Compat == "paper" { // that reference lists both in raster order
			anchors, rest = sorted(anchors), sorted(rest)
		}
		g.wantInts(t, "", p, "anchors", anchors, false)
		g.wantInts(t, "", p, "rest", rest, false)
	}
	if _, ok := g[p+"patch_alloc"]; ok {
		g.wantInts(t, "", p, "patch_alloc", r.Indices["alloc"], false)
	}
	if _, ok := g[p+"step_score"]; ok && o.Compat == "released" {
		wantFloats(t, "step_score", r.Scores["value"], g.floats(t, p+"step_score"), divValueTol,
			false)
	}
	if _, ok := g[p+"density"]; ok && o.Compat == "released" {
		tol := officialScoreTol * float64(slices.Max(r.Density))
		wantFloats(t, "density", r.Density, g.floats(t, p+"density"), tol, false)
		wantFloats(t, "maxsim", r.MaxSim, g.floats(t, p+"maxsim"), densityTol, false)
		wantFloats(t, "score", r.Score, g.floats(t, p+"score"), tol, false)
	}
	if _, ok := g[p+"features"]; ok {
		wantFloats(t, "features", r.Features, g.floats(t, p+"features"), featTol, false)
	}
	if x, ok := g[p+"prefill_positions"]; ok {
		want, err := x.Float32s()
		if err != nil {
			for _, v := range g.ints(t, p+"prefill_positions") {
				want = append(want, float32(v))
			}
		}
		got := make([]float32, len(r.Rows))
		for i := range got {
			got[i] = float32(r.Rows[i].Position + officialPrefix)
		}
		wantFloats(t, "positions", got, want[officialPrefix:][:len(got)], meanPosTol, false)
	}
	if _, ok := g[p+"token_size"]; ok {
		size := g.floats(t, p+"token_size")
		perLayer := len(size) / 3
		wantFloats(t, "sizes of the first layer", r.LayerSizes(true),
			size[officialPrefix:][:len(r.Rows)], 0, false)
		wantFloats(t, "sizes of other layers", r.LayerSizes(false),
			size[perLayer+officialPrefix:][:len(r.Rows)], 0, false)
	}
}

// TestOfficialSelections covers runs that are given more tokens than they have, and VisPruner's
// recorded near tie.
func TestOfficialSelections(t *testing.T) {
	dir := os.Getenv("RESTORE_ORACLE")
	if dir == "" {
		t.Skip("RESTORE_ORACLE is not set")
	}
	dir = filepath.Join(dir, "restore-official")
	in := officialInput(t, filepath.Join(dir, "features-p0.safetensors"))
	for _, name := range []string{"one-k64", "one-k129", "three-k64", "three-k129"} {
		g := readGolden(t, filepath.Join(dir, "official", "overflow-"+name+".safetensors"))
		peaked := *in
		peaked.Heads, peaked.ClsAttn = 1, append([]float32{0}, g.floats(t, "attention")...)
		k := int(number(t, name[strings.Index(name, "k"):], "k"))
		r := mustReduce(t, &peaked, Options{Base: "holov", NVis: k, Compat: "released"})
		g.wantInts(t, name, "", "kept", r.Kept, false)
		g.wantInts(t, name, "", "patch_alloc", r.Indices["alloc"], false)
		r = mustReduce(t, &peaked, Options{
			Base: "holov", NVis: 2 * k, Restore: true, Compat: "released",
		})
		g.wantInts(t, name, "", "rest", r.Rest, false)
	}
	g := readGolden(t, filepath.Join(dir, "official", "vispruner-neartie-k32.safetensors"))
	tie := *in
	tie.Heads, tie.ClsAttn = 1, append([]float32{0}, g.floats(t, "attention")...)
	tie.Hidden = append(make([]float32, tie.Cv), g.floats(t, "vision")...)
	r := mustReduce(t, &tie, Options{Base: "vispruner", NVis: 32, Compat: "released"})
	if !sameInts(r.Kept, g.ints(t, "kept_float64")) {
		t.Errorf("near tie: got %v, want the float64 choice %v", r.Kept, g.ints(t, "kept_float64"))
	}
}
