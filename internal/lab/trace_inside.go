package lab

import (
	"fmt"
	"math"

	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/reduce"
)

// traced collects the lists of a trace.
type traced map[string]*tensor.Tensor

func (out traced) floats(name string, v []float32) {
	out[name] = tensor.From([]int{len(v)}, v)
}

func (out traced) ints(name string, v []int64) { out[name] = tensor.From([]int{len(v)}, v) }

// list writes indices; nil writes nothing.
func (out traced) list(name string, v []int32) {
	if v == nil {
		return
	}
	w := make([]int64, len(v))
	for i, x := range v {
		w[i] = int64(x)
	}
	out.ints(name, w)
}

// places writes positions: integers if all are whole numbers, otherwise float32.
func (out traced) places(name string, v []float64) {
	whole, rounded := make([]int64, len(v)), make([]float32, len(v))
	exact := true
	for i, x := range v {
		whole[i], rounded[i] = int64(x), float32(x)
		exact = exact && x == math.Trunc(x)
	}
	if exact {
		out.ints(name, whole)
	} else {
		out.floats(name, rounded)
	}
}

// inside writes cache.len, the number of keys that each layer holds of the prompt, their positions
// (on all axes if there are three) and sizes, and, for each stage of a reducer inside the decoder,
// the remaining rows. Rows before a stage are numbered in their order at that point.
func (out traced) inside(staged []model.Staged, cache *nn.KVCache, three bool) {
	var lens []int64
	for i := range cache.Layers() {
		lens = append(lens, int64(cache.Len(i)))
	}
	out.ints("cache.len", lens)
	for i := range cache.Layers() {
		l := cache.Layer(i)
		pos := make([]float64, len(l.Pos))
		for j, p := range l.Pos {
			pos[j] = p[0]
		}
		out.places(fmt.Sprintf("cache.%d.position", i), pos)
		if three {
			out[fmt.Sprintf("cache.%d.position_ids", i)] = axes(l.Pos)
		}
		out.floats(fmt.Sprintf("cache.%d.size", i), append([]float32(nil), l.Size...))
	}
	for p := range staged {
		st := &staged[p]
		picture, stage := "", "stage."
		if len(staged) > 1 {
			picture, stage = fmt.Sprintf("picture.%d.", p), fmt.Sprintf("stage.%d.", p)
		}
		out.own(picture, st.Scores, st.Indices)
		for i := range st.Results {
			out.stage(fmt.Sprintf("%s%d.", stage, i), st, &st.Results[i])
		}
	}
}

// own writes a method's own results under their own names.
func (out traced) own(prefix string, scores map[string][]float32, indices map[string][]int32) {
	for name, v := range scores {
		out.floats(prefix+name, v)
	}
	for name, v := range indices {
		out.list(prefix+name, v)
	}
}

// stage writes one stage: the score of each row before it; the kept rows, as keep or, with RESTORE,
// as kept in addition to the results of merging; and, for each row after it, the picture's token
// that it is, or -1 if it is merged.
func (out traced) stage(prefix string, st *model.Staged, r *reduce.StageResult) {
	var original, members, offsets []int64
	size, position := make([]float32, len(r.Rows)), make([]float64, len(r.Rows))
	for j := range r.Rows {
		row := &r.Rows[j]
		id := int64(-1)
		if !row.Merged {
			id = int64(row.Anchor)
		}
		original, offsets = append(original, id), append(offsets, int64(len(members)))
		for _, m := range row.Members {
			members = append(members, int64(m))
		}
		size[j], position[j] = float32(row.Size), st.Start+row.Position
	}
	out.floats(prefix+"score", r.Score)
	out.ints(prefix+"keep_original", original)
	out.own(prefix, r.Scores, r.Indices)
	if !st.Plan.Restore {
		out.list(prefix+"keep", r.Kept)
		return
	}
	out.list(prefix+"kept", r.Kept)
	out.floats(prefix+"size", size)
	out.places(prefix+"position", position)
	out.ints(prefix+"group_members", members)
	out.ints(prefix+"group_offsets", append(offsets, int64(len(members))))
	out.list(prefix+"pool", r.Pool)
	out.list(prefix+"anchors", r.Anchors)
	out.list(prefix+"assign", r.Assign)
	if r.Merit != nil {
		out.floats(prefix+"represent", r.Density)
		out.floats(prefix+"anchor_score", r.Merit)
	}
}
