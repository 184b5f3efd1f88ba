package methods

// DART as its authors released it: inside the decoder, with text tokens among the pivots.

import (
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/reduce"
)

const (
	dartTextLayer = 2 // of 32
	// dartPerKind is the number of pivots of the picture and of the text.
	dartPerKind = 4
)

var dartTextMethod = &method{
	Method: reduce.Method{
		Name:    "dart-text",
		Title:   "DART: pivots of picture and text with large keys, and the tokens least like them",
		Summary: "Like dart, but the words of the question help to choose.",
		Paper:   "https://arxiv.org/abs/2502.11494",
		Site:    reduce.InsideDecoder,
		Text:    true,
		Minimum: "1 token",
		Cost:    "8·N·C (cosines to the pivots)",
		Notes: reduce.Notes{
			Equations: `
Before layer K (2) the pivots are the four rows of the picture and the four of the text after
it whose keys in layer K-1, all heads, after rotation, have the largest L1 norm. Each pivot in
turn keeps the rows of the picture of lowest cosine to it (the rows after the final norm) that
no earlier pivot took; the picture's pivots stay too. As in the authors' code, turns follow the
iteration order of a CPython set of the pivots' sequence positions.

n-vis is the mean over layer inputs. In decoders with other than 32 layers, K is the layer at the
same relative depth, at least 1.`,
			Departures: `
The authors keep 4 + 8·floor(T/8) rows for their T of 192, 128 or 64 (schedules 2:196,
2:132, 2:68). Here any other number is met exactly: the first pivots keep one row more each. The
picture's actual position is used, not row 35. Text of fewer than four rows has fewer pivots,
where the authors' code fails. Newline rows between tiles count as the picture's, as in the
authors' code.`,
		},
	},
	ops: func(o *Plan, d Dims) (sum float64) {
		rows := o.N
		for _, s := range o.Stages {
			sum += 2 * dartPerKind * float64(rows) * float64(d.C)
			rows = s.Rows()
		}
		return sum
	},
	inside: &insideMethod{
		states: true, first: 1, score: scoreDart,
		share: func(n int, share float64) int { return int(math.RoundToEven(float64(n) * share)) },
		plan: func(p *Plan, budget int) ([]reduce.Stage, error) {
			layers := depths([]int{dartTextLayer}, p.facts.Layers)
			if layers == nil {
				return nil, refused("base", errs.Conflict, p.Base, "another base", fmt.Sprintf(
					"it acts before the second layer or a later one, and the model has %d",
					p.facts.Layers))
			}
			return p.nearest(budget, func(yield func([]reduce.Stage) bool) {
				for c := 1; c <= p.N && yield([]reduce.Stage{{Layer: layers[0], Kept: c}}); c++ {
				}
			})
		},
	},
}

// scoreDart gives the rows that DART keeps falling scores in the order of its choice, and all other
// rows none.
func scoreDart(s *Inside, v *Sight, _ []float32) ([]float32, error) {
	st := v.States
	q := &dartSequence{
		start: v.First, images: len(s.rows), text: v.Text, place: v.Key - v.First, width: st.Width,
		hidden:   st.Hidden,
		keyWidth: st.KeyWidth, keys: st.Keys, pool: st.Pool,
	}
	c := q.choose(s.stage().Kept)
	if c.bad >= 0 {
		return nil, fmt.Errorf(
			"row %d holds NaN, an infinity or values too large to sum, want finite numbers", c.bad)
	}
	score := make([]float32, len(s.rows))
	chosen := slices.Concat(append([][]int32{c.imagePivots}, c.picks...)...)
	for i, t := range chosen {
		score[int(t)-v.First] = float32(len(chosen) - i)
	}
	places := func(rows []int32) []int32 { // positions in the sequence
		out := slices.Clone(rows)
		for i := range out {
			out[i] += int32(q.place)
		}
		return out
	}
	s.indices = map[string][]int32{
		"pivots_image": places(c.imagePivots), "pivots_text": places(c.textPivots),
		"visit_order": places(c.visited),
	}
	return score, nil
}

// dartSequence is the input of DART inside a decoder: images rows of a picture from row start on,
// and text after it.
type dartSequence struct {
	start, images int
	text          []int32
	place         int // position of row 0 in the whole sequence
	width         int
	hidden        []float32 // [rows, width] after the final norm
	keyWidth      int
	keys          []float32 // [rows, keyWidth] after rotation
	pool          *kernel.Pool
}

// dartChoice is DART's choice for a picture, as rows.
type dartChoice struct {
	imagePivots, textPivots []int32 // largest keys first
	visited                 []int32 // all pivots in the order of their turns
	picks                   [][]int32
	bad                     int // first row that is not finite, -1 if none
}

// choose keeps k of the picture's rows.
func (s *dartSequence) choose(k int) *dartChoice {
	c := &dartChoice{bad: -1}
	largest := func(rows []int32, n int) []int32 {
		length := make([]float64, len(rows))
		s.pool.Run(len(rows), func(i int) {
			sum := 0.0
			for _, v := range s.keys[int(rows[i])*s.keyWidth:][:s.keyWidth] {
				sum += math.Abs(float64(v))
			}
			length[i] = sum
		})
		for i, r := range rows {
			if !finite(length[i]) {
				c.bad = int(r)
			}
		}
		top := topK(length, min(n, len(rows)))
		for i, place := range top {
			top[i] = rows[place]
		}
		return top
	}
	image := iota32(s.images)
	for i := range image {
		image[i] += int32(s.start)
	}
	c.imagePivots, c.textPivots = largest(image, min(dartPerKind, k)), largest(s.text, dartPerKind)
	c.visited = slices.Concat(c.imagePivots, c.textPivots)
	for i := range c.visited {
		c.visited[i] += int32(s.place)
	}
	c.visited = setOrder(c.visited)
	for i := range c.visited {
		c.visited[i] -= int32(s.place)
	}
	d := newDart(s.pool, s.hidden, s.width)
	for i, v := range d.norm {
		if !finite(v) {
			c.bad = i
		}
	}
	if c.bad >= 0 {
		return c
	}
	pool := slices.DeleteFunc(image, func(i int32) bool {
		return slices.Contains(c.imagePivots, i)
	})
	left, turns := k-len(c.imagePivots), len(c.visited)
	share := make([]int, turns)
	for i := range share {
		share[i] = left / turns
		if i < left%turns {
			share[i]++
		}
	}
	c.picks = d.turns(c.visited, pool, share)
	return c
}

// setOrder returns ids, which are distinct and not negative, in the iteration order of a CPython
// set to which they were added in order: the order of its table's slots.
func setOrder(ids []int32) []int32 {
	const empty, run = -1, 9
	table := slices.Repeat([]int32{empty}, 8)
	insert := func(id int32) {
		mask := len(table) - 1
		i, perturb := int(id)&mask, int(id)
		for {
			last := i
			if i+run <= mask {
				last = i + run
			}
			for j := i; j <= last; j++ {
				if table[j] == empty {
					table[j] = id
					return
				}
			}
			perturb >>= 5
			i = (5*i + 1 + perturb) & mask
		}
	}
	for n, id := range ids {
		insert(id)
		if 5*(n+1) < 3*(len(table)-1) {
			continue
		}
		size := 8
		for size <= 4*(n+1) {
			size *= 2
		}
		old := table
		table = slices.Repeat([]int32{empty}, size)
		for _, id := range old {
			if id != empty {
				insert(id)
			}
		}
	}
	return slices.DeleteFunc(table, func(id int32) bool { return id == empty })
}
