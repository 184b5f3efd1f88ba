package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

const (
	z95 = 1.959963984540054 // the normal distribution's 97.5 % point
	// resamples are the draws of a bootstrap: its bounds then vary by about 0.1 standard errors.
	resamples = 2000
)

// Interval is a 95 % interval.
type Interval [2]float64

// String gives the bounds as "84.1…90.3".
func (i Interval) String() string { return fmt.Sprintf("%.1f…%.1f", i[0], i[1]) }

// Signed gives the bounds as "-1.2…+0.4".
func (i Interval) Signed() string { return fmt.Sprintf("%+.1f…%+.1f", i[0], i[1]) }

// Round rounds the bounds to a tenth.
func (i Interval) Round() Interval { return Interval{Tenth(i[0]), Tenth(i[1])} }

// Tenth rounds to a tenth.
func Tenth(v float64) float64 { return math.Round(10*v) / 10 }

// Wilson returns the score interval, as shares, of right successes among n questions counted as
// independent; [0, 1] for n = 0. With p = right/n and z = 1.96:
//
//	(p + z²/2n ± z·√(p(1-p)/n + z²/4n²)) / (1 + z²/n)
func Wilson(right, n int) Interval {
	if n == 0 {
		return Interval{0, 1}
	}
	p, m := float64(right)/float64(n), float64(n)
	mid := p + z95*z95/(2*m)
	half := z95 * math.Sqrt(p*(1-p)/m+z95*z95/(4*m*m))
	scale := 1 + z95*z95/m
	return Interval{max(0, (mid-half)/scale), min(1, (mid+half)/scale)}
}

// Bootstrap returns the 2.5 % and 97.5 % points of several figures over samples of clusters. A
// sample draws as many clusters as there are, with replacement; a cluster is a picture, because the
// questions about one picture are right or wrong together. figures fills out for the numbers of the
// drawn clusters; a NaN is left out, and a figure that is always NaN has the interval [NaN, NaN].
func Bootstrap(
	clusters, count int, seed int64, figures func(drawn []int, out []float64),
) []Interval {
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	drawn, out := make([]int, clusters), make([]float64, count)
	values := make([][]float64, count)
	for range resamples {
		for i := range drawn {
			drawn[i] = random.IntN(clusters)
		}
		figures(drawn, out)
		for i, v := range out {
			if !math.IsNaN(v) {
				values[i] = append(values[i], v)
			}
		}
	}
	intervals := make([]Interval, count)
	for i, v := range values {
		slices.Sort(v)
		at := func(q float64) float64 {
			if len(v) == 0 {
				return math.NaN()
			}
			return v[int(math.Round(q*float64(len(v)-1)))]
		}
		intervals[i] = Interval{at(0.025), at(0.975)}
	}
	return intervals
}

// McNemar is the two-sided exact test of whether lost and gained are equally likely: min(1, 2·Σ
// C(n, i)/2ⁿ for i up to the smaller). For points other than 0 and 1 it is the sign test.
func McNemar(lost, gained int) float64 {
	n := lost + gained
	if n == 0 {
		return 1
	}
	log := func(i int) float64 { v, _ := math.Lgamma(float64(i) + 1); return v }
	sum := 0.0
	for i := range min(lost, gained) + 1 {
		sum += math.Exp(log(n) - log(i) - log(n-i) - float64(n)*math.Ln2)
	}
	return min(1, 2*sum)
}
