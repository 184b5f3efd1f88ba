package methods

// A method before the encoder leaves out tokens whose pixels tell that another token stands for
// them; the encoder never sees them. It is a base by itself, alone or under RESTORE, or comes
// before another base (Options.Before), which then chooses among the tokens that were encoded.
//
// As a base, and before one, RESTORE counts: a row's size is the number of the picture's tokens for
// which it stands, also tokens that were not encoded. Positions and means count encoded tokens
// only. Without RESTORE the others are dropped.

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/reduce"
)

// beforeMethod is the part of a method's table entry for methods that leave out tokens before the
// encoder. It returns the token that stands for each token of in, of which only N, the grid and the
// pixels are set: a token that is encoded stands for itself, others come after theirs.
type beforeMethod func(in *reduce.Input, own own) (owner []int32, err error)

// Before is a method before the encoder with its parameters.
type Before struct {
	Option string // of Options that names it: "base" or "before"
	method *method
	own    own
	values []reduce.Value
}

// NewBefore returns what o does before the encoder, nil if nothing.
func NewBefore(o *Options) (*Before, error) {
	m, err := lookup(o.Base)
	if err != nil {
		return nil, err
	}
	option := "base"
	if m.before == nil {
		option = "before"
		if o.Before == "" || o.Before == "none" {
			return nil, nil
		}
		if m, err = lookup(o.Before); err != nil || m.before == nil {
			return nil, unknown("before", strconv.Quote(o.Before), before())
		}
	}
	b := &Before{Option: option, method: m, own: m.parameters()}
	d := new(reduce.Declaration)
	b.own.Declare(d)
	for _, name := range parameterNames(d.Parameters()) {
		if v, ok := o.Own[name]; ok {
			if err := d.Set(name, v); err != nil {
				return nil, err
			}
		}
	}
	b.values = notZero(d.Values())
	return b, nil
}

// Name returns the method's name.
func (b *Before) Name() string { return b.method.Name }

// Values returns the method's parameters, on which its choice depends besides the pixels.
func (b *Before) Values() []reduce.Value { return b.values }

// has reports whether the method has a parameter of that name.
func (b *Before) has(name string) bool {
	return b != nil && slices.ContainsFunc(parameters(), func(p reduce.Parameter) bool {
		return p.Name == name && slices.Contains(p.Methods, b.method.Name)
	})
}

// LogSizes returns what the encoder's attention adds to the scores of each token of p.Kept: the
// logarithm of the number of tokens for which it stands. It returns nil if that does not count.
func (b *Before) LogSizes(p *reduce.Pruned) []float32 {
	if a, ok := b.own.(interface{ attends() bool }); !ok || !a.attends() {
		return nil
	}
	sizes := make([]float32, len(p.Kept))
	for _, g := range p.Group {
		sizes[g]++
	}
	for i, n := range sizes {
		sizes[i] = float32(math.Log(float64(n)))
	}
	return sizes
}

// Choose returns which of the in.N tokens are encoded. It reads only the grid and the pixels.
func (b *Before) Choose(in *reduce.Input) (*reduce.Pruned, error) {
	if err := checkPixels(in, b.method.Name); err != nil {
		return nil, err
	}
	owner, err := b.method.before(in, b.own)
	if err != nil {
		return nil, fmt.Errorf("methods: %s: %w", b.method.Name, err)
	}
	p := &reduce.Pruned{N: in.N, Group: make([]int32, in.N)}
	for i, o := range owner {
		if int(o) == i {
			p.Group[i] = int32(len(p.Kept))
			p.Kept = append(p.Kept, o)
		} else {
			p.Group[i] = p.Group[o]
		}
	}
	return p, nil
}

// Apply returns in without the tokens that are not encoded.
func (b *Before) Apply(in *reduce.Input) (*reduce.Input, error) {
	if in.Views != nil {
		return nil, fmt.Errorf("methods: %s: got a picture in views, want a whole one",
			b.method.Name)
	}
	p, err := b.Choose(in)
	if err != nil || len(p.Kept) == p.N {
		return in, err
	}
	rows := make([]int32, 1, len(p.Kept)+1) // the class token's, then each token's
	for _, t := range p.Kept {
		rows = append(rows, t+1)
	}
	out := *in
	out.N, out.Pruned, out.GridH, out.GridW, out.Pixels = len(p.Kept), p, 0, 0, nil
	out.X = nn.Gathered(in.X, p.Kept, in.C)
	for _, a := range []*[]float32{
		&out.ClsAttn, &out.ClsAttnShallow, &out.ReceivedMid, &out.ReceivedDeep,
	} {
		*a = nn.GatheredHeads(*a, rows, len(*a)/(in.N+1), in.N+1, 1)
	}
	out.Cells = nn.Gathered(in.Cells, p.Kept, in.CellDim)
	out.ClipImage = nn.Gathered(in.ClipImage, p.Kept, in.ClipDim)
	out.Hidden = nn.Gathered(in.Hidden, rows, in.Cv)
	out.Keys = nn.GatheredHeads(in.Keys, rows, in.Heads, in.N+1, in.KeyDim)
	out.LastKeys = nn.Gathered(in.LastKeys, rows, len(in.LastQuery))
	return &out, nil
}

// checkPixels checks that in has the pixels of each token.
func checkPixels(in *reduce.Input, name string) error {
	switch {
	case len(in.Pixels) == 0:
		return fmt.Errorf("methods: %s: needs %s, got none", name, reduce.Pixels)
	case in.GridH < 1 || in.GridW < 1 || in.Cell < 1 || in.GridH*in.GridW != in.N:
		return fmt.Errorf("methods: %s: pixels: got %dx%d cells of %d pixels a side, want rows "+
			"and columns of %d tokens", name, in.GridH, in.GridW, in.Cell, in.N)
	case len(in.Pixels) != 3*in.N*in.Cell*in.Cell:
		return fmt.Errorf("methods: %s: pixels: got %d bytes, want %d (%d tokens of 3*%d*%d)",
			name, len(in.Pixels), 3*in.N*in.Cell*in.Cell, in.N, in.Cell, in.Cell)
	}
	return nil
}

// before are the values of Options.Before.
func before() []string {
	return append([]string{"none"}, namesOf(func(m *method) bool { return m.before != nil })...)
}

// tokens is the number of the picture's tokens before any was left out.
func (f *Facts) tokens() int {
	if f.Pruned != nil {
		return f.Pruned.N
	}
	return f.Tokens
}

// encodedOnly plans a base before the encoder. Every token that is encoded is kept.
func (p *Plan) encodedOnly(o *Options, d *reduce.Declaration) error {
	p.N, p.NVis, p.Keep, p.Gamma = p.facts.tokens(), p.facts.Tokens, p.facts.Tokens, 1
	if p.Restore {
		p.choose(o)
		p.MergePosition, p.Anchors, p.AnchorPool, p.Join = "", "", "", "count"
	}
	return p.complete(o, d)
}

// precede plans the method before the base, and where the base's tokens come from.
func (p *Plan) precede(o *Options) error {
	if p.before == nil || p.method.before != nil {
		return nil
	}
	p.Before = &reduce.Before{
		Base: p.before.Name(), N: p.facts.tokens(), NVis: p.facts.Tokens, Own: p.before.values,
	}
	if p.inside == nil || p.facts.Pruned == nil {
		return nil
	}
	first := Options{
		Base: o.Before, Restore: o.Restore, Compat: o.Compat, Positions: o.Positions,
		Calibrate: o.Calibrate, Own: map[string]any{},
	}
	for name, v := range o.Own {
		if p.before.has(name) {
			first.Own[name] = v
		}
	}
	var err error
	p.first, err = Resolve(first, p.facts)
	return err
}

// BeforeDecoder returns the plan of what happens before the decoder: what leaves out tokens before
// a base inside it, or the plan itself.
func (p *Plan) BeforeDecoder() *Plan {
	if p.first != nil {
		return p.first
	}
	return p
}

// checkBefore refuses a method before the base with which the base cannot work.
func (p *Plan) checkBefore(o *Options) error {
	if o.Before == "" || o.Before == "none" {
		return nil
	}
	m := p.method
	cannot := func(why string) error {
		return refused("before", errs.Conflict, o.Before, "none", m.Name+" "+why)
	}
	needs := m.Require(o.Restore)
	switch {
	case m == noneMethod:
		return useless("before", o.Before, "without a base (want base "+o.Before+")")
	case m.before != nil:
		return useless("before", o.Before, "with base "+m.Name+" (which is that method)")
	case m.encoder != nil:
		return cannot("acts inside the encoder, on all tokens")
	case slices.Contains(needs, reduce.Shrunk):
		return cannot("encodes the picture at another size")
	case slices.Contains(needs, reduce.Grid):
		return cannot("reads the rows and columns of all tokens")
	case slices.Contains(needs, reduce.Pixels):
		return cannot("reads the pixels of all tokens")
	}
	return nil
}

// unpruned describes r, which counts the tokens that were encoded, by the picture's tokens.
func unpruned(r *reduce.Reduction, p *reduce.Pruned) {
	groups := make([][]int32, len(p.Kept)) // for which tokens each stands
	if r.Options.Restore {
		for t, g := range p.Group {
			groups[g] = append(groups[g], int32(t))
		}
	} else {
		for i := range p.Kept {
			groups[i] = p.Kept[i : i+1]
		}
	}
	rename := func(list []int32) {
		for i, t := range list {
			if t >= 0 {
				list[i] = p.Kept[t]
			}
		}
	}
	rename(r.Kept)
	rename(r.Anchors)
	rename(r.Rest)
	r.N, r.Group = p.N, slices.Repeat([]int32{-1}, p.N)
	for i := range r.Rows {
		row := &r.Rows[i]
		var members []int32
		for _, t := range row.Members {
			members = append(members, groups[t]...)
		}
		slices.Sort(members)
		row.Members, row.Size = members, max(1, len(members))
		if row.Anchor >= 0 {
			row.Anchor = p.Kept[row.Anchor]
		}
		if r.Options.Positions != "sequential" {
			row.Position = p.At(row.Position)
		}
		for _, t := range members {
			r.Group[t] = int32(i)
		}
	}
}
