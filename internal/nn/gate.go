package nn

import "sync/atomic"

// Gate stands before a weight that may still be read from its file. A nil Gate is open.
type Gate struct {
	open atomic.Bool
	wait func() error
}

// NewGate returns a gate that is open after wait has returned nil.
func NewGate(wait func() error) *Gate { return &Gate{wait: wait} }

// Pass returns once the weight may be used. It panics with a [*Unusable] if the weight never may.
func (g *Gate) Pass() {
	if g != nil && !g.open.Load() {
		g.enter()
	}
}

func (g *Gate) enter() {
	if err := g.wait(); err != nil {
		panic(&Unusable{err})
	}
	g.open.Store(true)
}

// Unusable is the value of a panic at a weight that cannot be used.
type Unusable struct{ Err error }

// Error returns why.
func (u *Unusable) Error() string { return u.Err.Error() }

// Unwrap returns why.
func (u *Unusable) Unwrap() error { return u.Err }
