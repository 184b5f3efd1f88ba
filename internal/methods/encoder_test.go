package methods

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// flowTol is a share of the largest score: seven times what the released code in float32 differs
// from float64.
const flowTol = 3e-5

// encoderFixture is the JSON next to the tensors of methods inside the encoder.
type encoderFixture struct {
	ParseR [][3]json.RawMessage          `json:"parse_r"` // blocks, r, merges
	Prune  [][4]int                      // attention, target, blocks to go, count
	ToMe   map[string][2]json.RawMessage `json:"tome"` // r, class token
}

func readEncoder(t *testing.T) (encoderFixture, reference) {
	t.Helper()
	var f encoderFixture
	golden.JSON(t, "testdata/encoder.json", &f)
	return f, readGolden(t, "testdata/encoder.safetensors")
}

func into[T any](t *testing.T, raw json.RawMessage) (v T) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func f32(t *testing.T, x *tensor.Tensor) []float32 {
	t.Helper()
	v, err := x.Float32s()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Ensure who merges into whom, and what comes of it, is as in the released functions.
func TestToMeGoldens(t *testing.T) {
	f, ref := readEncoder(t)
	for name, params := range f.ToMe {
		r, class := into[int](t, params[0]), into[bool](t, params[1])
		key := "tome/" + name + "/"
		metric := ref[key+"metric"]
		n, width := metric.Shape[1], metric.Shape[2]
		m, err := toMeMatch(nil, f32(t, metric), n, width, r, class)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.HasPrefix(name, "ties") {
			checkTies(t, name, m, f32(t, ref[key+"best_value"]), ref[key+"best_index"])
			continue
		}
		for part, got := range map[string][]int32{"src": m.src, "dst": m.dst, "unm": m.unm} {
			if want, ok := ref[key+part]; ok {
				w, _ := want.Int64s()
				if fmt.Sprint(got) != fmt.Sprint(w) && len(got)+len(w) > 0 {
					t.Errorf("%s: %s: got %v, want %v", name, part, got, w)
				}
			} else if len(m.src) > 0 {
				t.Errorf("%s: merged %d rows, want none", name, len(m.src))
			}
		}
		// without a class token even no merge would leave the rows in another order
		if len(m.src) == 0 {
			continue
		}
		s := &viewRows{rows: make([]reduce.Row, n)}
		for i := range s.rows {
			s.rows[i] = reduce.Row{Members: []int32{int32(i)}, Size: 1}
		}
		if size := ref[key+"size"]; size != nil {
			for i, v := range f32(t, size) {
				s.rows[i].Size = int(v)
			}
		}
		mixes := m.mixes(n)
		s.replace(mixes, nil)
		want, sizes := f32(t, ref[key+"out"]), f32(t, ref[key+"size_out"])
		c := len(want) / len(mixes)
		got := make([]float32, len(want))
		nn.Blend(nil, got, f32(t, ref[key+"x"]), mixes, c)
		for i := range want {
			if !(math.Abs(float64(got[i]-want[i])) <= featTol) {
				t.Errorf("%s: row %d: got %v, want %v", name, i/c, got[i/c*c:i/c*c+c],
					want[i/c*c:i/c*c+c])
				break
			}
		}
		for i, v := range sizes {
			if s.rows[i].Size != int(v) {
				t.Errorf("%s: size of row %d: got %d, want %v", name, i, s.rows[i].Size, v)
			}
		}
	}
	if len(f.ToMe) < 20 {
		t.Errorf("%d cases, want all", len(f.ToMe))
	}
}

// tieTol is what float32 makes of the cosine of a row with its own copy, in the reference; here it
// is 1.
const tieTol = 1e-6

// checkTies expects the best partners of the reference, by falling similarity, and the lower row
// first where that is a tie but for noise.
func checkTies(t *testing.T, name string, m *toMeMatching, value []float32, index *tensor.Tensor) {
	t.Helper()
	best, _ := index.Int64s()
	rounded := make([]float64, len(value))
	for i, v := range value {
		rounded[i] = math.Round(float64(v)/tieTol) * tieTol
	}
	want := topK(rounded, len(m.src))
	if !slices.Equal(m.src, want) {
		t.Errorf("%s: src: got %v, want %v", name, m.src, want)
	}
	for i, a := range m.src {
		if int64(m.dst[i]) != best[a] {
			t.Errorf("%s: row %d joins %d, want %d", name, a, m.dst[i], best[a])
		}
	}
}

// parseToMeR returns the merges of so many blocks that a text asks for.
func parseToMeR(text string, blocks int) ([]int, error) {
	m, err := parseMerges(text)
	if err != nil {
		return nil, err
	}
	return m.blocks(blocks)
}

// Ensure merges a block are read as the authors' parser makes them.
func TestToMeR(t *testing.T) {
	f, _ := readEncoder(t)
	for _, c := range f.ParseR {
		blocks, want := into[int](t, c[0]), into[[]int](t, c[2])
		var text string
		if pair := []float64{}; json.Unmarshal(c[1], &pair) == nil {
			text = fmt.Sprintf("%v:%v", pair[0], pair[1])
		} else {
			text = string(c[1])
		}
		if got, err := parseToMeR(text, blocks); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s in %d blocks: got %v, %v, want %v", text, blocks, got, err, want)
		}
	}
	if got, err := parseToMeR("4, 4,3", 5); err != nil || !slices.Equal(got, []int{4, 4, 3, 0, 0}) {
		t.Errorf("a list: got %v, %v", got, err)
	}
	for _, bad := range []string{
		"", "x", "-1", "4,", "4,-1", "4:2", "4:x", "1e3", "4:NaN", "99999999999999999999",
	} {
		o := Options{Base: "tome", Own: map[string]any{"tome-r": bad}}
		got, err := Resolve(o, Facts{Tokens: 36, EncoderBlocks: 4, EncoderDepth: 5})
		if err == nil || !strings.Contains(err.Error(), "tome-r: got "+fmt.Sprintf("%q", bad)) {
			t.Errorf("%q: got %v, %v, want an error that names it", bad, got, err)
		}
	}
}

func FuzzToMeR(f *testing.F) {
	for _, s := range []string{"4", "4,4,3", "8:-1", "3:0.25", "", "9999:1"} {
		f.Add(s, 5)
	}
	f.Fuzz(func(t *testing.T, text string, blocks int) {
		blocks = min(max(blocks, 0), 64)
		merges, err := parseToMeR(text, blocks)
		if err != nil {
			return
		}
		if left, _ := toMeLeft(100, merges); len(merges) != blocks || left < 1 || left > 100 {
			t.Errorf("%q in %d blocks: %v leave %d of 100", text, blocks, merges, left)
		}
	})
}

// Ensure budgets are met by the published schedules with 23 blocks, and exactly with any other
// depth.
func TestToMeSchedule(t *testing.T) {
	repeat := func(n, times int) string { return strings.Repeat(fmt.Sprintf("%d ", n), times) }
	for n, want := range map[int]string{
		192: repeat(17, 16) + repeat(16, 7), 128: repeat(20, 11) + repeat(19, 12), 64: repeat(23, 6) + repeat(22, 17),
	} {
		got, err := toMeSchedule(576, n, 23)
		if err != nil || fmt.Sprint(got) != "["+strings.TrimSpace(want)+"]" {
			t.Errorf("%d tokens: got %v, %v", n, got, err)
		}
	}
	for _, blocks := range []int{1, 2, 4, 5, 11, 31} {
		all := make([]int, blocks)
		for i := range all {
			all[i] = 37
		}
		least, _ := toMeLeft(37, all)
		for n := 1; n < 37; n++ {
			merges, err := toMeSchedule(37, n, blocks)
			if n < least {
				if err == nil || !strings.Contains(err.Error(), fmt.Sprint("at least ", least)) {
					t.Errorf("%d in %d blocks: got %v, want a refusal that names %d", n, blocks,
						err, least)
				}
				continue
			}
			left, capped := toMeLeft(37, merges)
			if err != nil || left != n || !slices.Equal(capped, merges) {
				t.Errorf("%d in %d blocks: got %v, which leave %d, %v", n, blocks, merges, left,
					err)
			}
		}
	}
}

// Ensure scores and counts are those of the released functions.
func TestFlowCutGoldens(t *testing.T) {
	f, ref := readEncoder(t)
	for _, name := range []string{"score_n36", "score_n1", "score_b3_n17", "score_hand"} {
		key := "flowcut/" + name + "/"
		want := ref[key+"score"]
		items, n := want.Shape[0], want.Shape[1]
		dim := ref[key+"value"].Shape[2]
		a, b, v, w := f32(t, ref[key+"attention"]), f32(t, ref[key+"semantic"]),
			f32(t, ref[key+"value"]), f32(t, want)
		for i := range items {
			f := &flow{attention: widen(a[i*n : (i+1)*n]), semantic: widen(b[i*n : (i+1)*n])}
			f.weigh(v[i*n*dim:(i+1)*n*dim], dim)
			top := 0.0
			for _, x := range w[i*n : (i+1)*n] {
				top = max(top, math.Abs(float64(x)))
			}
			for j, x := range f.score {
				if !(math.Abs(x-float64(w[i*n+j])) <= flowTol*top) {
					t.Errorf("%s: score %d: got %v, want %v", name, j, x, w[i*n+j])
				}
			}
		}
	}
	for _, c := range f.Prune {
		a := widen(f32(t, ref[fmt.Sprint("flowcut/ratio/attention.", c[0])]))
		if got := flowCutCount(a, c[1], c[2]); got != c[3] {
			t.Errorf("attention %d, target %d, %d blocks to go: got %d, want %d", c[0], c[1], c[2],
				got, c[3])
		}
	}
	if len(f.Prune) < 300 {
		t.Errorf("%d counts, want all", len(f.Prune))
	}
	// entropy ln 2 of ln 4: 3/sqrt(2)*(1-1/4) = 1.59
	if got := flowCutCount([]float64{0.5, 0, 0.5, 0}, 1, 2); got != 2 {
		t.Errorf("an attention of 0: got %d, want 2", got)
	}
}

// encode leads random rows through o with two heads of width 3 and returns what the encoder saw of
// every block.
func encode(
	t *testing.T, o Options, patches, blocks int, views [][]int32, seed uint64,
) (*reduce.Reduction, *Encoding, error) {
	t.Helper()
	var sizes []int
	for _, v := range views {
		sizes = append(sizes, len(v))
	}
	r, err := Resolve(o, Facts{
		Tokens: patches, Views: sizes, EncoderBlocks: blocks, EncoderDepth: blocks + 1,
		Newlines: true,
	})
	if err != nil {
		return nil, nil, err
	}
	e, err := NewEncoding(r, true, views)
	if err != nil {
		return nil, nil, err
	}
	e.Trace = map[string]*tensor.Tensor{}
	const heads, dim, width = 2, 3, 6
	rng := seed
	random := func(n int) []float32 {
		out := make([]float32, n)
		for i := range out {
			rng = rng*6364136223846793005 + 1442695040888963407
			out[i] = float32(int32(rng>>33)%1000) / 500
		}
		return out
	}
	x := make([][]float32, len(e.views))
	for i, n := range e.Rows() {
		x[i] = random(n * width)
	}
	for b := range blocks {
		for _, place := range []EncoderPlace{Between, Behind} {
			seen := make([]EncoderView, len(x))
			for i, n := range e.Rows() {
				seen[i] = EncoderView{
					X: x[i], Width: width, Heads: heads, HeadDim: dim, Keys: random(n * width),
					Values: random(n * width), Class: random(heads * n),
				}
				for j := range seen[i].Class {
					seen[i].Class[j] = seen[i].Class[j]*seen[i].Class[j] + 0.001
				}
			}
			mixes, err := e.Act(nil, b, place, seen)
			if err != nil {
				t.Fatal(err)
			}
			for i, m := range mixes {
				if m != nil {
					made := make([]float32, len(m)*width)
					nn.Blend(nil, made, x[i], m, width)
					x[i] = made
				}
			}
			for i, n := range e.Rows() {
				if len(x[i]) != n*width {
					t.Fatalf("block %d: %d rows, want %d", b, len(x[i])/width, n)
				}
			}
		}
	}
	e.HandOn()
	var features []float32
	for i := range x {
		features = append(features, x[i][width:]...)
	}
	red, err := e.Reduction(features, width)
	return red, e, err
}

// Ensure every budget is met, sizes sum to the patches where rows merge, features are the means of
// what was merged, and nothing changes with a budget of all.
func TestEncoderMethods(t *testing.T) {
	odd := [][]int32{{0, 2, 4, 6, 8, 10, 12}, {1, 3, 5, 7, 9, 11, 13}}
	for _, base := range []string{"tome", "flowcut"} {
		for _, o := range settings {
			for _, views := range [][][]int32{nil, odd} {
				for _, n := range []int{1, 2, 3, 5, 7, 8, 13, 14} {
					o.Base, o.NVis = base, n
					name := fmt.Sprintf("%+v views=%d", o, len(views))
					red, e, err := encode(t, o, 14, 5, views, uint64(n))
					if err != nil {
						if base == "tome" && strings.Contains(err.Error(), "only calibrates") {
							continue
						}
						if n == 1 && views != nil && strings.Contains(err.Error(), "n-vis") {
							continue
						}
						t.Fatalf("%s: %v", name, err)
					}
					if err := red.Check(); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					if _, err := json.Marshal(red); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					sum := 0
					for i := range red.Rows {
						sum += red.Rows[i].Size
					}
					merges := base == "tome" || o.Restore && (o.gamma() < 1 || o.Join != "")
					if merges && sum != 14 || !merges && sum != n {
						t.Errorf("%s: sizes sum to %d", name, sum)
					}
					if n == 14 &&
						(!slices.Equal(red.Group, iota32(14)) || e.Stages != nil ||
							e.LogSize(0) != nil) {
						t.Errorf("%s: a budget of all changed something", name)
					}
					if n < 14 && e.Stages[len(e.Stages)-1].Rows == nil {
						t.Errorf("%s: no stage", name)
					}
					again, _, err := encode(t, o, 14, 5, views, uint64(n))
					if err != nil || fmt.Sprint(again.Rows) != fmt.Sprint(red.Rows) ||
						!slices.Equal(again.Features, red.Features) {
						t.Errorf("%s: again it is otherwise, %v", name, err)
					}
				}
			}
		}
	}
	red, e, err := encode(t, Options{Base: "flowcut", NVis: 20}, 144, 23, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	var at []int
	for _, s := range e.Stages {
		at = append(at, s.Layer)
	}
	if want := []int{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21}; !slices.Equal(at, want) ||
		len(red.Rows) != 20 {
		t.Errorf("23 blocks: cuts after %v to %d rows, want after %v", at, len(red.Rows), want)
	}
	for i, s := range e.Stages {
		after := red.AfterStage(i)
		in := 0
		for _, g := range after.Group {
			if g >= 0 {
				in++
			}
		}
		if after.Options.NVis != len(s.Rows) || in != len(s.Rows) || s.From != s.Layer+1 {
			t.Errorf("stage %d: %d tokens in %d rows of %d", i, in, after.Options.NVis, len(s.Rows))
		}
	}
	for b := range 23 {
		if got := e.Trace[fmt.Sprintf("vit_stage.%d.score", b)] != nil; got != (b < 22) {
			t.Errorf("block %d: scored %v", b, got)
		}
	}
}

// Ensure the released code's habits: one count for all views, the order of merging and consecutive
// positions.
func TestEncoderReleased(t *testing.T) {
	views := [][]int32{iota32(30), nil}
	for i := range views[0] {
		views[1] = append(views[1], int32(30+i))
	}
	_, e, err := encode(t, Options{Base: "flowcut", NVis: 8, Compat: "released"}, 60, 9, views, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range e.Stages {
		n := [2]int{}
		for _, row := range s.Rows {
			n[row.Anchor/30]++
		}
		if n[0] != n[1] {
			t.Errorf("block %d: %v rows of the views, want as many of each", s.Layer, n)
		}
	}
	red, _, err := encode(t, Options{Base: "tome", NVis: 9, Compat: "released"}, 30, 4, nil, 5)
	if err != nil {
		t.Fatal(err)
	}
	falls := false
	for i, row := range red.Rows {
		if row.Position != float64(i) {
			t.Errorf("row %d sits at %v", i, row.Position)
		}
		falls = falls || i > 0 && row.Members[0] < red.Rows[i-1].Members[0]
	}
	if !falls {
		t.Error("rows are in raster order, want that of merging")
	}
}

// Ensure that rows of equal mean position keep their features, in either order of such rows.
func TestEncoderTiedPositions(t *testing.T) {
	for compat, first := range map[string]int32{"paper": 2, "released": 0} {
		o := mustResolve(t, Options{
			Base: "flowcut", NVis: 2, Restore: true, Compat: compat, MergePosition: "mean",
		}, Facts{Tokens: 5, EncoderBlocks: 3})
		e := &Encoding{plan: o, done: [][]reduce.Row{{
			{Members: []int32{2}, Anchor: 2, Size: 1},
			{Members: []int32{0, 1, 3, 4}, Anchor: 1, Merged: true, Size: 4},
		}}}
		r, err := e.Reduction([]float32{1, 4}, 1) // each row's size
		if err != nil {
			t.Fatal(err)
		}
		if r.Rows[0].Members[0] != first || r.Features[0] != float32(r.Rows[0].Size) {
			t.Errorf("%s: rows %v have features %v", compat, r.Rows, r.Features)
		}
	}
}

// Ensure equal patches go from the end, and that attention which gives them nothing chooses none.
func TestFlowCutTies(t *testing.T) {
	const patches, width = 9, 4
	for _, attention := range []float32{0.05, 0} {
		o, err := Resolve(Options{Base: "flowcut", NVis: 4}, Facts{
			Tokens: patches, EncoderBlocks: 2,
		})
		if err != nil {
			t.Fatal(err)
		}
		e, err := NewEncoding(o, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		v := EncoderView{X: make([]float32, (patches+1)*width), Width: width, Heads: 2, HeadDim: 2,
			Values: slices.Repeat([]float32{1, 2, 3, 4}, patches+1),
			Class:  slices.Repeat([]float32{attention}, 2*(patches+1))}
		if _, err := e.Act(nil, 0, Behind, []EncoderView{v}); err != nil {
			t.Fatal(err)
		}
		e.HandOn()
		r, err := e.Reduction(make([]float32, 4*width), width)
		if err != nil || !slices.Equal(r.Kept, []int32{0, 1, 2, 3}) {
			t.Errorf("attention %v: got %v, %v, want the first four", attention, r.Kept, err)
		}
	}
	if got := flowCutCount([]float64{0, 0, 0}, 1, 2); got != 0 {
		t.Errorf("no attention: %d go, want 0 before the last cut", got)
	}
}

func TestEncoderErrors(t *testing.T) {
	for _, c := range []struct {
		o      Options
		blocks int
		want   []string
	}{
		{Options{Base: "tome", NVis: 3}, 2, []string{"n-vis", "got 3", "at least 9", "2 blocks"}},
		{Options{Base: "tome", NVis: 3, Own: map[string]any{"tome-r": "2"}}, 4, []string{"tome-r", "got 2", "n-vis 3 is given too"}},
		{Options{Base: "tome", Own: map[string]any{"tome-r": "2:7"}}, 4, []string{"tome-r", `"2:7"`}},
		{Options{Base: "tome", Own: map[string]any{"tome-r": "1,1,1,1,1,1"}}, 4, []string{"tome-r", "6 entries", "5 blocks"}},
		{Options{Base: "holov", NVis: 3, Own: map[string]any{"tome-r": "2"}}, 4, []string{"tome-r", "base holov", "belongs to tome"}},
		{Options{Base: "holov", NVis: 3, Own: map[string]any{"proportional-attention": "true"}}, 4, []string{"proportional-attention", "base holov"}},
		{Options{Base: "tome", NVis: 20, Own: map[string]any{"proportional-attention": "yes"}}, 4, []string{"proportional-attention", `"yes"`, "true or false"}},
		{Options{Base: "flowcut", NVis: 3, Own: map[string]any{"proportional-attention": "true"}}, 4, []string{"proportional-attention", "restore=false"}},
		{Options{Base: "tome", NVis: 20, Restore: true, Gamma: new(0.5)}, 4, []string{"gamma", "base tome", "only calibrates"}},
		{Options{Base: "tome", NVis: 20, Restore: true, Anchors: "paper"}, 4, []string{"anchors", "base tome"}},
		{Options{Base: "tome", NVis: 20, Restore: true, AnchorPool: "all"}, 4, []string{"anchor-pool", "base tome"}},
		{Options{Base: "flowcut", NVis: 20, Newlines: "keep"}, 4, []string{"newlines", "keep", "flowcut", "inside the encoder"}},
		{Options{Base: "flowcut", NVis: 3}, 1, []string{"flowcut", "1 block", "another base"}},
		{Options{Base: "flowcut", NVis: 3}, 0, []string{"flowcut", "inside the encoder", "there is none"}},
	} {
		_, _, err := encode(t, c.o, 36, c.blocks, nil, 1)
		for _, w := range c.want {
			if err == nil || !strings.Contains(err.Error(), w) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%+v: got %v, want %q in one line", c.o, err, w)
				break
			}
		}
	}
	// two blocks leave at least 4 of 16 patches and 3 of 9; the views share 11 rows as 4, 4 and 3
	_, err := Resolve(Options{Base: "tome", NVis: 8}, Facts{
		Tokens: 41, Views: []int{16, 9, 16}, EncoderBlocks: 2,
	})
	want := "n-vis: got 8, want at least 12 (a view gets 3 of them, and of its 16 patches"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("views: got %v, want %q", err, want)
	}
	o, err := Resolve(Options{Base: "flowcut", NVis: 3}, Facts{Tokens: 9, EncoderBlocks: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewEncoding(o, false, nil); err == nil ||
		!strings.Contains(err.Error(), "class token") {
		t.Errorf("without a class token: got %v, want a refusal", err)
	}
	if _, err := Reduce(randomInput(1, 3, 3), o, nil); err == nil ||
		!strings.Contains(err.Error(), "inside the encoder") {
		t.Errorf("features alone: got %v, want a refusal", err)
	}
}
