package overlay

import (
	"cmp"
	"image/color"
	"math"
	"slices"

	"github.com/restore-vlm/restore/reduce"
)

// lab is a colour in OKLab, a space in which equal distances look about equally different.
type lab struct{ l, a, b float64 }

func (c lab) distance(o lab) float64 {
	// Lightness counts half, because the picture below also changes a tint's lightness.
	return math.Sqrt(0.25*(c.l-o.l)*(c.l-o.l) + (c.a-o.a)*(c.a-o.a) + (c.b-o.b)*(c.b-o.b))
}

// rgb converts to sRGB; ok is false outside its gamut. Constants: B. Ottosson, "A perceptual color
// space for image processing".
func (c lab) rgb() (out color.NRGBA, ok bool) {
	l := math.Pow(c.l+0.3963377774*c.a+0.2158037573*c.b, 3)
	m := math.Pow(c.l-0.1055613458*c.a-0.0638541728*c.b, 3)
	s := math.Pow(c.l-0.0894841775*c.a-1.2914855480*c.b, 3)
	ok = true
	channel := func(v float64) uint8 {
		if v < 0 || v > 1 {
			ok = false
		}
		v = max(0, min(1, v))
		if v <= 0.0031308 {
			v *= 12.92
		} else {
			v = 1.055*math.Pow(v, 1/2.4) - 0.055
		}
		return uint8(255*v + 0.5)
	}
	out = color.NRGBA{
		channel(4.0767416621*l - 3.3077115913*m + 0.2309699292*s),
		channel(-1.2684380046*l + 2.6097574011*m - 0.3413193965*s),
		channel(-0.0041960863*l - 0.7034186147*m + 1.7076147010*s), 255,
	}
	return out, ok
}

// candidates are the vivid colours for tints.
func candidates() []lab {
	var out []lab
	for _, l := range []float64{0.50, 0.60, 0.70, 0.80} {
		for _, chroma := range []float64{0.12, 0.16, 0.20, 0.24} {
			for h := range 48 {
				sin, cos := math.Sincos(2 * math.Pi * float64(h) / 48)
				c := lab{l, chroma * cos, chroma * sin}
				if _, ok := c.rgb(); ok {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// palette returns n colours, each the candidate farthest from the earlier ones; when the candidates
// run out, the colours repeat.
func palette(n int) []lab {
	all := candidates()
	near := make([]float64, len(all)) // distance to the nearest chosen colour
	for i := range near {
		near[i] = math.Inf(1)
	}
	var out []lab
	for next := 0; len(out) < min(n, len(all)); {
		out = append(out, all[next])
		for i, c := range all {
			near[i] = min(near[i], c.distance(all[next]))
		}
		for i := range near {
			if near[i] > near[next] {
				next = i
			}
		}
	}
	for i := 0; len(out) < n; i++ {
		out = append(out, out[i])
	}
	return out
}

// tinter assigns colours to groups in a sequence of drawings: a group keeps the colour that most of
// its patches had in the previous drawing.
type tinter struct {
	colours []lab
	before  map[int32]int // colour of each patch's token in the last drawing
}

// newTinter prepares for drawings of at most n groups.
func newTinter(n int) *tinter { return &tinter{colours: palette(n)} }

// groups returns how many rows of r stand for groups.
func groups(r *reduce.Reduction) (n int) {
	for i := range r.Rows {
		if grouped(&r.Rows[i]) {
			n++
		}
	}
	return n
}

// apart is the least distance between the colours of two adjacent groups for one to keep its colour
// from the previous drawing.
const apart = 0.12

// tints returns a colour for each group, all different (up to several hundred), indexed by row. The
// largest groups choose first: the colour that their patches had, else the one farthest from the
// colours of adjacent groups.
func (t *tinter) tints(r *reduce.Reduction, panels []*panel) []color.NRGBA {
	var order []int
	for g := range r.Rows {
		if grouped(&r.Rows[g]) {
			order = append(order, g)
		}
	}
	slices.SortStableFunc(order,
		func(a, b int) int { return cmp.Compare(r.Rows[b].Size, r.Rows[a].Size) })
	taken := make([]bool, len(t.colours))
	chosen := map[int32]int{}
	out := make([]color.NRGBA, len(r.Rows))
	touching := neighbours(r.Group, panels)
	distance := func(g int, c lab) float64 { // from the colours of adjacent groups
		d := math.Inf(1)
		for _, o := range touching[int32(g)] {
			if other, ok := chosen[o]; ok {
				d = min(d, c.distance(t.colours[other]))
			}
		}
		return d
	}
	choose := func(g, at int) {
		chosen[int32(g)], taken[at] = at, true
		out[g], _ = t.colours[at].rgb()
	}
	var rest []int
	for _, g := range order {
		if at, ok := t.kept(r.Rows[g].Members); ok && !taken[at] &&
			distance(g, t.colours[at]) >= apart {
			choose(g, at)
		} else {
			rest = append(rest, g)
		}
	}
	for _, g := range rest {
		best, bestAt := math.Inf(-1), 0
		for i, c := range t.colours {
			if d := distance(g, c); !taken[i] && d > best {
				best, bestAt = d, i
			}
		}
		choose(g, bestAt)
	}
	t.before = map[int32]int{}
	for g, at := range chosen {
		for _, m := range r.Rows[g].Members {
			t.before[m] = at
		}
	}
	return out
}

// kept returns the colour that most of the patches had; false if none had one.
func (t *tinter) kept(members []int32) (at int, ok bool) {
	count := map[int]int{}
	for _, m := range members {
		if c, had := t.before[m]; had {
			count[c]++
		}
	}
	most := 0
	for c, n := range count {
		if n > most || n == most && c < at {
			at, most = c, n
		}
	}
	return at, most > 0
}

// neighbours lists, per group, the groups that share an edge or a corner with it, ascending.
func neighbours(group []int32, panels []*panel) map[int32][]int32 {
	out := map[int32][]int32{}
	for _, p := range panels {
		for i, t := range p.tokens {
			y, x := i/p.gridW, i%p.gridW
			for _, d := range [][2]int{{-1, -1}, {-1, 0}, {-1, 1}, {0, -1}} {
				v, u := y+d[0], x+d[1]
				if t < 0 || v < 0 || u < 0 || u >= p.gridW || p.tokens[v*p.gridW+u] < 0 {
					continue
				}
				if g, o := group[t], group[p.tokens[v*p.gridW+u]]; o != g {
					out[g], out[o] = append(out[g], o), append(out[o], g)
				}
			}
		}
	}
	for g, o := range out {
		slices.Sort(o)
		out[g] = slices.Compact(o)
	}
	return out
}
