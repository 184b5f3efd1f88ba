package methods

// Random is the control that chooses tokens at random.

import (
	"math/rand/v2"
	"slices"

	"github.com/restore-vlm/restore/reduce"
)

var randomMethod = &method{
	Method: reduce.Method{
		Name:    "random",
		Title:   "random tokens (a control)",
		Summary: "Keeps patches at random, for comparison.",
		Site:    reduce.AfterEncoder,
		Minimum: "1 token",
		Draws:   true,
		Cost:    "none",
		Notes: reduce.Notes{
			Equations: "k tokens drawn without replacement, the same for the same seed everywhere.",
			Licence:   noCode,
		},
	},
	ops: noOps,
	pick: func(w *work, k int) (*selection, error) {
		rng := rand.New(rand.NewPCG(uint64(w.o.Seed), uint64(w.in.Seed)))
		t := iota32(w.in.N)
		for i := range k {
			j := i + rng.IntN(len(t)-i)
			t[i], t[j] = t[j], t[i]
		}
		slices.Sort(t[:k])
		return &selection{kept: t[:k:k]}, nil
	},
}
