package restore

import (
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// RegisterMethod adds your own method under m.Name to the whole program. It is then a
// [Reduction.Base] like any other, with RESTORE and Plain. criterion makes a new criterion; it is
// called for every picture, and wherever options are checked. The method runs after the encoder.
// Its name and its parameters' names must be new and consist of lower-case letters, digits and
// hyphens. The error says what else is wrong with m. RegisterMethod may be called at any time, also
// while requests run.
func RegisterMethod(m reduce.Method, criterion func() reduce.Criterion) error {
	return methods.Register(m, criterion)
}

// Methods returns the description of every method, with its own parameters: "none", then
// published methods, controls, and registered ones.
func Methods() []reduce.Method { return methods.Methods() }

// Parameters returns every parameter of reductions, with its default, its range and the methods
// that take it. Parameters that all methods take come first.
func Parameters() []reduce.Parameter { return methods.Parameters() }
