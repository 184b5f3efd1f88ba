package imageproc

import (
	"fmt"
	"math"
)

// Filter is a resampling kernel, numbered as in preprocessor_config.json
// ("resample") and in Pillow.
type Filter int

// The kernels, with their support in source pixels at scale 1.
const (
	Nearest  Filter = 0 // no kernel: the pixel at ⌊(i+0.5)·scale⌋
	Lanczos  Filter = 1 // 3
	Bilinear Filter = 2 // 1
	Bicubic  Filter = 3 // 2, a = -0.5
	Box      Filter = 4 // 0.5
	Hamming  Filter = 5 // 1
)

// String returns the filter's lower-case name.
func (f Filter) String() string {
	names := [...]string{"nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"}
	if f < 0 || int(f) >= len(names) {
		return fmt.Sprintf("filter(%d)", int(f))
	}
	return names[f]
}

func (f Filter) support() float64 {
	switch f {
	case Lanczos:
		return 3
	case Bilinear, Hamming:
		return 1
	case Bicubic:
		return 2
	default:
		return 0.5
	}
}

// weight evaluates the kernel. Every product is wrapped in float64(...), which forbids fused
// multiply-adds: a fused one can change the last fixed-point bit of a weight.
func (f Filter) weight(x float64) float64 {
	switch f {
	case Box:
		if x > -0.5 && x <= 0.5 {
			return 1
		}
	case Bilinear:
		if x = math.Abs(x); x < 1 {
			return 1 - x
		}
	case Hamming:
		if x = math.Abs(x); x == 0 {
			return 1
		} else if x < 1 {
			x = float64(x * math.Pi)
			c := float64(hammingB * math.Cos(x))
			return float64(math.Sin(x) / x * (hammingA + c))
		}
	case Bicubic:
		const a = -0.5
		if x = math.Abs(x); x < 1 {
			t := float64((a+2)*x) - (a + 3)
			t = float64(t * x)
			return float64(t*x) + 1
		} else if x < 2 {
			t := float64((x-5)*x) + 8
			t = float64(t*x) - 4
			return float64(t * a)
		}
	case Lanczos:
		if x >= -3 && x < 3 {
			return float64(sinc(x) * sinc(x/3))
		}
	}
	return 0
}

// The reference has the Hamming window's constants in single precision.
const (
	hammingA = float64(float32(0.54))
	hammingB = float64(float32(0.46))
)

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x = float64(x * math.Pi)
	return math.Sin(x) / x
}

const (
	fixedBits = 22 // 32 - 8 bits of pixel - 2 bits of headroom
	fixedOne  = 1 << fixedBits
	fixedHalf = 1 << (fixedBits - 1)
)

// taps are the weights of one output sample: source samples first, first+1, … times k, plus the
// contribution of samples outside the stored picture.
type taps struct {
	first int
	k     []int32
	// outside is the sum of the weights on the border around the stored picture, which has one
	// colour.
	outside int32
}

// axis resamples one dimension. The resampled line of n samples may be longer than the stored one:
// stored samples are [pad, pad+stored), the others are border.
type axis struct {
	n, stored, pad int
	out            int
	filter         Filter

	from    int   // first requested output
	nearest []int // Nearest: source index of outputs from, from+1, …
}

// newAxis resamples n samples, of which [pad, pad+stored) are stored, to out samples; only the
// outputs [from, from+count) may be requested.
func newAxis(n, stored, pad, out, from, count int, f Filter) axis {
	a := axis{n: n, stored: stored, pad: pad, out: out, filter: f, from: from}
	if f == Nearest && n != out {
		// The reference steps through the source by repeated addition, whose rounding matters at
		// exact halves.
		scale := float64(n) / float64(out)
		at := float64(scale * 0.5)
		for i := range from + count {
			if i >= from {
				a.nearest = append(a.nearest, min(int(at), n-1))
			}
			at += scale
		}
	}
	return a
}

// identity reports whether the axis keeps its size; it is then copied without filtering.
func (a axis) identity() bool { return a.n == a.out }

// span returns the source range [lo, hi) that outputs [from, to) read.
func (a axis) span(from, to int) (lo, hi int) {
	lo, _ = a.bounds(from)
	_, hi = a.bounds(to - 1)
	return lo, hi
}

// bounds returns the source range [lo, hi) of output i, in the padded line.
func (a axis) bounds(i int) (lo, hi int) {
	if a.identity() {
		return i, i + 1
	}
	if a.filter == Nearest {
		lo = a.nearest[i-a.from]
		return lo, lo + 1
	}
	scale := float64(a.n) / float64(a.out)
	support := float64(a.filter.support() * math.Max(scale, 1))
	center := float64((float64(i) + 0.5) * scale)
	lo = max(int(center-support+0.5), 0)
	hi = min(int(center+support+0.5), a.n)
	return lo, hi
}

// taps computes the weights of output i, in float64 and then fixed point.
// w is scratch; the result is appended to k, which is returned too.
func (a axis) taps(i int, w []float64, k []int32) (taps, []float64, []int32) {
	lo, hi := a.bounds(i)
	first := len(k)
	if a.identity() || a.filter == Nearest {
		k = append(k, fixedOne)
	} else {
		w = a.weights(i, w[:0])
		for _, v := range w {
			v = float64(v * fixedOne)
			if v < 0 {
				k = append(k, int32(v-0.5))
			} else {
				k = append(k, int32(v+0.5))
			}
		}
	}
	t := taps{first: lo, k: k[first:]}
	// Keep only the taps on stored samples; the others are on the border.
	for len(t.k) > 0 && t.first < a.pad {
		t.outside += t.k[0]
		t.first, t.k = t.first+1, t.k[1:]
	}
	for len(t.k) > 0 && hi > a.pad+a.stored {
		hi--
		t.outside += t.k[len(t.k)-1]
		t.k = t.k[:len(t.k)-1]
	}
	t.first -= a.pad
	return t, w, k
}

// weights appends the normalised weights of output i.
func (a axis) weights(i int, w []float64) []float64 {
	scale := float64(a.n) / float64(a.out)
	inv := 1 / math.Max(scale, 1)
	center := float64((float64(i) + 0.5) * scale)
	lo, hi := a.bounds(i)
	sum := 0.0
	for j := range hi - lo {
		v := a.filter.weight(float64((float64(j+lo) - center + 0.5) * inv))
		w = append(w, v)
		sum += v
	}
	if sum != 0 {
		for j := range w {
			w[j] /= sum
		}
	}
	return w
}

// maxScratch limits the intermediate picture and the weights of one resize. Only pictures that are
// extremely long in one direction reach it.
const maxScratch = 1 << 30

// maxSteps limits the additions of the nearest filter.
const maxSteps = 1 << 26

// view is a picture at (x, y) on a larger canvas of one colour.
type view struct {
	*Picture
	width, height int // of the canvas
	x, y          int // of the picture on it
	border        [3]byte
}

func whole(p *Picture) view { return view{Picture: p, width: p.Width, height: p.Height} }

// window is a rectangle of the resized picture.
type window struct{ x, y, w, h int }

// resize resamples v to ow×oh and writes the window win of the result to dst, whose rows are stride
// bytes apart. It touches only the source pixels for the window. Every output pixel is the same as
// in a full resize.
func (v view) resize(dst []byte, stride, ow, oh int, win window, f Filter) error {
	if f == Nearest && max(win.x+win.w, win.y+win.h) > maxSteps {
		return fmt.Errorf("imageproc: picture %dx%d: too elongated to resize to %dx%d with "+
			"the nearest filter", v.Width, v.Height, ow, oh)
	}
	hor := newAxis(v.width, v.Width, v.x, ow, win.x, win.w, f)
	ver := newAxis(v.height, v.Height, v.y, oh, win.y, win.h, f)

	// Rows of the stored picture that the vertical pass will read.
	lo, hi := ver.span(win.y, win.y+win.h)
	y0, y1 := min(max(lo-v.y, 0), v.Height), min(max(hi-v.y, 0), v.Height)
	perOut := math.Ceil(2*f.support()*math.Max(float64(v.width)/float64(ow), 1)) + 2
	if mid, weights := float64(y1-y0)*float64(win.w)*3, perOut*float64(win.w)*4; mid > maxScratch ||
		weights > maxScratch {
		return fmt.Errorf("imageproc: picture %dx%d: too elongated to resize to %dx%d: "+
			"needs %.0f MB between the passes, limit %d MB",
			v.Width, v.Height, ow, oh, math.Max(mid, weights)/1e6, maxScratch/1000000)
	}

	cols := make([]taps, win.w)
	k := make([]int32, 0, int(perOut)*win.w)
	var w []float64
	for x := range cols {
		cols[x], w, k = hor.taps(win.x+x, w, k)
	}
	row := win.w * 3
	mid := make([]byte, (y1-y0)*row)
	for y := y0; y < y1; y++ {
		horizontal(mid[(y-y0)*row:][:row], v.Pix[y*v.Width*3:][:v.Width*3], cols, v.border)
	}
	borderRow := make([]byte, row)
	if v.width != v.Width || v.height != v.Height {
		for x := range win.w {
			var sum int32
			for _, kv := range cols[x].k {
				sum += kv
			}
			for c := range 3 {
				borderRow[x*3+c] = clip8(fixedHalf + int32(v.border[c])*(sum+cols[x].outside))
			}
		}
	}
	acc := make([]int32, row)
	for y := range win.h {
		var t taps
		t, w, k = ver.taps(win.y+y, w, k[:0])
		t.first -= y0
		vertical(dst[y*stride:][:row], mid, t, borderRow, acc)
	}
	return nil
}

// horizontal resamples one row of RGB.
func horizontal(dst, src []byte, cols []taps, border [3]byte) {
	for x := range cols {
		t := &cols[x]
		r := fixedHalf + t.outside*int32(border[0])
		g := fixedHalf + t.outside*int32(border[1])
		b := fixedHalf + t.outside*int32(border[2])
		if len(t.k) > 0 {
			s := src[t.first*3:][:len(t.k)*3]
			for _, k := range t.k {
				if len(s) < 3 {
					break
				}
				r += int32(s[0]) * k
				g += int32(s[1]) * k
				b += int32(s[2]) * k
				s = s[3:]
			}
		}
		d := dst[x*3:][:3]
		d[0], d[1], d[2] = clip8(r), clip8(g), clip8(b)
	}
}

// vertical combines rows of mid, each len(dst) bytes, into dst.
func vertical(dst, mid []byte, t taps, border []byte, acc []int32) {
	n := len(dst)
	acc = acc[:n]
	if len(t.k) == 1 && t.k[0] == fixedOne && t.outside == 0 {
		copy(dst, mid[t.first*n:][:n])
		return
	}
	for i := range acc {
		acc[i] = fixedHalf + t.outside*int32(border[i])
	}
	for j, k := range t.k {
		src := mid[(t.first+j)*n:][:n]
		for i, v := range src {
			acc[i] += int32(v) * k
		}
	}
	for i, v := range acc {
		dst[i] = clip8(v)
	}
}

// clip8 is the integer part of a fixed-point value, clamped to a byte.
func clip8(v int32) byte {
	v >>= fixedBits
	if uint32(v) > 255 {
		if v < 0 {
			return 0
		}
		return 255
	}
	return byte(v)
}
