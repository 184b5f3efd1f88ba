package engine

import (
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/nn"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Hooks bind a model in ways that only descriptions and measurements need: none for requests.
type Hooks struct {
	// Describe binds the weights without converting them. Such an engine says what Info and
	// package lab predict, and answers nothing.
	Describe bool

	// Weights, when not nil, makes the weights that the checkpoint lacks, for benchmarks of a
	// shape whose checkpoint is [checkpoint.FromConfig]'s. It returns a tensor of that shape: of
	// type d (F16 where the plan names none), which is kept as it is, or of another floating
	// type, which is converted to d. For vectors d is F32. Calls come one at a time. Blocks of m
	// are in huge pages and live as long as the engine.
	Weights func(m *kernel.Memory, name string, d tensor.DType, shape []int) *tensor.Tensor
	// Work, when not nil, counts the products of all layers.
	Work *nn.Work
	// Processor, when not nil, prepares pictures where the model has no picture processor.
	Processor imageproc.Processor
}
