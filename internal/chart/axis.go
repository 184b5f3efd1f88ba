package chart

import (
	"math"
	"strconv"
)

// axis maps values to pixels.
type axis struct {
	low, high float64 // values at its ends
	from, to  float64 // pixels of its ends
	log       bool
	ticks     []float64
}

func (a *axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log(v), math.Log(low), math.Log(high)
	}
	return a.from + (v-low)/(high-low)*(a.to-a.from)
}

// axes are the axes of a panel at (left, top).
func (p *Panel) axes(sh sheet, left, top float64) (x, y axis) {
	x = axis{from: left + sh.left, to: left + sh.width - marginRight, log: p.LogX}
	y = axis{from: top + sh.height - sh.bottom, to: top + marginTop}
	x.low, x.high = math.Inf(1), math.Inf(-1)
	y.low, y.high = math.Inf(1), math.Inf(-1)
	if p.Low < p.High {
		y.low, y.high = p.Low, p.High
	}
	for _, s := range p.Series {
		for i := range s.X {
			x.low, x.high = min(x.low, s.X[i]), max(x.high, s.X[i])
			y.low, y.high = min(y.low, s.Y[i]), max(y.high, s.Y[i])
		}
	}
	for _, v := range p.Ticks {
		x.low, x.high = min(x.low, v), max(x.high, v)
	}
	x.widen()
	y.widen()
	if x.ticks = p.Ticks; x.ticks == nil {
		x.ticks = round(x.low, x.high)
	}
	y.ticks = round(y.low, y.high)
	return x, y
}

// widen gives an axis of no values or of one a range.
func (a *axis) widen() {
	switch {
	case a.low > a.high:
		a.low, a.high = 1, 2
	case a.low == a.high && a.log:
		a.low, a.high = a.low/2, a.high*2
	case a.low == a.high:
		a.low, a.high = a.low-1, a.high+1
	}
}

// round returns the multiples of 1, 2 or 5 times a power of ten in a range, about five.
func round(low, high float64) (ticks []float64) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/5)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*factor) <= 6 {
			step *= factor
			break
		}
	}
	const close = 1e-9 // of a step, so that rounding loses no tick at an end
	last := int(math.Floor(high/step + close))
	for i := int(math.Ceil(low/step - close)); i <= last; i++ {
		ticks = append(ticks, float64(i)*step)
	}
	return ticks
}

func tickLabel(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
