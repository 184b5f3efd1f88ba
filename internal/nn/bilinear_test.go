package nn

import "testing"

// Ensure that samples of a linear resize have the shares of torch's interpolate: exact where sizes
// are equal, edges repeated, two samples also where it shrinks.
func TestBilinear(t *testing.T) {
	for _, c := range []struct {
		n, to int
		want  []Taps
	}{
		{3, 3, []Taps{{First: 0, Second: 1}, {First: 1, Second: 2}, {First: 2, Second: 2}}},
		{3, 2, []Taps{{First: 0, Second: 1, Share: 0.25}, {First: 1, Second: 2, Share: 0.75}}},
		{1, 2, []Taps{{First: 0, Second: 0}, {First: 0, Second: 0, Share: 0.25}}},
		{4, 1, []Taps{{First: 1, Second: 2, Share: 0.5}}},
	} {
		got := Bilinear(c.n, c.to)
		for i, want := range c.want {
			if got[i] != want {
				t.Errorf("%d to %d: sample %d: got %+v, want %+v", c.n, c.to, i, got[i], want)
			}
		}
	}
}
