// Package cells is what models share whose towers take pictures of any size, as cells of patches:
// the tower, the order of patches, and parts of long products; and what Qwen's models share
// besides: names of weights, and their model. A cell is one merged token, merge×merge patches.
// Patches arrive cell by cell in raster order (block order).
package cells

import (
	"fmt"
	"slices"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
)

// Theta returns the base of a tower's rotation. Files have it since transformers 5, to which the
// type default means axial here.
func Theta(v *model.Values) float64 {
	p, _ := v.Rotation()
	const axial, same = "axial", "default"
	p.String("rope_type", p.String("type", axial, axial, same), axial, same)
	return p.Float("rope_theta", v.Float("rope_theta", 10000))
}

// Part is a picture, or a moment of a video, as the encoder sees it: a grid of patches (1 frame,
// rows, columns), of which all cells are encoded or only some.
type Part struct {
	Grid    [3]int
	Kept    []int32   // cells that are encoded, ascending; nil: all
	LogSize []float32 // [cells that are encoded] added to the scores of their keys; nil: nothing
}

// Cells returns the cells that are encoded, in raster order.
func (part *Part) Cells(merge int) []int32 {
	if part.Kept != nil {
		return part.Kept
	}
	all := make([]int32, part.Grid[1]/merge*(part.Grid[2]/merge))
	for i := range all {
		all[i] = int32(i)
	}
	return all
}

// Positions returns the row and column of each patch that is encoded, in block order.
func (part *Part) Positions(merge int) []nn.Pos {
	var pos []nn.Pos
	cols := part.Grid[2] / merge
	for _, c := range part.Cells(merge) {
		y, x := int(c)/cols*merge, int(c)%cols*merge
		for p := range merge * merge {
			pos = append(pos, nn.Pos{0, float64(y + p/merge), float64(x + p%merge)})
		}
	}
	return pos
}

// logSizes returns the LogSize of every patch of parts that are encoded, in block order; nil if no
// part has any.
func logSizes(parts []Part, merge int) []float32 {
	var out []float32
	any := false
	for i := range parts {
		sizes := parts[i].LogSize
		any = any || sizes != nil
		if sizes == nil {
			sizes = make([]float32, len(parts[i].Cells(merge)))
		}
		for _, v := range sizes {
			out = append(out, slices.Repeat([]float32{v}, merge*merge)...)
		}
	}
	if !any {
		return nil
	}
	return out
}

// Moments returns a part for each frame of a grid; a video's are consecutive. Attention does not
// cross moments.
func Moments(g [3]int) []Part {
	return slices.Repeat([]Part{{Grid: [3]int{1, g[1], g[2]}}}, g[0])
}

// Check returns an error unless px is patches of that width, [patches, width], whose cells have
// merge² of them, and its grids describe them as pictures or as a video. name is the model's, for
// the error.
func Check(px *imageproc.Pixels, width, merge int, name string) error {
	if len(px.Shape) != 2 || px.Shape[1] != width {
		return fmt.Errorf("%s: pixel_values: shape %v, want [patches %d] (3 * frames * "+
			"patch_size²)", name, px.Shape, width)
	}
	if px.Merge != 0 && px.Merge != merge {
		return fmt.Errorf("%s: preprocessor_config.json: merge_size: got %d, want config.json's "+
			"spatial_merge_size %d", name, px.Merge, merge)
	}
	total, rows := 0, px.Shape[0]
	for i, g := range px.GridTHW {
		if g[0] != 1 && !(px.SecondsPerMoment > 0 && g[0] > 0 && g[0] <= rows) {
			return fmt.Errorf("%s: image_grid_thw: picture %d: got %d frames, want 1", name, i,
				g[0])
		}
		for _, n := range g[1:] {
			if n < 1 || n > rows || n%merge != 0 {
				return fmt.Errorf(
					"%s: image_grid_thw: picture %d: got %dx%d patches, want positive "+
						"multiples of spatial_merge_size %d", name, i, g[1], g[2], merge)
			}
		}
		if g[1]*g[2] > rows || g[0]*g[1]*g[2] > rows {
			total = -1
			break
		}
		if total += g[0] * g[1] * g[2]; total > rows {
			break
		}
	}
	if total != rows || rows == 0 {
		return fmt.Errorf("%s: image_grid_thw: %v, want grids of %d patches together "+
			"(the rows of pixel_values)", name, px.GridTHW, rows)
	}
	return nil
}

// shrink resizes a picture from one grid to another: patches of patch×patch pixels with the given
// number of channels, in block order.
func shrink(
	r *model.Run, px []float32, from, to [3]int, channels, patch, merge int,
) []float32 {
	row := channels * patch * patch
	n, small := from[1]*from[2], to[1]*to[2]
	raster, picture := r.Buffer("cells.raster", max(n, small)*row),
		r.Buffer("cells.picture", n*row)
	nn.Gather(raster, px, inRaster(from, merge), row)
	nn.Unpatch(picture, raster, 1, channels, from[1]*patch, from[2]*patch, patch)
	resized := nn.Resize(picture, channels, from[1]*patch, from[2]*patch, 1, to[1]*patch,
		to[2]*patch, true)
	nn.Patches(raster, resized, 1, channels, to[1]*patch, to[2]*patch, patch)
	out := make([]float32, small*row)
	nn.Gather(out, raster, inverse(inRaster(to, merge)), row)
	return out
}

// inRaster returns, for every patch of a grid, row by row, its index in block order.
func inRaster(g [3]int, merge int) []int32 {
	var out []int32
	for y := range g[1] {
		for x := range g[2] {
			cell := y/merge*(g[2]/merge) + x/merge
			out = append(out, int32(cell*merge*merge+y%merge*merge+x%merge))
		}
	}
	return out
}

func inverse(order []int32) []int32 {
	out := make([]int32, len(order))
	for i, j := range order {
		out[j] = int32(i)
	}
	return out
}

// Form is defined by the prefixes of the decoder, its head ("" if it has none) and the tower.
func Form(name, by, text, head, tower string) checkpoint.Form {
	return checkpoint.NewForm(name, by, "", text, head, [2]string{tower, "visual."})
}

// MLX is the form of mlx-vlm.
var MLX = Form("mlx", "mlx-vlm", "language_model.model.", "language_model.lm_head.",
	"vision_tower.")

// mostRows is how many rows go through products at once: enough for their full speed, few enough to
// limit the memory of the MLP's wide rows and of the products' copies of rows.
const mostRows = 2048

// InParts calls f for almost equal parts of n rows, at most mostRows each.
func InParts(n int, f func(lo, hi int)) {
	parts := (n + mostRows - 1) / mostRows
	for i := range parts {
		f(i*n/parts, (i+1)*n/parts)
	}
}

// tracedMaps is the largest attention matrix, in elements, that a trace holds.
const tracedMaps = 1 << 26

// traceAttention traces the attention a of block i within bounds over qkv [patches, 3·hidden]. The
// matrix itself is traced only up to tracedMaps elements, and the rest only if received is not nil:
// what each patch receives [heads, patches], and merged, each cell [heads, cells].
func traceAttention(
	r *model.Run, a *nn.Attention, i int, qkv []float32, bounds []int32,
	logSize, received, merged []float32,
) {
	d := a.Heads * a.HeadDim
	n := len(qkv) / (3 * d)
	name := fmt.Sprintf("vision.block.%d.", i)
	if !r.NoMaps && a.Heads*n*n <= tracedMaps {
		r.Trace(name+"attn", []int{a.Heads, n, n}, a.SegmentedProbs(r.Pool, qkv, bounds, logSize))
	}
	if received == nil {
		return
	}
	shape := []int{n, a.Heads, a.HeadDim}
	r.Trace(name+"q_rope", shape, nn.Columns(qkv, n, 3*d, 0, d))
	r.Trace(name+"k_rope", shape, nn.Columns(qkv, n, 3*d, d, d))
	r.Trace(name+"received", []int{n}, nn.MeanRows(received, a.Heads))
	r.Trace(name+"received_merged", []int{len(merged) / a.Heads}, nn.MeanRows(merged, a.Heads))
}
