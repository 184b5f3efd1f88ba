package scenebench

import (
	"math"
	"slices"

	"github.com/restore-vlm/restore/internal/stats"
)

// All is the name under which figures over all questions are kept next to those of single tasks.
const All = "all"

// VsFull is the name of the mean over tasks of reduced / unreduced accuracy.
const VsFull = "vs_full"

// tally counts, for one task, questions and right answers of both runs.
type tally struct{ n, full, reduced int }

func (t tally) add(o tally) tally {
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

// bootstrap returns the intervals of each task's difference, All's, and of VsFull over samples of
// the pictures.
func bootstrap(pictures []sheet, seed int64) map[string]stats.Interval {
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
	names, sample := append(slices.Clone(tasks), All, VsFull), make([]tally, len(tasks))
	all := stats.Bootstrap(len(pictures), len(names), seed, func(drawn []int, out []float64) {
		clear(sample)
		for _, picture := range drawn {
			at := picture * len(tasks)
			for j := range sample {
				sample[j] = sample[j].add(tallies[at+j])
			}
		}
		figures(sample, out)
	})
	out := map[string]stats.Interval{}
	for i, name := range names {
		if !math.IsNaN(all[i][0]) {
			out[name] = all[i]
		}
	}
	return out
}

// figures are the differences of the tallies, of all together, and 100 times the mean ratio; NaN
// for those that do not exist.
func figures(tallies []tally, out []float64) {
	var total tally
	ratio, ratios := 0.0, 0
	for j, t := range tallies {
		out[j] = math.NaN()
		if t.n > 0 {
			out[j] = t.difference()
		}
		if t.full > 0 {
			ratio += float64(t.reduced) / float64(t.full)
			ratios++
		}
		total = total.add(t)
	}
	all, vsFull := len(tallies), len(tallies)+1
	out[all], out[vsFull] = math.NaN(), math.NaN()
	if total.n > 0 {
		out[all] = total.difference()
	}
	if ratios > 0 {
		out[vsFull] = 100 * ratio / float64(ratios)
	}
}
