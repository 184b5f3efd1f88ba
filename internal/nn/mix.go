package nn

import (
	"github.com/restore-vlm/restore/internal/kernel"
)

// Mix is one row made from others: their mean, weighted by Weight if it is not nil. A single row is
// copied.
type Mix struct {
	From   []int32
	Weight []float32
}

// Blend writes the rows mixes of src [*, width] to dst [len(mixes), width]. It sums in float64.
func Blend(p *kernel.Pool, dst, src []float32, mixes []Mix, width int) {
	p.Run(len(mixes), func(i int) {
		m, out := &mixes[i], dst[i*width:(i+1)*width]
		if len(m.From) == 1 {
			copy(out, src[int(m.From[0])*width:])
			return
		}
		sum, total := make([]float64, width), 0.0
		for j, r := range m.From {
			w := 1.0
			if m.Weight != nil {
				w = float64(m.Weight[j])
			}
			total += w
			for k, v := range src[int(r)*width : (int(r)+1)*width] {
				sum[k] += w * float64(v)
			}
		}
		for k, v := range sum {
			out[k] = float32(v / total)
		}
	})
}

// BlendParts replaces the rows of each part of x [Σ rows, width] in place by mixes of them and
// returns the rest of x. A part whose mixes are nil stays as it is; nil mixes leave all parts.
func BlendParts(p *kernel.Pool, x []float32, rows []int, mixes [][]Mix, width int) []float32 {
	if mixes == nil {
		return x
	}
	made := make([]float32, 0, len(x))
	at := 0
	for i, n := range rows {
		part := x[at*width : (at+n)*width]
		if m := mixes[i]; m == nil {
			made = append(made, part...)
		} else {
			lo := len(made)
			made = made[:lo+len(m)*width]
			Blend(p, made[lo:], part, m, width)
		}
		at += n
	}
	copy(x, made)
	return x[:len(made)]
}

// Replace replaces the rows [first, first+old) of x [rows, width] by mixes and moves the rows after
// them forward; len(mixes) is at most old.
func Replace(p *kernel.Pool, x []float32, rows, width, first, old int, mixes []Mix) {
	part := x[first*width : (first+old)*width]
	last, moves := int32(-1), true // rows that only move forward need no temporary copy
	for i := range mixes {
		from := mixes[i].From
		if moves = len(from) == 1 && from[0] > last; !moves {
			break
		}
		last = from[0]
	}
	if moves {
		for i := range mixes {
			if from := int(mixes[i].From[0]); from != i {
				copy(part[i*width:(i+1)*width], part[from*width:])
			}
		}
	} else {
		made := make([]float32, len(mixes)*width)
		Blend(p, made, part, mixes, width)
		copy(part, made)
	}
	copy(x[(first+len(mixes))*width:], x[(first+old)*width:rows*width])
}
