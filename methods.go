package restore

import (
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/reduce"
)

// RegisterMethod adds a method of your own under m.Name, for all of the program: it is then a
// [Reduction.Base] like any other, alone and with RESTORE. criterion makes one for every
// picture. A method acts after the encoder, its name and those of its parameters are new,
// lower-case letters, digits and hyphens; what else is asked of m the error says.
// RegisterMethod may be called at any time, also while requests run.
func RegisterMethod(m reduce.Method, criterion func() reduce.Criterion) error {
	return methods.Register(m, criterion)
}

// Methods returns what every method says of itself, with its own parameters: no reduction,
// published methods, controls, then registered ones.
func Methods() []reduce.Method { return methods.Methods() }

// Parameters returns every parameter of reductions, with its default, its range and the
// methods that have it: those of all methods first.
func Parameters() []reduce.Parameter { return methods.Parameters() }
