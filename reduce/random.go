package reduce

// Random is the control that draws.

import (
	"math/rand/v2"
	"slices"
)

var randomMethod = &Method{
	Name: "random", Title: "random tokens (a control)", Site: AfterEncoder, Minimum: "1 token",
	Params: []Param{{"seed", "0", "same seed, same tokens"}},
	Cost:   "none",
	ops:    noOps,
	Notes:  Notes{Equations: "k tokens drawn without replacement, the same for the same seed everywhere.", Licence: noCode},
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
