package engine

import (
	"fmt"

	"github.com/restore-vlm/restore/model"
	"github.com/restore-vlm/restore/nn"
	"github.com/restore-vlm/restore/reduce"
)

// unit is one piece of a prompt: a token, or a picture's place.
type unit struct {
	id  int32
	pic *picture // nil for a token
}

func (u unit) rows() int {
	if u.pic == nil {
		return 1
	}
	return u.pic.rows()
}

// keys returns how many of its rows layer i holds.
func (u unit) keys(i int) int {
	if u.pic != nil && u.pic.inside != nil && i < len(u.pic.inside.Entered) {
		return u.pic.inside.Entered[i]
	}
	return u.rows()
}

// shift returns by how much what follows it moved up in layer i.
func (u unit) shift(i int) float64 {
	if u.pic == nil || u.pic.inside == nil || !u.pic.inside.Sequential() || u.keys(i) == u.rows() {
		return 0
	}
	return u.pic.visual.Extent() - float64(u.keys(i))
}

// units puts pics in the places of ids that hold the picture token.
func (e *Engine) units(ids []int32, pics []*picture) ([]unit, error) {
	out := make([]unit, 0, len(ids))
	used := 0
	for _, id := range ids {
		if !e.visualToken(id) {
			out = append(out, unit{id: id})
			continue
		}
		if used < len(pics) {
			if pics[used].visual.Video != (id == e.m.VideoToken()) {
				return nil, fmt.Errorf("engine: prompt: place %d is for the other of picture and video: the chat template (%s) puts them in another order", used+1, e.source)
			}
			out = append(out, unit{pic: pics[used]})
		}
		used++
	}
	if used != len(pics) {
		return nil, fmt.Errorf("engine: prompt: %d picture places for %d pictures", used, len(pics))
	}
	return out, nil
}

// visualToken reports whether id stands for a picture or a video.
func (e *Engine) visualToken(id int32) bool {
	return id == e.m.ImageToken() || id >= 0 && id == e.m.VideoToken()
}

// rows is a stretch of decoder rows.
type rows struct {
	x               []float32 // [n, hidden]
	pos             []nn.Pos
	size, firstSize []float32
	staged          []model.Staged // pictures that the decoder shrinks on their way
	next            float64        // position of whatever follows
}

// layout makes the decoder rows of units, the first of which sits at position
// at. Text after a picture continues behind the positions that the unreduced
// picture takes (positions original) or its reduced rows (sequential).
func (e *Engine) layout(units []unit, at float64) (*rows, error) {
	n := 0
	for _, u := range units {
		n += u.rows()
	}
	h := e.shape.Hidden
	out := &rows{x: make([]float32, n*h), pos: make([]nn.Pos, 0, n), size: make([]float32, 0, n), firstSize: make([]float32, 0, n)}
	for _, u := range units {
		row := len(out.pos)
		if u.pic == nil {
			if err := e.m.Decoder().Embed(out.x[row*h:(row+1)*h], []int32{u.id}); err != nil {
				return nil, err
			}
			out.pos, out.size, out.firstSize = append(out.pos, nn.At(at)), append(out.size, 1), append(out.firstSize, 1)
			at++
			continue
		}
		p := u.pic
		copy(out.x[row*h:], p.features)
		if len(p.options.Stages) > 0 {
			start := at
			var err error
			if p.inside, err = reduce.NewInside(p.options); err != nil {
				return nil, err
			}
			out.staged = append(out.staged, model.Staged{
				Inside: p.inside, First: row, Start: at, Extent: p.visual.Extent(),
				At: func(row *reduce.Row) nn.Pos { return p.place(start, row) },
			})
		}
		if p.reduction == nil {
			for i := range p.visual.N {
				out.pos, out.size, out.firstSize = append(out.pos, p.visual.At(at, float64(i))), append(out.size, 1), append(out.firstSize, 1)
			}
		} else {
			for i := range p.reduction.Rows {
				r := &p.reduction.Rows[i]
				pos := nn.At(at + r.Position)
				if p.options.Positions != "sequential" {
					pos = p.place(at, r)
				}
				out.pos = append(out.pos, pos)
			}
			out.size = append(out.size, p.reduction.LayerSizes(false)...)
			out.firstSize = append(out.firstSize, p.reduction.LayerSizes(true)...)
		}
		at += p.span()
	}
	out.next = at
	if last := int(at); last > e.shape.MaxPositions {
		return nil, fmt.Errorf("engine: prompt: %d positions, want at most the model's context of %d (max_position_embeddings); ask less, show fewer pictures, or use --positions sequential with a smaller --n-vis", last, e.shape.MaxPositions)
	}
	return out, nil
}

// span returns the positions that a picture takes.
func (p *picture) span() float64 {
	if p.reduction != nil && p.options.Positions == "sequential" {
		return float64(p.rows())
	}
	if p.reduction != nil && p.list != nil && p.list.places == nil {
		return float64(len(p.list.source))
	}
	return p.visual.Extent()
}
