package engine_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/engine"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/reduce"
	"github.com/restore-vlm/restore/tensor"
)

// tolRows and tolScores are shares of a tensor's largest value: seven times
// what the released code in float32 differs from float64 in rows and logits, and in
// sums of small probabilities.
const (
	tolRows   = 2e-5
	tolScores = 3e-5
)

// inside are runs of the authors' released code, and of RESTORE over it.
var inside = []struct {
	name string
	o    reduce.Options
}{
	{"baseline", reduce.Options{}},
	{"fastv_k1_n18", reduce.Options{Base: "fastv", Schedule: "1:18", Compat: "released"}},
	{"fastv_k2_n12", reduce.Options{Base: "fastv", Schedule: "2:0.3333333333333333", Compat: "released"}},
	{"fastv_k3_n9", reduce.Options{Base: "fastv", Schedule: "3:0.25", Compat: "released"}},
	{"pdrop_135", reduce.Options{Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "released"}},
	{"pdrop_246", reduce.Options{Base: "pdrop", Schedule: "2:0.5,4:0.25,6:0.125", Compat: "released"}},
	{"restore_pdrop_135_g75", reduce.Options{Base: "pdrop", Schedule: "1:0.7,3:0.45,5:0.2", Compat: "paper", Restore: true, Gamma: 0.75}},
	{"restore_pdrop_246_g50", reduce.Options{Base: "pdrop", Schedule: "2:0.5,4:0.25,6:0.125", Compat: "paper", Restore: true}},
	{"sparsevlm_124", reduce.Options{Base: "sparsevlm", Schedule: "1:5,2:3,4:2", Compat: "released"}},
	{"sparsevlm_135", reduce.Options{Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "released"}},
	{"restore_sparsevlm_135_g50", reduce.Options{Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "paper", Restore: true}},
	{"restore_sparsevlm_135_g75", reduce.Options{Base: "sparsevlm", Schedule: "1:20,3:12,5:6", Compat: "paper", Restore: true, Gamma: 0.75}},
	{"restore_fastv_k2_n12_g50", reduce.Options{Base: "fastv", Schedule: "2:12", Compat: "paper", Restore: true}},
	{"restore_fastv_k2_n12_g50_code", reduce.Options{Base: "fastv", Schedule: "2:12", Restore: true}},
}

// Ensure that rows, positions, key counts, choices, logits and greedy tokens
// are those of the released code, and of the reference of RESTORE.
func TestInsideDecoder(t *testing.T) {
	dir := filepath.Join("testdata", "inmodel-tiny")
	in, err := golden.Read(filepath.Join(dir, "prompt.ref"))
	if err != nil {
		t.Fatal(err)
	}
	e := open(t, dir, 2)
	for _, c := range inside {
		t.Run(c.name, func(t *testing.T) {
			ref, err := golden.Read(filepath.Join(dir, c.name+".ref"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := e.Trace(context.Background(), engine.TraceRequest{Inputs: in, Reduce: c.o, Tokens: 12})
			if err != nil {
				t.Fatal(err)
			}
			least := len(ref) * 3 / 4
			if c.o.Base == "" {
				least = 3 // cache_len, tokens, logits
			}
			if compared := compareInside(t, got, ref); compared < least {
				t.Errorf("compared %d of %d tensors, want %d or more", compared, len(ref), least)
			}
			if !c.o.Restore {
				return
			}
			o := c.o
			o.DecodeDistance = "false"
			if got, err = e.Trace(context.Background(), engine.TraceRequest{Inputs: in, Reduce: o, Tokens: 12}); err != nil {
				t.Fatal(err)
			}
			sized := map[string]*tensor.Tensor{"tokens": ref["tokens_size_only"], "logits": ref["logits_size_only"]}
			compareInside(t, got, sized)
		})
	}
}

// compareInside compares what got holds of ref under its own names.
func compareInside(t *testing.T, got, ref map[string]*tensor.Tensor) (compared int) {
	t.Helper()
	for name, want := range ref {
		g, tol := traceOf(got, name)
		if g == nil {
			continue
		}
		if strings.HasPrefix(name, "bias.") {
			causal(g)
			causal(want)
		}
		clampInf(t, name, g, want)
		if err := golden.Compare(g, want, tol); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		compared++
	}
	return compared
}

// traceOf returns what a trace calls name, and how exact it must be.
func traceOf(got map[string]*tensor.Tensor, name string) (*tensor.Tensor, float64) {
	kind, layer, _ := strings.Cut(name, ".")
	l := -1
	fmt.Sscan(layer, &l)
	switch kind {
	case "inputs_embeds":
		return got["embeds"], tolRows
	case "layer_in":
		if g := got["text.layer."+layer+".in"]; g != nil {
			return g, tolRows
		}
		if l == 0 {
			return got["embeds"], tolRows
		}
		return got[fmt.Sprintf("text.layer.%d.out", l-1)], tolRows
	case "layer_out":
		return got["text.layer."+layer+".out"], tolRows
	case "cache_k":
		return got["text.layer."+layer+".k"], tolRows
	case "cache_v":
		return got["text.layer."+layer+".v"], tolRows
	case "bias":
		return got["text.layer."+layer+".bias"], tolScores
	case "pos", "cache_pos":
		return got["cache."+layer+".position"], 0
	case "cache_size":
		return got["cache."+layer+".size"], 0
	case "cache_len":
		return got["cache.len"], 0
	case "tokens":
		return got["gen.tokens"], 0
	case "logits":
		return got["gen.logits"], tolRows
	case "decode_pos":
		return got["gen.layer_positions"], 0
	case "stage":
		name = strings.Replace(name, ".keep", ".kept", 1)
		name = strings.Replace(name, ".kept_original", ".keep_original", 1)
	}
	g := got[name]
	if g != nil && g.DType == tensor.F32 {
		return g, tolScores
	}
	return g, 0
}

// causal clears what no query sees of a square matrix.
func causal(m *tensor.Tensor) {
	v, _ := m.Float32s()
	n := m.Shape[0]
	for i := range n {
		clear(v[i*n+i+1 : (i+1)*n])
	}
	*m = *tensor.FromFloat32s(m.Shape, v)
}

// clampInf checks that infinities stand at the same places and makes them 0.
func clampInf(t *testing.T, name string, g, w *tensor.Tensor) {
	t.Helper()
	if !strings.HasSuffix(name, "anchor_score") {
		return
	}
	a, _ := g.Float32s()
	b, _ := w.Float32s()
	for i := range min(len(a), len(b)) {
		if math.IsInf(float64(b[i]), 1) {
			if !math.IsInf(float64(a[i]), 1) {
				t.Errorf("%s: at %d: got %v, want +Inf", name, i, a[i])
			}
			a[i], b[i] = 0, 0
		}
	}
	*g, *w = *tensor.FromFloat32s(g.Shape, a), *tensor.FromFloat32s(w.Shape, b)
}
