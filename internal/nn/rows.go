package nn

// Buffer grows *b to n elements and returns it, with undefined content, so that a workspace can
// reuse one allocation.
func Buffer(b *[]float32, n int) []float32 {
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	*b = (*b)[:n]
	return *b
}

// CopyRows copies rows rows of width elements from src to dst. Rows start srcStride and dstStride
// elements apart, at columns srcCol and dstCol.
func CopyRows(
	dst []float32, dstStride, dstCol int, src []float32, srcStride, srcCol, rows, width int,
) {
	for r := range rows {
		copy(dst[r*dstStride+dstCol:r*dstStride+dstCol+width],
			src[r*srcStride+srcCol:r*srcStride+srcCol+width])
	}
}

// Gather copies the rows idx of src [*, width] into dst [len(idx), width].
func Gather(dst, src []float32, idx []int32, width int) {
	for i, r := range idx {
		copy(dst[i*width:(i+1)*width], src[int(r)*width:(int(r)+1)*width])
	}
}

// AddRepeated adds v to every len(v) elements of x: learned positions, which are the same for every
// picture.
func AddRepeated(x, v []float32) {
	for i := 0; i < len(x); i += len(v) {
		for j, b := range v {
			x[i+j] += b
		}
	}
}

// HeadsFirst returns a copy of x [rows, heads·dim] as [heads, rows, dim].
func HeadsFirst(x []float32, rows, heads, dim int) []float32 {
	out := make([]float32, rows*heads*dim)
	for r := range rows {
		for h := range heads {
			copy(out[(h*rows+r)*dim:(h*rows+r+1)*dim], x[(r*heads+h)*dim:(r*heads+h+1)*dim])
		}
	}
	return out
}

// Transposed returns x [rows, width] as [width, rows].
func Transposed(x []float32, width int) []float32 {
	out, rows := make([]float32, len(x)), len(x)/width
	for r := range rows {
		for c, v := range x[r*width : (r+1)*width] {
			out[c*rows+r] = v
		}
	}
	return out
}

// Twice returns x [rows, width] with every row repeated after itself:
// [rows, 2·width].
func Twice(x []float32, rows, width int) []float32 {
	out := make([]float32, 0, 2*rows*width)
	for r := range rows {
		row := x[r*width : (r+1)*width]
		out = append(append(out, row...), row...)
	}
	return out
}

// GroupMean writes the mean of every group consecutive rows of src [*, width]
// into dst [*/group, width].
func GroupMean(dst, src []float32, group, width int) {
	scale := 1 / float32(group)
	for i := range len(dst) / width {
		d := dst[i*width : (i+1)*width]
		clear(d)
		for r := range group {
			for j, v := range src[(i*group+r)*width : (i*group+r+1)*width] {
				d[j] += scale * v
			}
		}
	}
}

// MeanRows returns the mean of the rows of x [rows, *].
func MeanRows(x []float32, rows int) []float32 {
	width := len(x) / rows
	out, scale := make([]float32, width), 1/float32(rows)
	for r := range rows {
		for j, v := range x[r*width : (r+1)*width] {
			out[j] += scale * v
		}
	}
	return out
}

// Columns returns a copy of width columns of x [rows, stride] from col on: [rows, width].
func Columns(x []float32, rows, stride, col, width int) []float32 {
	out := make([]float32, rows*width)
	CopyRows(out, width, 0, x, stride, col, rows, width)
	return out
}

// BelowZeros returns a copy of x [rows, width] below a row of zeros.
func BelowZeros(x []float32, width int) []float32 {
	out := make([]float32, width+len(x))
	copy(out[width:], x)
	return out
}

// WithoutFirst returns a copy of x [Σ rows, width] without the first row of every part.
func WithoutFirst(x []float32, rows []int, width int) []float32 {
	out := make([]float32, 0, len(x))
	at := 0
	for _, n := range rows {
		out = append(out, x[(at+1)*width:(at+n)*width]...)
		at += n
	}
	return out
}

// Joined returns parts concatenated; a single part is returned itself.
func Joined(parts [][]float32) []float32 {
	if len(parts) == 1 {
		return parts[0]
	}
	var out []float32
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// ColumnsBelowZeros returns, for each row of x [heads, stride], a zero and width numbers from col
// on: [heads, 1+width].
func ColumnsBelowZeros(x []float32, heads, stride, col, width int) []float32 {
	out := make([]float32, heads*(1+width))
	for h := range heads {
		copy(out[h*(1+width)+1:], x[h*stride+col:][:width])
	}
	return out
}
