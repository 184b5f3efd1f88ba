package folder

import (
	"bytes"
	"slices"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Ensure that convolutions in MLX's files, whose channels are last, get their channels first, also
// in ranges that begin within an output, and that all else stays as it is.
func TestChannelsFirst(t *testing.T) {
	const out, height, width, channels = 2, 4, 5, 3
	last := make([]float32, out*height*width*channels)
	first := make([]float32, len(last))
	for i := range last {
		last[i] = float32(i)
		o, y, x, c := i/(height*width*channels), i/(width*channels)%height, i/channels%width,
			i%channels
		first[((o*channels+c)*height+y)*width+x] = last[i]
	}
	for format, want := range map[string]struct {
		shape  []int
		values []float32
	}{
		"mlx": {[]int{out, channels, height, width}, first},
		"pt":  {[]int{out, height, width, channels}, last},
	} {
		var b bytes.Buffer
		if err := checkpoint.WriteSafetensors(&b, map[string]*tensor.Tensor{
			"conv":   tensor.From([]int{out, height, width, channels}, last),
			"matrix": tensor.From([]int{out, height * width * channels}, last),
			"none":   tensor.From([]int{out, 0, 1, 0}, []float32{}),
		}, map[string]string{"format": format}); err != nil {
			t.Fatal(err)
		}
		weights, err := modelWeights(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		w := weights["conv"]
		got, err := w.Float32s()
		if err != nil || !slices.Equal(w.Shape, want.shape) || !slices.Equal(got, want.values) {
			t.Errorf("%s: got %v %v %v", format, w.Shape, got, err)
		}
		row := want.shape[3]
		part := make([]float32, 9*row)
		if err := w.Floats(part, 7*row); err != nil ||
			!slices.Equal(part, want.values[7*row:16*row]) {
			t.Errorf("%s: rows 7 to 15: got %v %v", format, part, err)
		}
		if got, err := weights["matrix"].Float32s(); err != nil || !slices.Equal(got, last) {
			t.Errorf("%s: matrix: got %v %v", format, got, err)
		}
		if got, err := weights["none"].Float32s(); err != nil || len(got) != 0 {
			t.Errorf("%s: no numbers: got %v %v", format, got, err)
		}
	}
}
