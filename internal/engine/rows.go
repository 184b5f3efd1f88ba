package engine

import (
	"fmt"
	"math"
	"slices"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// unit is one element of a prompt: a token or a picture.
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

// keys returns how many keys layer i holds for the unit.
func (u unit) keys(i int) int {
	if u.pic != nil && u.pic.inside != nil && i < len(u.pic.inside.Entered) {
		return u.pic.inside.Entered[i]
	}
	return u.rows()
}

// shift returns by how many positions the rows after the unit move forward in layer i.
func (u unit) shift(i int) float64 {
	if u.pic == nil || u.pic.inside == nil || !u.pic.inside.Sequential() || u.keys(i) == u.rows() {
		return 0
	}
	return u.pic.span() - float64(u.keys(i))
}

// units puts pics where ids has their tokens. If videos have another token than pictures, each kind
// is in its order: a template may put all pictures of a message before its videos.
func (e *Engine) units(ids []int32, pics []*picture) ([]unit, error) {
	of := map[int32][]*picture{} // by token
	for _, p := range pics {
		token := model.Token(e.m, p.shape)
		of[token] = append(of[token], p)
	}
	out := make([]unit, 0, len(ids))
	places := map[int32]int{}
	for _, id := range ids {
		if !e.visualToken(id) {
			out = append(out, unit{id: id})
			continue
		}
		if i := places[id]; i < len(of[id]) {
			out = append(out, unit{pic: of[id][i]})
		}
		places[id]++
	}
	for _, kind := range []struct {
		token int32
		name  string
	}{{e.m.ImageToken(), "picture"}, {e.m.VideoToken(), "video"}} {
		if got, want := places[kind.token], len(of[kind.token]); got != want {
			return nil, fmt.Errorf("engine: prompt: %d %s places for %d %[2]ss", got, kind.name,
				want)
		}
	}
	return out, nil
}

// visualToken reports whether id stands for a picture or a video.
func (e *Engine) visualToken(id int32) bool {
	return id == e.m.ImageToken() || id >= 0 && id == e.m.VideoToken()
}

// Rows are consecutive decoder rows.
type Rows struct {
	X               []float32 // [n, hidden]
	Pos             []nn.Pos
	Size, FirstSize []float32      // see model.Span
	Staged          []model.Staged // pictures that the decoder reduces between its layers
	Deep            []model.Deep   // rows that pictures add to theirs after the first layers
	Blocks          []nn.Block     // pictures whose rows see each other
	Next            float64        // position of the row after these
}

// deep returns the rows of in.Deep within the rows lo to hi.
func (in *Rows) deep(lo, hi, width int) []model.Deep {
	var out []model.Deep
	for _, d := range in.Deep {
		n := len(d.Levels[0]) / width
		from, to := max(lo, d.First), min(hi, d.First+n)
		if from >= to {
			continue
		}
		part := model.Deep{First: from - lo}
		for _, level := range d.Levels {
			part.Levels = append(part.Levels, level[(from-d.First)*width:(to-d.First)*width])
		}
		out = append(out, part)
	}
	return out
}

// blocks returns the blocks within the rows lo to hi, which cut none.
func (in *Rows) blocks(lo, hi int) []nn.Block {
	var out []nn.Block
	for _, b := range in.Blocks {
		if lo <= b.First && b.End <= hi {
			out = append(out, nn.Block{First: b.First - lo, End: b.End - lo})
		}
	}
	return out
}

// chunk returns the end of the next rows that the decoder reads at once, from lo on: it cuts no
// block.
func (in *Rows) chunk(lo int) int {
	hi := min(lo+prefillChunk, len(in.Pos))
	for _, b := range in.Blocks {
		switch {
		case b.First >= hi || b.End <= hi:
		case b.First > lo:
			return b.First
		default:
			return b.End
		}
	}
	return hi
}

// layout makes the decoder rows of units; the first unit has position at. Text after a picture
// continues after the unreduced picture's positions (positions original) or after its reduced rows
// (positions sequential).
func (e *Engine) layout(units []unit, at float64) (*Rows, error) {
	n := 0
	for _, u := range units {
		n += u.rows()
	}
	h := e.shape.Hidden
	out := &Rows{
		X: make([]float32, n*h), Pos: make([]nn.Pos, 0, n), Size: make([]float32, 0, n),
		FirstSize: make([]float32, 0, n),
	}
	for _, u := range units {
		row := len(out.Pos)
		if u.pic == nil {
			if err := e.m.Decoder().Embed(out.X[row*h:(row+1)*h], []int32{u.id}); err != nil {
				return nil, err
			}
			out.Pos, out.Size, out.FirstSize = append(out.Pos, nn.At(at)), append(out.Size, 1),
				append(out.FirstSize, 1)
			at++
			continue
		}
		p := u.pic
		if e.shape.Blocks {
			out.Blocks = append(out.Blocks, nn.Block{First: row, End: row + p.rows()})
		}
		if len(p.texts()) > 0 {
			if err := e.interleave(out, p, at); err != nil {
				return nil, err
			}
			at += p.span()
			continue
		}
		size := len(p.tokens.x) / (1 + e.shape.Deep)
		copy(out.X[row*h:], p.tokens.x[:size])
		if e.shape.Deep > 0 {
			out.Deep = append(out.Deep, model.Deep{
				First: row, Levels: slices.Collect(slices.Chunk(p.tokens.x[size:], size)),
			})
		}
		if len(p.plan.Stages) > 0 {
			start := at
			var err error
			if p.inside, err = methods.NewInside(p.plan, p.tokens.reduction); err != nil {
				return nil, err
			}
			out.Staged = append(out.Staged, model.Staged{
				Inside: p.inside, First: row, Start: at, Extent: p.span(),
				At: func(row *reduce.Row) nn.Pos { return p.place(start, row) },
			})
		}
		if red := p.tokens.reduction; red == nil {
			for i := range p.shape.N {
				out.Pos, out.Size, out.FirstSize = append(out.Pos, p.shape.At(at, float64(i))),
					append(out.Size, 1), append(out.FirstSize, 1)
			}
		} else {
			for i := range red.Rows {
				r := &red.Rows[i]
				pos := nn.At(at + r.Position)
				if p.plan.Positions != "sequential" {
					pos = p.place(at, r)
				}
				out.Pos = append(out.Pos, pos)
			}
			out.Size = append(out.Size, red.LayerSizes(false)...)
			out.FirstSize = append(out.FirstSize, red.LayerSizes(true)...)
		}
		at += p.span()
	}
	out.Next = at
	return out, fits(n, at, e.context)
}

// interleave adds the rows of a reduced picture at position at and, at their places among them, the
// texts between its parts.
func (e *Engine) interleave(out *Rows, p *picture, at float64) error {
	red, texts, h := p.tokens.reduction, p.texts(), e.shape.Hidden
	sizes, first := red.LayerSizes(false), red.LayerSizes(true)
	start := len(out.Pos)
	add := func(pos nn.Pos, size, firstSize float32) []float32 {
		row := len(out.Pos)
		if p.plan.Positions == "sequential" {
			pos = nn.At(at + float64(row-start))
		}
		out.Pos, out.Size = append(out.Pos, pos), append(out.Size, size)
		out.FirstSize = append(out.FirstSize, firstSize)
		return out.X[row*h : (row+1)*h]
	}
	next := 0 // row
	rows := func(before float64) {
		for ; next < len(red.Rows) && p.at(0, red.Rows[next].Position)[0] < before; next++ {
			x := add(p.place(at, &red.Rows[next]), sizes[next], first[next])
			copy(x, p.tokens.x[next*h:(next+1)*h])
		}
	}
	for i, source := range p.shape.Views.Source {
		if source >= 0 {
			continue
		}
		rows(float64(i))
		x := add(p.shape.At(at, float64(i)), 1, 1)
		if err := e.m.Decoder().Embed(x, texts[:1]); err != nil {
			return err
		}
		texts = texts[1:]
	}
	rows(math.Inf(1))
	return nil
}

// fits returns an error if a prompt spans more positions than the context has.
func fits(rows int, positions float64, context int) error {
	if int(positions) <= context {
		return nil
	}
	return fmt.Errorf("engine: %w", &errs.ContextError{
		PromptTokens: rows, Positions: int(positions), Context: context,
	})
}

// span returns the positions that a picture takes.
func (p *picture) span() float64 {
	switch {
	case p.whole():
	case p.plan.Positions == "sequential":
		return float64(p.rows())
	case p.list != nil && p.list.places == nil:
		return float64(len(p.list.source))
	}
	return p.shape.Extent()
}

// extent returns the number of rows of units and the number of positions they span.
func extent(units []unit) (rows int, positions float64) {
	for _, u := range units {
		rows += u.rows()
		if u.pic == nil {
			positions++
		} else {
			positions += u.pic.span()
		}
	}
	return rows, positions
}
