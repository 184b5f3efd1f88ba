package methods

import (
	"bytes"
	"image"
	"image/draw"
	_ "image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// pixelsOf returns the bytes of a picture of the reference, as [height, width, 3].
func pixelsOf(t *testing.T, name string) *tensor.Tensor {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "pixelprune", name+".png"))
	if err != nil {
		t.Fatal(err)
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	b := img.Bounds()
	rgba := image.NewRGBA(b)
	draw.Draw(rgba, b, img, b.Min, draw.Src)
	out := &tensor.Tensor{DType: tensor.U8, Shape: []int{b.Dy(), b.Dx(), 3}}
	for i := 0; i < len(rgba.Pix); i += 4 {
		out.Data = append(out.Data, rgba.Pix[i:i+3]...)
	}
	return out
}

// randomX returns features of n tokens.
func randomX(n int) *tensor.Tensor {
	rng := rand.New(rand.NewPCG(uint64(n), 3))
	x := make([]float32, 5*n)
	for i := range x {
		x[i] = rng.Float32()
	}
	return tensor.From([]int{n, 5}, x)
}

// Ensure that PixelPrune keeps and assigns the cells that its authors' code does, alone and under
// RESTORE: the reference has pages, a screen, a photograph, one colour, one row and one column.
func TestPixelPruneGoldens(t *testing.T) {
	g := readGolden(t, "testdata/pixelprune/pixelprune.safetensors")
	var all struct {
		Runs map[string]struct {
			newerCase
			Cell, Cells int
		}
	}
	golden.JSON(t, "testdata/pixelprune/pixelprune.json", &all)
	if len(all.Runs) != 44 {
		t.Fatalf("%d states", len(all.Runs))
	}
	for key, c := range all.Runs {
		for _, restore := range []bool{false, true} {
			o, h, w := c.options(t)
			o.Restore = restore
			tensors := map[string]*tensor.Tensor{
				"X": randomX(c.Cells), "pixels": pixelsOf(t, c.Input),
			}
			r := reduceFile(t, tensors, o, h, w)
			kept, owner := g.ints(t, key+"/kept"), g.ints(t, key+"/owner")
			size := g.ints(t, key+"/size")
			if !sameInts(r.Kept, kept) || len(r.Rows) != len(kept) || r.N != c.Cells {
				t.Fatalf("%s: kept %v in %d rows of %d, want %v", key, r.Kept, len(r.Rows), r.N,
					kept)
			}
			for i, row := range r.Rows {
				s := 1
				if restore {
					s = int(size[i])
				}
				if row.Size != s || row.Anchor != kept[i] || row.Position != float64(kept[i]) ||
					row.Merged {
					t.Errorf("%s: row %d is %+v, want token %d of size %d", key, i, row, kept[i], s)
				}
				x, _ := tensors["X"].Float32s()
				if !slices.Equal(r.Features[i*5:i*5+5], x[kept[i]*5:kept[i]*5+5]) {
					t.Errorf("%s: row %d has other features than its token", key, i)
				}
			}
			for i, o := range owner {
				want := int32(slices.Index(kept, o))
				if !restore && o != int32(i) {
					want = -1
				}
				if r.Group[i] != want {
					t.Fatalf("%s: cell %d is in row %d, want %d", key, i, r.Group[i], want)
				}
			}
		}
	}
}

// reduceFile reduces tensors of a file.
func reduceFile(
	t *testing.T, tensors map[string]*tensor.Tensor, o Options, h, w int,
) *reduce.Reduction {
	t.Helper()
	in, err := FromTensors(tensors, h, w)
	if err != nil {
		t.Fatal(err)
	}
	r, err := reduceInput(in, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return r
}

// reduceInput does what o says before the encoder, and reduces the rest.
func reduceInput(in *reduce.Input, o Options) (*reduce.Reduction, error) {
	b, err := NewBefore(&o)
	if err == nil && b != nil {
		in, err = b.Apply(in)
	}
	if err != nil {
		return nil, err
	}
	p, err := Resolve(o, Facts{
		Tokens: in.N, GridH: in.GridH, GridW: in.GridW, NoClass: in.NoClass, Pruned: in.Pruned,
	})
	if err != nil {
		return nil, err
	}
	return Reduce(in, p, nil)
}

// drawn returns a picture of side×side cells of one grey per letter.
func drawn(rows ...string) *reduce.Input {
	const side = 2
	in := &reduce.Input{GridH: len(rows), GridW: len(rows[0]), Cell: side, C: 5}
	in.N = in.GridH * in.GridW
	in.X, _ = randomX(in.N).Float32s()
	for _, row := range rows {
		var line []byte
		for _, c := range []byte(row) {
			line = append(line, bytes.Repeat([]byte{c}, 3*side)...)
		}
		in.Pixels = append(in.Pixels, bytes.Repeat(line, side)...)
	}
	return in
}

// Ensure that the worked example comes out: cell 5 guesses A because C is like B, cell 7 guesses B
// because C is like A, and cell 8 guesses wrong.
func TestPixelPruneExample(t *testing.T) {
	r, err := reduceInput(drawn("WWW", "WBB", "WBW"), Options{Base: "pixelprune", Restore: true})
	if err != nil {
		t.Fatal(err)
	}
	if !sameInts(r.Kept, []int32{0, 4, 8}) ||
		!sameInts(r.Group, []int32{0, 0, 0, 0, 1, 1, 0, 1, 2}) {
		t.Errorf("kept %v, groups %v", r.Kept, r.Group)
	}
	for i, want := range []int{5, 3, 1} {
		if r.Rows[i].Size != want {
			t.Errorf("row %d has size %d, want %d", i, r.Rows[i].Size, want)
		}
	}
	if got := r.Options; got.N != 9 || got.NVis != 3 || got.Keep != 3 || got.Merge != 0 ||
		got.Join != "count" || got.Calibrate != "full" {
		t.Errorf("options %+v", got)
	}
	const line = "RESTORE over pixelprune, n-vis 3, gamma 1, positions original, calibrate full, " +
		"join count"
	if got := r.Options.String(); got != line {
		t.Errorf("got %q, want %q", got, line)
	}
}

// Ensure that a difference of exactly 255·tau levels is none, and that one more is: 5 levels.
func TestPixelPruneThreshold(t *testing.T) {
	for tau, want := range map[float64]int{5. / 255: 1, 4.9 / 255: 4, 0: 4, 1: 1} {
		r, err := reduceInput(drawn("af", "fk"), Options{ // f-a = 5, k-a = 10
			Base: "pixelprune", Own: map[string]any{"pixelprune-tau": tau},
		})
		if err != nil {
			t.Fatal(err)
		}
		if tau == 5./255 {
			want = 2 // k differs from its owner a by 10, though from f by 5
		}
		if len(r.Rows) != want {
			t.Errorf("tau %v: %d tokens, want %d", tau, len(r.Rows), want)
		}
	}
}

// Ensure that a method before another leaves it the encoded tokens, and that with RESTORE every
// token of the picture is in a row.
func TestBefore(t *testing.T) {
	in := drawn("aaaab", "aaabb", "cccde", "ccccc")
	in.NoClass, in.Heads = true, 2
	in.ClsAttn, in.Cv = make([]float32, in.Heads*(in.N+1)), in.C
	for i := range in.ClsAttn {
		in.ClsAttn[i] = float32(i%7) / 100
	}
	in.ClsAttnShallow, in.ReceivedMid, in.ReceivedDeep = in.ClsAttn, in.ClsAttn, in.ClsAttn
	in.Hidden = append(make([]float32, in.C), in.X...)
	in.Cells, in.CellDim = in.X, in.C
	in.Text = []float32{}
	in.KeyDim = 2
	in.Keys = slices.Repeat([]float32{0, 1, 3, 2}, in.N+1)[:in.Heads*(in.N+1)*in.KeyDim]
	pruned, err := reduceInput(in, Options{Base: "pixelprune"})
	if err != nil {
		t.Fatal(err)
	}
	left := pruned.Kept
	for _, m := range Methods() {
		if m.Site != reduce.AfterEncoder || m.Name == "none" {
			continue
		}
		for n := 1; n <= in.N; n++ {
			for _, restore := range []bool{false, true} {
				o := Options{Base: m.Name, Before: "pixelprune", NVis: n, Restore: restore}
				r, err := reduceInput(in, o)
				switch {
				case slices.Contains(m.Require(restore), reduce.Grid):
					if err == nil || !strings.Contains(err.Error(), "rows and columns") {
						t.Fatalf("%s: %v, want a refusal", m.Name, err)
					}
					continue
				case err != nil && slices.Contains(m.Require(restore), reduce.LastKeys):
					continue // the encoder has none
				case err != nil:
					t.Fatalf("%+v: %v", o, err)
				}
				if err := r.Check(); err != nil {
					t.Fatalf("%+v: %v", o, err)
				}
				if want := min(n, len(left)); len(r.Rows) != want || r.N != in.N {
					t.Fatalf("%+v: %d rows of %d, want %d", o, len(r.Rows), r.N, want)
				}
				b := r.Options.Before
				if b == nil || b.N != in.N || b.NVis != len(left) || r.Options.N != len(left) {
					t.Fatalf("%+v: before %+v", o, b)
				}
				checkLeft(t, r, left, restore)
			}
		}
	}
	// Without anchors the tokens of cells that are not kept are dropped.
	r, err := reduceInput(in, Options{
		Base: "grid", Before: "pixelprune", NVis: 3, Restore: true, Gamma: new(1.),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(); err != nil || len(r.Rows) != 3 || !slices.Contains(r.Group, -1) {
		t.Errorf("gamma 1: rows %v, groups %v, %v", r.Rows, r.Group, err)
	}
}

// checkLeft checks that rows begin with the tokens that were left.
func checkLeft(t *testing.T, r *reduce.Reduction, left []int32, restore bool) {
	t.Helper()
	sum := 0
	for i, row := range r.Rows {
		sum += row.Size
		if row.Anchor >= 0 && !slices.Contains(left, row.Anchor) {
			t.Errorf("row %d begins with token %d, which was not encoded", i, row.Anchor)
		}
		for _, m := range row.Members {
			if !restore && !slices.Contains(left, m) {
				t.Errorf("row %d has token %d, which was dropped", i, m)
			}
		}
	}
	if restore && sum != r.N {
		t.Errorf("%s: sizes add up to %d, want %d", r.Options.Base, sum, r.N)
	}
}

// Ensure that what cannot be done before the encoder, or has no effect, is refused by name.
func TestBeforeRefusals(t *testing.T) {
	own := func(name string, v any) map[string]any { return map[string]any{name: v} }
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{Options{Before: "pixelprune"}, []string{"before", "without a base", "want base pixelprune"}},
		{Options{Base: "pixelprune", Before: "pixelprune"}, []string{"before", "base pixelprune"}},
		{Options{Base: "holov", NVis: 2, Before: "random"}, []string{"before", `"random"`, "one of none, pixelprune"}},
		{Options{Base: "pixelprune", NVis: 3}, []string{"n-vis", "3", "picture sets the number"}},
		{Options{Base: "pixelprune", KeepRatio: 0.5, Restore: true}, []string{"keep-ratio", "0.5"}},
		{Options{Base: "pixelprune", AutoMean: 3, Restore: true}, []string{"n-vis", "auto:3"}},
		{Options{Base: "pixelprune", Guard: true, Restore: true}, []string{"guard", "only calibrates"}},
		{Options{Base: "pixelprune", Gamma: new(0.5), Restore: true}, []string{"gamma", "only calibrates"}},
		{Options{Base: "pixelprune", Join: "count", Restore: true}, []string{"join", "only calibrates"}},
		{Options{Base: "tome", NVis: 4, Before: "pixelprune"}, []string{"before", "inside the encoder"}},
		{Options{Base: "pool", NVis: 4, Before: "pixelprune"}, []string{"before", "rows and columns"}},
		{Options{Base: "downsample", NVis: 4, Before: "pixelprune"}, []string{"before", "another size"}},
		{Options{Base: "holov", NVis: 4, Own: own("pixelprune-tau", 0.1)}, []string{"pixelprune-tau", "belongs to pixelprune"}},
		{Options{Base: "pixelprune", Own: own("pixelprune-tau", 1.5)}, []string{"pixelprune-tau", "1.5", "0 to 1"}},
		{Options{Base: "holov", NVis: 30, Before: "pixelprune"}, []string{"n-vis", "30", "at most 9"}},
		{Options{Base: "pixelprune", Own: own("pixelprune-cell", int64(3))}, []string{"pixelprune-cell", "got 3", "want 2", "3x3"}},
		{Options{Base: "pixelprune", Schedule: "2:4"}, []string{"schedule", "inside the decoder"}},
	} {
		_, err := reduceInput(drawn("WWW", "WBB", "WBW"), c.o)
		if err == nil {
			t.Errorf("%+v: no error", c.o)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%+v: %v, want %q", c.o, err, w)
			}
		}
	}
	in := drawn("WWW", "WBB", "WBW")
	in.Pixels = nil
	if _, err := reduceInput(in, Options{Base: "pixelprune"}); err == nil ||
		!strings.Contains(err.Error(), "needs pixels") {
		t.Errorf("without pixels: %v", err)
	}
}

// Ensure that pixels in a file must be bytes of a square for each token, and tell the grid.
func TestPixelsInFiles(t *testing.T) {
	file := func(dt tensor.DType, n int, shape ...int) map[string]*tensor.Tensor {
		size := dt.Bits() / 8
		for _, s := range shape {
			size *= s
		}
		return map[string]*tensor.Tensor{
			"X": randomX(n), "pixels": {DType: dt, Shape: shape, Data: make([]byte, size)},
		}
	}
	in, err := FromTensors(file(tensor.U8, 16, 4, 16, 3), 0, 0)
	if err != nil || in.GridH != 2 || in.GridW != 8 || in.Cell != 2 {
		t.Errorf("%+v, %v: want 2x8 cells of 2 pixels", in, err)
	}
	for _, c := range []struct {
		ts   map[string]*tensor.Tensor
		h, w int
	}{
		{file(tensor.F32, 16, 4, 16, 3), 0, 0}, {file(tensor.U8, 16, 4, 16, 4), 0, 0},
		{file(tensor.U8, 16, 4, 16), 0, 0}, {file(tensor.U8, 16, 4, 15, 3), 0, 0},
		{file(tensor.U8, 16, 4, 16, 3), 4, 4}, {file(tensor.U8, 16, 1, 1, 3), 0, 0},
		{file(tensor.U8, 16, 0, 16, 3), 0, 0},
	} {
		if _, err := FromTensors(c.ts, c.h, c.w); err == nil ||
			!strings.Contains(err.Error(), "pixels") {
			t.Errorf("%v: %v, want an error about pixels", c.ts["pixels"], err)
		}
	}
}
