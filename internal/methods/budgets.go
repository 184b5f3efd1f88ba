package methods

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/errs"
)

// Budgets holds thresholds of gains, found without labels on pictures that a model encoded. Its
// file is JSON with the members below, "format" and "version".
type Budgets struct {
	Model    string          `json:"model,omitempty"`  // name of the model, for readers
	Source   string          `json:"source,omitempty"` // the pictures, for readers
	Pictures int             `json:"pictures"`
	Means    []ContentBudget `json:"means"` // by increasing mean
}

// ContentBudget is the entry of Budgets for one mean.
type ContentBudget struct {
	Mean      int     `json:"mean"`      // mean of the pictures' budgets, in tokens
	Threshold float64 `json:"threshold"` // a picture gets one token for each gain above it
	Guard     float64 `json:"guard"`     // a picture whose gain at Mean exceeds it counts as dense

	// The budgets of the pictures from which the threshold was found.
	Found float64 `json:"found"` // their mean
	Least int     `json:"least"`
	Most  int     `json:"most"`
}

// budgetsMeans is the most means of Budgets.
const budgetsMeans = 1 << 6

// budgetsHead begins a file of Budgets.
var budgetsHead = documentHead{Format: "restore-budget", Version: 1}

// budgetsFile is the file format of Budgets.
type budgetsFile struct {
	documentHead
	Budgets
}

// ReadBudgets reads a file of at most 1 MiB and checks it.
func ReadBudgets(r io.Reader) (*Budgets, error) {
	f := budgetsFile{documentHead: budgetsHead}
	if err := readDocument(r, "budgets", &f.documentHead, &f); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return &f.Budgets, nil
}

// Write writes the file.
func (b *Budgets) Write(w io.Writer) error {
	if err := b.check(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(budgetsFile{budgetsHead, *b}, "", " ")
	if err != nil {
		return fmt.Errorf("methods: budgets: %w", err)
	}
	_, err = w.Write(append(text, '\n'))
	return err
}

// check reports the first member that is out of range.
func (b *Budgets) check() error {
	if b.Pictures < 1 || len(b.Means) < 1 || len(b.Means) > budgetsMeans {
		return fmt.Errorf("methods: budgets: got %d pictures and %d means, want at least 1 of "+
			"each and at most %d means", b.Pictures, len(b.Means), budgetsMeans)
	}
	last := 0
	for i, m := range b.Means {
		switch {
		case m.Mean <= last || m.Mean > maxTokens:
			return fmt.Errorf("methods: budgets: mean %d: got %d, want more than %d and at most %d",
				i, m.Mean, last, maxTokens)
		case !(m.Threshold >= 0 && m.Threshold <= diagonal && m.Guard >= 0 && m.Guard <= diagonal):
			return fmt.Errorf("methods: budgets: mean %d: got threshold %v and guard %v, want 0 "+
				"to %v", m.Mean, m.Threshold, m.Guard, diagonal)
		}
		last = m.Mean
	}
	return nil
}

// guardShare is the share of pictures that count as dense.
const guardShare = 0.1

// PictureGains are the first gains of a picture, and its number of tokens.
type PictureGains struct {
	Gains  []float64
	Tokens int
}

// CheckMeans refuses means for which FindBudgets would fail.
func CheckMeans(means []int) error {
	if len(means) < 1 || len(means) > budgetsMeans {
		return refused("mean", errs.Invalid, fmt.Sprintf("%d means", len(means)),
			fmt.Sprintf("1 to %d of them", budgetsMeans), "")
	}
	for i, mean := range means {
		switch {
		case mean < 1:
			return refused("mean", errs.TooSmall, strconv.Itoa(mean), "at least 1", "")
		case mean > maxTokens:
			return refused("mean", errs.TooLarge, strconv.Itoa(mean),
				fmt.Sprintf("at most %d", maxTokens), "")
		case slices.Contains(means[:i], mean):
			return refused("mean", errs.Invalid, strconv.Itoa(mean), "each once", "")
		}
	}
	return nil
}

// FindBudgets finds, for each mean, the threshold at which the pictures' budgets have that mean,
// and the gain at that mean that one picture in ten exceeds. The gains must extend to twice the
// largest mean, or to the picture's end.
func FindBudgets(all []PictureGains, means []int) (*Budgets, error) {
	if err := CheckMeans(means); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("methods: budgets: got no pictures, want at least 1")
	}
	b := &Budgets{Pictures: len(all)}
	for _, mean := range slices.Sorted(slices.Values(means)) {
		c, err := findBudget(all, mean)
		if err != nil {
			return nil, err
		}
		b.Means = append(b.Means, c)
	}
	return b, nil
}

func findBudget(all []PictureGains, mean int) (ContentBudget, error) {
	at := func(threshold float64) ContentBudget {
		c, sum := ContentBudget{Mean: mean, Threshold: threshold, Least: math.MaxInt}, 0
		for _, p := range all {
			_, n := contentCount(p.Gains, threshold, mean, p.Tokens)
			sum, c.Least, c.Most = sum+n, min(c.Least, n), max(c.Most, n)
		}
		c.Found = float64(sum) / float64(len(all))
		return c
	}
	low, high := at(0), at(diagonal) // budgets fall as the threshold rises
	if low.Found < float64(mean) {
		return low, refused("mean", errs.TooLarge, strconv.Itoa(mean),
			fmt.Sprintf("at most %.4g", low.Found), "what the pictures' tokens allow")
	}
	for range 60 {
		if middle := at((low.Threshold + high.Threshold) / 2); middle.Found >= float64(mean) {
			low = middle
		} else {
			high = middle
		}
	}
	best := low
	if float64(mean)-high.Found < low.Found-float64(mean) {
		best = high
	}
	var last []float64
	for _, p := range all {
		if len(p.Gains) >= mean {
			last = append(last, p.Gains[mean-1])
		}
	}
	if slices.Sort(last); len(last) > 0 {
		best.Guard = last[int(float64(len(last)-1)*(1-guardShare))]
	}
	return best, nil
}

// budgetsOf parses Budgets from a parameter's file.
func budgetsOf(data []byte) (*Budgets, error) {
	b, err := ReadBudgets(bytes.NewReader(data))
	if err != nil {
		return nil, errors.New(trimPackage(err))
	}
	return b, nil
}
