package tensor

import "fmt"

// RowFloat32 widens row i of a [rows, len(dst)] tensor of F32, F16 or BF16 into dst.
func (t *Tensor) RowFloat32(dst []float32, i int) error {
	size := t.DType.Size()
	n := len(dst)
	if len(t.Shape) != 2 || t.Shape[1] != n || i < 0 || i >= t.Shape[0] {
		return fmt.Errorf("tensor: row %d of %d elements: outside of %v", i, n, t)
	}
	row := Tensor{DType: t.DType, Shape: []int{n}, Data: t.Data[i*n*size : (i+1)*n*size]}
	switch t.DType {
	case F16:
		WidenF16(dst, row.Data)
	case BF16:
		WidenBF16(dst, row.Data)
	default:
		v, err := row.Float32s()
		if err != nil {
			return err
		}
		copy(dst, v)
	}
	return nil
}
