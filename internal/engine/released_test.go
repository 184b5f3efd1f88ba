package engine_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/tensor"
)

// run parses the name of a reference run, "base-variant-nN-pP[-suffix]", as options.
func run(t *testing.T, kind, name string) (o methods.Options, prompt int, ok bool) {
	t.Helper()
	var rest string
	o.Base, rest, _ = strings.Cut(name, "-")
	at := strings.LastIndex(rest, "-n")
	variant, tail := rest, ""
	if at >= 0 {
		variant, tail = rest[:at], rest[at+1:]
	}
	var suffix string
	if n, _ := fmt.Sscanf(tail, "n%d-p%d%s", &o.NVis, &prompt, &suffix); n < 2 {
		return o, 0, false
	}
	if kind == "official" {
		o.Compat, o.Restore = "released", variant == "restore"
		switch suffix {
		case "":
		case "-first", "-mean", "-last":
			o.MergePosition = suffix[1:]
		// constants of the released code (prefix 35, head dim 128, base 10000); we take them from
		// the prompt and the model
		default:
			return o, 0, false
		}
		return o, prompt, true
	}
	o.Compat, o.Restore = "paper", true
	gamma := func(g float64) { o.Gamma = &g }
	switch variant {
	case "full":
	case "full-rest":
		o.AnchorPool = "rest"
	case "naive":
		o.Restore, o.Positions = false, "sequential"
	case "naive-calibrated":
		gamma(1)
		o.Positions = "sequential"
	case "prune-positions":
		o.Restore = false
	case "prune-positions-calibrated":
		gamma(1)
	case "merge-sequential":
		o.Positions, o.Calibrate = "sequential", "off"
	case "merge-sequential-calibrated":
		o.Positions = "sequential"
	case "positions-only":
		o.Calibrate = "off"
	case "positions-size":
		o.Calibrate = "size"
	case "positions-distance":
		o.Calibrate = "distance"
	case "gamma0":
		gamma(0)
	case "gamma25":
		gamma(0.25)
	case "gamma75":
		gamma(0.75)
	case "uniform":
		o.Anchors = "uniform"
	case "position-first", "position-mean", "position-last", "position-median-mean":
		o.MergePosition = strings.TrimPrefix(variant, "position-")
	case "distance-prefill-only":
		o.DecodeDistance = new(false)
	case "layer0-uniform":
		o.FirstLayerSize = "uniform"
	default:
		t.Fatalf("%s: no options for variant %q", name, variant)
	}
	return o, prompt, true
}

// referenceRuns returns the tensors of every run as run/tensor. Here logits are for three steps; if
// RESTORE_ORACLE names the folder of the full set, for every step.
func referenceRuns(t *testing.T, kind string) map[string]*tensor.Tensor {
	t.Helper()
	root := os.Getenv("RESTORE_ORACLE")
	if root == "" {
		runs := golden.Read(t, "testdata/restore-tiny/"+kind+".ref")
		return runs
	}
	files, err := filepath.Glob(filepath.Join(root, "restore-official", kind, "*.safetensors"))
	must(t, err)
	runs := map[string]*tensor.Tensor{}
	for _, file := range files {
		one := golden.Read(t, file)
		for name, x := range one {
			runs[strings.TrimSuffix(filepath.Base(file), ".safetensors")+"/"+name] = x
		}
	}
	return runs
}

// Ensure that the runs of the released code and of the paper are reproduced: kept tokens, groups,
// sizes, positions and greedy tokens exactly, logits within tolLogits.
func TestReferenceRuns(t *testing.T) {
	trace := restoreTrace(t, 2)
	for _, kind := range []string{"official", "paper"} {
		ref := referenceRuns(t, kind)
		runs := 0
		for key := range ref {
			name, field, _ := strings.Cut(key, "/")
			if field != "tokens" || strings.HasPrefix(name, "unreduced") {
				continue
			}
			o, prompt, ok := run(t, kind, name)
			if !ok {
				continue
			}
			if runs++; testing.Short() && runs%8 != 0 {
				continue
			}
			t.Run(kind+"/"+name, func(t *testing.T) {
				checkRun(t, trace(t, prompt, o), ref, name, o)
			})
		}
		if runs < 30 {
			t.Errorf("%s: %d runs, want all", kind, runs)
		}
	}
}

func checkRun(t *testing.T, got, ref map[string]*tensor.Tensor, name string, o methods.Options) {
	t.Helper()
	tol := tolLogits
	if o.MergePosition == "mean" && o.Compat == "released" {
		// the reference has float32 positions, so truncated distances of whole numbers may differ
		tol = 3e-3
	}
	kept := "reduce.retained"
	if !o.Restore {
		kept = "reduce.kept"
	}
	pairs := map[string]string{
		"kept": kept, "group": "reduce.group", "size": "reduce.size", "prefill_positions": "positions", "tokens": "gen.tokens",
	}
	for theirs, ours := range pairs {
		want, ok := ref[name+"/"+theirs]
		if !ok || want.Len() == 0 {
			continue
		}
		g, ok := got[ours]
		if !ok {
			t.Errorf("%s: not in the trace", ours)
			continue
		}
		exact := 0.0
		if theirs == "prefill_positions" {
			exact = 1e-6 // fractional positions are float32
		}
		if theirs == "kept" {
			g, want = sorted(t, g), sorted(t, want)
		}
		if err := golden.Compare(g, want, exact); err != nil {
			t.Errorf("%s: %v", theirs, err)
		}
	}
	want, err := ref[name+"/logits"].Float32s()
	if err != nil {
		t.Fatal(err)
	}
	g, err := got["gen.logits"].Float32s()
	if err != nil {
		t.Fatal(err)
	}
	// the first, the second and the last step
	if shape := ref[name+"/logits"].Shape; shape[0] == 3 {
		g = slices.Concat(g[:2*shape[1]], g[len(g)-shape[1]:])
	}
	if len(g) != len(want) {
		t.Fatalf("logits: %d values, want %d", len(g), len(want))
	}
	worst := 0.0
	for i := range want {
		if d := math.Abs(float64(g[i]) - float64(want[i])); !(d <= worst) {
			worst = d
		}
	}
	if !(worst <= tol) {
		t.Errorf("logits: off by %.3g, tolerance %.3g", worst, tol)
	}
}

// sorted returns the values of an integer tensor in ascending order. References list kept tokens in
// the order of the criterion, and so do traces, but paper runs list them in raster order.
func sorted(t *testing.T, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	v, err := x.Int64s()
	if err != nil {
		t.Fatal(err)
	}
	for i := range v {
		for j := i; j > 0 && v[j] < v[j-1]; j-- {
			v[j], v[j-1] = v[j-1], v[j]
		}
	}
	return tensor.From([]int{len(v)}, v)
}
