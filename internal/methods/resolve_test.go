package methods

import (
	"testing"
)

// resolve resolves o for a picture of n tokens, of a model that refuses nothing.
func resolve(o Options, n int) (*Plan, error) {
	return Resolve(o, Facts{Tokens: n, Newlines: true, Axes: true})
}

// inLayers resolves o for n tokens and a decoder of so many layers.
func inLayers(o Options, n, layers int) (*Plan, error) {
	return Resolve(o, Facts{Tokens: n, Layers: layers, Newlines: true})
}

// mustResolve resolves o, which must be possible.
func mustResolve(t testing.TB, o Options, f Facts) *Plan {
	t.Helper()
	p, err := Resolve(o, f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
