package scenebench

import (
	"math"
	"math/rand/v2"
	"slices"
)

// All is the name under which figures over all questions are kept next to those of single tasks.
const All = "all"

// VsFull is the name of the mean over tasks of reduced / unreduced accuracy.
const VsFull = "vs_full"

const (
	z95 = 1.959963984540054 // the normal distribution's 97.5 % point
	// of the bootstrap: its bounds then stray by about 0.1 standard errors
	resamples = 2000
)

// Interval is a 95 % interval, both bounds in percent or in points.
type Interval [2]float64

// Wilson returns the score interval, as shares, of right successes among n questions counted as
// independent; [0, 1] for n = 0. With p = right/n and z = 1.96:
//
//	(p + z²/2n ± z·√(p(1-p)/n + z²/4n²)) / (1 + z²/n)
func Wilson(right, n int) (low, high float64) {
	if n == 0 {
		return 0, 1
	}
	p, m := float64(right)/float64(n), float64(n)
	mid := p + z95*z95/(2*m)
	half := z95 * math.Sqrt(p*(1-p)/m+z95*z95/(4*m*m))
	scale := 1 + z95*z95/m
	return max(0, (mid-half)/scale), min(1, (mid+half)/scale)
}

// tally counts, for one task, questions and right answers of both runs.
type tally struct{ n, full, reduced int }

func (t tally) add(
	o tally,
) tally {
	return tally{t.n + o.n, t.full + o.full, t.reduced + o.reduced}
}

// sheet is a tally per task, All not among them.
type sheet map[string]tally

func (s sheet) add(o sheet) {
	for task, t := range o {
		s[task] = s[task].add(t)
	}
}

func (s sheet) tasks() []string {
	var names []string
	for task, t := range s {
		if t.n > 0 {
			names = append(names, task)
		}
	}
	slices.Sort(names)
	return names
}

func (s sheet) total() tally {
	var sum tally
	for _, t := range s {
		sum = sum.add(t)
	}
	return sum
}

// vsFull is the mean over tasks of reduced / full accuracy, as a share. A task that the unreduced
// run never gets right has no ratio and is left out; ok is false when none is left.
func (s sheet) vsFull() (ratio float64, ok bool) {
	n := 0
	for _, task := range s.tasks() {
		if t := s[task]; t.full > 0 {
			ratio += float64(t.reduced) / float64(t.full)
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	return ratio / float64(n), true
}

// difference is the reduced run's accuracy less the unreduced run's, in points.
func (t tally) difference() float64 {
	if t.n == 0 {
		return 0
	}
	return 100 * float64(t.reduced-t.full) / float64(t.n)
}

// bootstrap draws as many pictures as there are, with replacement, resamples times, and returns the
// 2.5 % and 97.5 % points of each task's difference, All's, and of VsFull. Whole pictures are drawn
// because the questions of one picture stand or fall together. Draws in which a figure does not
// exist are left out of it.
func bootstrap(pictures []sheet, seed int64) map[string]Interval {
	sum := sheet{}
	for _, p := range pictures {
		sum.add(p)
	}
	tasks := sum.tasks()
	tallies := make([]tally, len(pictures)*len(tasks)) // [pictures, tasks]
	for i, p := range pictures {
		for j, task := range tasks {
			tallies[i*len(tasks)+j] = p[task]
		}
	}
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	draws, drawn := map[string][]float64{}, make([]tally, len(tasks))
	for range resamples {
		clear(drawn)
		for range pictures {
			at := rng.IntN(len(pictures)) * len(tasks)
			for j := range drawn {
				drawn[j] = drawn[j].add(tallies[at+j])
			}
		}
		var total tally
		ratio, ratios := 0.0, 0
		for j, t := range drawn {
			if t.n > 0 {
				draws[tasks[j]] = append(draws[tasks[j]], t.difference())
			}
			if t.full > 0 {
				ratio += float64(t.reduced) / float64(t.full)
				ratios++
			}
			total = total.add(t)
		}
		if total.n > 0 {
			draws[All] = append(draws[All], total.difference())
		}
		if ratios > 0 {
			draws[VsFull] = append(draws[VsFull], 100*ratio/float64(ratios))
		}
	}
	out := map[string]Interval{}
	for name, v := range draws {
		slices.Sort(v)
		at := func(q float64) float64 { return v[int(math.Round(q*float64(len(v)-1)))] }
		out[name] = Interval{at(0.025), at(0.975)}
	}
	return out
}
