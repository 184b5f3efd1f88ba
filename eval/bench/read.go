package bench

import (
	"context"
	"iter"
	"math"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
)

// number turns rows into questions numbered by row. fill reads a row; an error in a row ends the
// list.
func number(
	rows iter.Seq2[*dataset.Row, error], fill func(*dataset.Row, *eval.Question),
) func() iter.Seq2[*eval.Question, error] {
	questions := func(yield func(*eval.Question, error) bool) {
		n := 0
		for r, err := range rows {
			q := &eval.Question{ID: n}
			if err == nil {
				fill(r, q)
				err = r.Err()
			}
			if !yield(q, err) || err != nil {
				return
			}
			n++
		}
	}
	return func() iter.Seq2[*eval.Question, error] { return questions }
}

// each reads rows to their end. It returns the first error, also of a row.
func each[R interface{ Err() error }](rows iter.Seq2[R, error], read func(R)) error {
	for r, err := range rows {
		if err != nil {
			return err
		}
		if read(r); r.Err() != nil {
			return r.Err()
		}
	}
	return nil
}

// meanMatch is lmms-eval's exact_match: the mean of the points, with its two standard errors.
func meanMatch(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	m := eval.Metrics{{Name: "exact_match", Value: eval.Mean(all)}}
	if len(all) > 1 {
		m = append(m, eval.Metric{Name: "exact_match_stderr", Value: standardError(all)},
			eval.Metric{Name: "exact_match_stderr_clt", Value: standardError(all)})
	}
	return m, nil
}

// total is the sum of the points.
func total(all []*eval.Scored) (sum float64) {
	for _, x := range all {
		sum += x.Points
	}
	return sum
}

// standardError is the standard error of the points' mean: the sample's standard deviation over the
// square root of its size.
func standardError(all []*eval.Scored) float64 {
	mean, sum := eval.Mean(all), 0.0
	for _, x := range all {
		sum += (x.Points - mean) * (x.Points - mean)
	}
	n := float64(len(all))
	return math.Sqrt(sum/(n-1)) / math.Sqrt(n)
}
