package engine

import (
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Hooks change how a model is bound, for descriptions and measurements. Requests need none.
type Hooks struct {
	// Describe binds the weights without converting them. The engine then serves Info and the
	// predictions of package lab, but answers no requests.
	Describe bool

	// Weights, when not nil, makes the weights that the checkpoint lacks, for benchmarks of a shape
	// from [checkpoint.FromConfig]. It returns a tensor of the given shape, of type d (F16 if the
	// plan names none) or of another floating type, which is then converted to d. For vectors, d is
	// F32. Calls come one at a time. Memory from m is in huge pages and lives as long as the
	// engine. With Describe it is [NoData].
	Weights func(m *kernel.Memory, name string, d tensor.DType, shape []int) *tensor.Tensor
	// Work, when not nil, counts the products and the attention of all layers.
	Work *nn.Work
	// Processor, when not nil, prepares pictures if the model has no picture processor.
	Processor imageproc.Processor
}

// NoData is the [Hooks.Weights] of a model that is only described: tensors without data, of the
// types of published files, which a plan converts.
func NoData(_ *kernel.Memory, _ string, d tensor.DType, shape []int) *tensor.Tensor {
	if d != tensor.F32 {
		d = tensor.F16
	}
	return &tensor.Tensor{DType: d, Shape: shape}
}
