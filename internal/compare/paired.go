package compare

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/eval"
	benchmarks "github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/stats"
	"github.com/restore-vlm/restore/reduce"
)

// Balance counts the questions whose outcome differs between two runs over the same questions.
type Balance struct {
	Lost     int            `json:"lost"`     // right unreduced, wrong reduced
	Gained   int            `json:"gained"`   // wrong unreduced, right reduced
	Points   float64        `json:"points"`   // reduced less unreduced accuracy
	Interval stats.Interval `json:"interval"` // of Points: bootstrap over pictures
}

// Unparsable counts answers that are none of a task's possible ones, or were cut at the token
// limit. They are wrong like any other wrong answer; many of them mean a model that has lost the
// thread rather than the picture.
type Unparsable struct {
	Full    int `json:"full"`
	Reduced int `json:"reduced"`
}

func (u Unparsable) add(o Unparsable) Unparsable {
	return Unparsable{u.Full + o.Full, u.Reduced + o.Reduced}
}

// Paired compares a reduction with the unreduced model over the same questions about scenes.
// Accuracies are percent, rounded to a tenth.
type Paired struct {
	Questions map[string]int     `json:"questions"` // by task
	Full      map[string]float64 `json:"full"`      // by task, and AllTasks
	Reduced   map[string]float64 `json:"reduced"`   // by task, AllTasks, and VsFull where defined

	Pictures        int                       `json:"pictures"`
	FullInterval    map[string]stats.Interval `json:"full_interval"`    // Wilson, by task and AllTasks
	ReducedInterval map[string]stats.Interval `json:"reduced_interval"` // Wilson; VsFull: bootstrap over pictures
	Change          map[string]Balance        `json:"change"`           // by task and AllTasks
	Unparsable      map[string]Unparsable     `json:"unparsable"`       // by task; empty when there is none

	// Weighted Hausdorff distance of the reduction, mean over pictures, where it was measured.
	Distance *float64 `json:"distance,omitempty"`

	Setup map[string]any `json:"setup,omitempty"` // model, reduction and seeds
}

// NewPaired compares two runs of a benchmark of scenes. Both have the records of the same questions
// in the same order.
func NewPaired(full, reduced []*eval.Record, seed int64) *Paired {
	r := &Paired{
		Questions: map[string]int{}, Full: map[string]float64{}, Reduced: map[string]float64{},
		FullInterval: map[string]stats.Interval{}, ReducedInterval: map[string]stats.Interval{},
		Change: map[string]Balance{}, Unparsable: map[string]Unparsable{},
		Distance: distance(reduced),
	}
	for i, x := range full {
		r.Questions[x.Category]++
		r.count(x, reduced[i])
	}
	p := tallies(full, reduced)
	r.Pictures = len(p.pictures)
	spread := p.bootstrap(seed)
	names := append(p.tasks, benchmarks.AllTasks)
	for i, t := range append(p.sum, total(p.sum)) {
		if name := names[i]; t.n > 0 {
			r.Full[name], r.Reduced[name] = percent(t.full, t.n), percent(t.reduced, t.n)
			r.FullInterval[name] = wilson(t.full, t.n)
			r.ReducedInterval[name] = wilson(t.reduced, t.n)
			c := r.Change[name]
			c.Points, c.Interval = stats.Tenth(t.difference()), spread[i].Round()
			r.Change[name] = c
		}
	}
	if ratio, n := ratios(p.sum); n > 0 {
		r.Reduced[benchmarks.VsFull] = stats.Tenth(100 * (ratio / float64(n)))
		r.ReducedInterval[benchmarks.VsFull] = spread[len(names)].Round()
	}
	return r
}

// count counts the outcomes of a question.
func (r *Paired) count(full, reduced *eval.Record) {
	u := Unparsable{one(full.Parsed == nil), one(reduced.Parsed == nil)}
	if u != (Unparsable{}) {
		r.Unparsable[full.Category] = r.Unparsable[full.Category].add(u)
	}
	for _, name := range []string{full.Category, benchmarks.AllTasks} {
		c := r.Change[name]
		c.Lost += one(*full.Score > *reduced.Score)
		c.Gained += one(*full.Score < *reduced.Score)
		r.Change[name] = c
	}
}

// tally counts, for one task, questions and right answers of both runs.
type tally struct{ n, full, reduced int }

func (t tally) add(o tally) tally {
	return tally{t.n + o.n, t.full + o.full, t.reduced + o.reduced}
}

// difference is the reduced run's accuracy less the unreduced run's, in points; NaN without
// questions.
func (t tally) difference() float64 {
	if t.n == 0 {
		return math.NaN()
	}
	return 100 * float64(t.reduced-t.full) / float64(t.n)
}

func total(all []tally) (sum tally) {
	for _, t := range all {
		sum = sum.add(t)
	}
	return sum
}

// ratios sums the tasks' reduced / full accuracies. A task that the unreduced run never gets right
// has no ratio and is left out; n is the number of the others.
func ratios(tasks []tally) (sum float64, n int) {
	for _, t := range tasks {
		if t.full > 0 {
			sum += float64(t.reduced) / float64(t.full)
			n++
		}
	}
	return sum, n
}

// pairTallies are the tallies of two runs.
type pairTallies struct {
	tasks    []string  // by name
	pictures [][]tally // of every task
	sum      []tally   // of every task
}

func tallies(full, reduced []*eval.Record) *pairTallies {
	p := &pairTallies{}
	for _, x := range full {
		if !slices.Contains(p.tasks, x.Category) {
			p.tasks = append(p.tasks, x.Category)
		}
	}
	slices.Sort(p.tasks)
	p.sum = make([]tally, len(p.tasks))
	of := map[string][]tally{} // by picture
	for i, x := range full {
		picture := of[pictureOf(x)]
		if picture == nil {
			picture = make([]tally, len(p.tasks))
			of[pictureOf(x)] = picture
			p.pictures = append(p.pictures, picture)
		}
		t := tally{1, one(*x.Score == 1), one(*reduced[i].Score == 1)}
		task := slices.Index(p.tasks, x.Category)
		picture[task], p.sum[task] = picture[task].add(t), p.sum[task].add(t)
	}
	return p
}

// pictureOf names the pictures of a record.
func pictureOf(x *eval.Record) string { return strings.Join(x.Images, "\x00") }

// bootstrap returns the intervals of each task's difference, the total's, and of VsFull over
// samples of the pictures.
func (p *pairTallies) bootstrap(seed int64) []stats.Interval {
	n := len(p.tasks)
	sample := make([]tally, n)
	return stats.Bootstrap(len(p.pictures), n+2, seed, func(drawn []int, out []float64) {
		clear(sample)
		for _, picture := range drawn {
			for j, t := range p.pictures[picture] {
				sample[j] = sample[j].add(t)
			}
		}
		for j, t := range sample {
			out[j] = t.difference()
		}
		out[n], out[n+1] = total(sample).difference(), math.NaN()
		if sum, k := ratios(sample); k > 0 {
			out[n+1] = 100 * sum / float64(k)
		}
	})
}

// lastOf returns the last record of each picture.
func lastOf(records []*eval.Record) (out []*eval.Record) {
	seen := map[string]bool{}
	for _, x := range slices.Backward(records) {
		if !seen[pictureOf(x)] {
			seen[pictureOf(x)] = true
			out = append(out, x)
		}
	}
	slices.Reverse(out)
	return out
}

// distance is the mean distance of pictures, nil if none was measured. The sum runs over sorted
// values, so that it does not depend on their order.
func distance(records []*eval.Record) *float64 {
	var all []float64
	for _, x := range lastOf(records) {
		if x.Distance != nil {
			all = append(all, *x.Distance)
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	sum := 0.0
	for _, x := range all {
		sum += x
	}
	sum /= float64(len(all))
	return &sum
}

// reductionOf returns the reduction of a record's picture.
func reductionOf(x *eval.Record) (r reduce.Resolved) {
	_ = json.Unmarshal(x.Reduction, &r) // it was encoded by this program; zero if not known
	return r
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

func percent(right, n int) float64 { return stats.Tenth(100 * float64(right) / float64(n)) }

// wilson is Wilson's interval in percent.
func wilson(right, n int) stats.Interval {
	i := stats.Wilson(right, n)
	return stats.Interval{100 * i[0], 100 * i[1]}.Round()
}
