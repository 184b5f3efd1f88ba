// Package eval asks a model the questions of a benchmark and scores its answers.
//
// A [Benchmark] is a list of questions and a rule. Package bench has the paper's benchmarks and
// most others that measure visual-token reduction; your own is a value of this type:
//
//	colours := &eval.Benchmark{
//		Name:      "colours",
//		Questions: func() iter.Seq2[*eval.Question, error] { … },
//		Score: func(q *eval.Question, answer string) eval.Score {
//			return eval.Right(strings.EqualFold(answer, q.Doc.(string)), answer)
//		},
//	}
package eval

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
)

// Benchmark is a list of questions and the rule by which their answers are scored.
type Benchmark struct {
	Name     string // as in "gqa"
	Protocol string // whose prompts and rules are used; may be empty
	Split    string // part of the data set; may be empty

	// MaxTokens is the most tokens of an answer to a question without a number of its own; 0 means
	// 128.
	MaxTokens int

	// Whole means that an answer that was cut at its limit counts as unparsable.
	Whole bool

	// Questions yields the questions in the order of their files, with the same numbers each time.
	// An error ends the sequence.
	Questions func() iter.Seq2[*Question, error]

	// Score parses an answer and scores it. Several goroutines may call it, in any order.
	Score func(q *Question, answer string) Score

	// Metrics summarises the scores of all questions, in their order. It may change scores that
	// depend on several answers. Without it, "accuracy" is the mean of the points, in percent.
	Metrics func(ctx context.Context, all []*Scored) (Metrics, error)

	// Check returns an error for questions whose answers cannot be summarised together, before any
	// of them is asked; nil: all can.
	Check func(questions []*Question) error

	// Optional means that questions may have no answer: Metrics sees them as not Answered.
	Optional bool

	// Submission writes the file for a server that scores answers whose truth is not public; nil if
	// there is none.
	Submission *Submission

	// Close releases what Questions reads from; may be nil.
	Close func() error
}

// Submission is a file of answers for a server.
type Submission struct {
	Ext   string // extension of the file's name, such as ".json"
	Write func(w io.Writer, all []*Scored) error
	Only  bool // the split has no public answers: there are no metrics
}

// Question is one question of a benchmark.
type Question struct {
	ID       int     // its number, from 0, in the order of the files
	Key      any     // the benchmark's own id: a string or an int64
	Text     string  // the user's message, without the conversation's template
	Images   []Image // the pictures of the text, in order
	Category string  // results are broken down by it; may be empty
	Doc      any     // the truth, for Score

	// MaxTokens is the most tokens of the answer; 0: the benchmark's. Answerers see it set.
	MaxTokens int
}

// Image is a picture of a question.
type Image struct {
	Name string // unique within the benchmark: questions about one picture share it
	At   string // its place, for errors: file, row and column; "" means Name

	// Open returns the encoded file.
	Open func() (io.ReadCloser, error)
}

// maxImage is the most bytes of a picture's encoded file.
const maxImage = 1 << 30

// Bytes returns the encoded file. Its errors say where the picture is.
func (i *Image) Bytes() ([]byte, error) {
	var f io.ReadCloser
	var err error
	if i.Open != nil {
		f, err = i.Open()
	}
	switch {
	case err != nil:
		return nil, i.Error(err)
	case f == nil:
		return nil, i.Error(errors.New("got no file, want Open to return one"))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxImage))
	if err != nil {
		return nil, i.Error(err)
	}
	return data, nil
}

// Picture returns the picture. Its errors say where it is.
func (i *Image) Picture() (*restore.Picture, error) {
	data, err := i.Bytes()
	if err != nil {
		return nil, err
	}
	p, err := restore.NewPicture(data, &restore.PictureOptions{Name: i.place()})
	if err != nil {
		return nil, i.Error(err)
	}
	return p, nil
}

// Error wraps a problem with the picture and adds its place.
func (i *Image) Error(err error) error {
	if strings.Contains(err.Error(), i.place()) {
		return err
	}
	return fmt.Errorf("%s: %w", i.place(), err)
}

// place is where the picture is.
func (i *Image) place() string { return cmp.Or(i.At, i.Name) }

// Score is the score of an answer.
type Score struct {
	Parsed string  // what was compared with the truth
	Points float64 // from 0 to 1
	Failed bool    // the answer could not be parsed; such answers earn nothing
}

// Right returns a score of 1 or 0.
func Right(right bool, parsed string) Score {
	s := Score{Parsed: parsed}
	if right {
		s.Points = 1
	}
	return s
}

// Scored is a question with its answer.
type Scored struct {
	Question *Question
	Answer   string
	Answered bool
	Score
}

// Metrics are named values in display order.
type Metrics []Metric

// Metric is a named value.
type Metric struct {
	Name  string
	Value float64
}

// Get returns the value with that name; ok is false if there is none.
func (m Metrics) Get(name string) (v float64, ok bool) {
	for _, x := range m {
		if x.Name == name {
			return x.Value, true
		}
	}
	return 0, false
}

// MarshalJSON writes an object in the metrics' order.
func (m Metrics) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, x := range m {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(x.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(x.Value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.Name, err)
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON reads the output of MarshalJSON.
func (m *Metrics) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return fmt.Errorf("metrics: want an object, got %v", tok)
	}
	*m = nil
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		x := Metric{Name: name.(string)}
		if err := dec.Decode(&x.Value); err != nil {
			return fmt.Errorf("metrics: %s: %w", x.Name, err)
		}
		*m = append(*m, x)
	}
	return nil
}

// Result is a benchmark's result for a list of answers.
type Result struct {
	Benchmark string      `json:"benchmark"`
	Protocol  string      `json:"protocol,omitempty"`
	Split     string      `json:"split,omitempty"`
	Questions int         `json:"questions"`
	Failed    int         `json:"unparsed"` // answers that could not be parsed
	Metrics   Metrics     `json:"metrics"`
	Scores    []LineScore `json:"scores,omitempty"`
}

// LineScore is the score of one question in a Result. Parsed is null if the answer could not be
// parsed, Score if the truth is not public or there is no answer.
type LineScore struct {
	ID     int      `json:"id"`
	Parsed *string  `json:"parsed"`
	Score  *float64 `json:"score"`
}

// Selection selects a part of a benchmark's questions.
type Selection struct {
	Limit        int // the first Limit questions; 0: all
	Shard, Parts int // the Shard-th of Parts runs of consecutive questions, from 1; 0: all
}

// check returns an error for a selection that selects nothing.
func (s Selection) check() error {
	switch {
	case s.Limit < 0:
		return &errs.OptionError{Name: "limit", Got: fmt.Sprint(s.Limit), Want: "at least 0",
			Fault: errs.TooSmall}
	case s.Shard == 0 && s.Parts == 0 || s.Shard >= 1 && s.Shard <= s.Parts:
		return nil
	}
	return &errs.OptionError{Name: "shard", Got: fmt.Sprintf("%d of %d", s.Shard, s.Parts),
		Want: "1 of N to N of N"}
}

// defaultTokens is the most tokens of an answer where neither benchmark nor question says it.
const defaultTokens = 128

// take collects the selected questions of b, with their limits.
func take(b *Benchmark, s Selection) ([]*Question, error) {
	all, err := list(b, s)
	if err != nil {
		return nil, err
	}
	return s.part(all), nil
}

// list collects the first s.Limit questions of b, with their limits.
func list(b *Benchmark, s Selection) ([]*Question, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if b == nil || b.Questions == nil {
		return nil, fmt.Errorf("eval: %s has no Questions", b.named())
	}
	var all []*Question
	numbers := map[int]bool{}
	for q, err := range b.Questions() {
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
		if q == nil {
			return nil, fmt.Errorf("%s: got nil after %d questions, want a question", b.Name,
				len(all))
		}
		if numbers[q.ID] {
			return nil, fmt.Errorf("%s: two questions have the number (ID) %d, want each once",
				b.Name, q.ID)
		}
		numbers[q.ID] = true
		limited := *q
		limited.MaxTokens = cmp.Or(q.MaxTokens, b.tokens())
		all = append(all, &limited)
		if s.Limit > 0 && len(all) == s.Limit {
			break
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: holds no question", b.Name)
	}
	if len(s.part(all)) == 0 {
		return nil, fmt.Errorf("%s: part %d of %d of %d questions is empty", b.Name, s.Shard,
			s.Parts, len(all))
	}
	return all, nil
}

// named is the benchmark in errors.
func (b *Benchmark) named() string {
	if b == nil {
		return "a nil benchmark"
	}
	return fmt.Sprintf("benchmark %q", b.Name)
}

// part returns the shard's questions.
func (s Selection) part(all []*Question) []*Question {
	if s.Parts == 0 {
		return all
	}
	size := (len(all) + s.Parts - 1) / s.Parts
	start := min(size*(s.Shard-1), len(all))
	return all[start:min(start+size, len(all))]
}

// scorable is list for questions whose answers are scored.
func scorable(b *Benchmark, s Selection) ([]*Question, error) {
	if b == nil || b.Score == nil {
		return nil, fmt.Errorf("eval: %s has no Score", b.named())
	}
	all, err := list(b, s)
	if err == nil && b.Check != nil {
		if err = b.Check(s.part(all)); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
	}
	return all, err
}

// ScoreAll scores answers by the numbers of their questions. It returns an error for answers to
// unknown questions, and for questions without an answer unless b.Optional is set.
func ScoreAll(
	ctx context.Context,
	b *Benchmark,
	s Selection,
	answers map[int]string,
) (*Result, []*Scored, error) {
	listed, err := scorable(b, s)
	if err != nil {
		return nil, nil, err
	}
	questions := s.part(listed)
	all := make([]*Scored, len(questions))
	missing, used := -1, 0
	for i, q := range questions {
		x := &Scored{Question: q}
		x.Answer, x.Answered = answers[q.ID]
		switch {
		case x.Answered:
			used++
			x.Score = b.Score(q, x.Answer)
		case missing < 0:
			missing = i
		}
		all[i] = x
	}
	if missing >= 0 && !b.Optional {
		q := questions[missing]
		return nil, nil, fmt.Errorf(
			"%s: %d of %d questions have no answer, the first is id %d (key %v)", b.Name,
			len(questions)-used, len(questions), q.ID, q.Key)
	}
	if used < len(answers) && s == (Selection{}) {
		return nil, nil, fmt.Errorf("%s: %d answers are to ids that are not among the %d questions",
			b.Name, len(answers)-used, len(questions))
	}
	r, err := b.result(ctx, all)
	return r, all, err
}

// result summarises the scores.
func (b *Benchmark) result(ctx context.Context, all []*Scored) (*Result, error) {
	r := &Result{
		Benchmark: b.Name,
		Protocol:  b.Protocol,
		Split:     b.Split,
		Questions: len(all),
		Metrics:   Metrics{},
	}
	hidden := b.Submission != nil && b.Submission.Only
	if !hidden {
		metrics := b.Metrics
		if metrics == nil {
			metrics = accuracy
		}
		var err error
		if r.Metrics, err = metrics(ctx, all); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name, err)
		}
		for _, m := range r.Metrics {
			if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
				return nil, fmt.Errorf("%s: %s: %v", b.Name, m.Name, m.Value)
			}
		}
	}
	for _, x := range all {
		line := LineScore{ID: x.Question.ID}
		if x.Answered && (!x.Failed || x.Parsed != "") {
			line.Parsed = &x.Parsed
		}
		if x.Answered && !hidden {
			line.Score = &x.Points
		}
		if x.Failed {
			r.Failed++
		}
		r.Scores = append(r.Scores, line)
	}
	return r, nil
}

// tokens returns the most tokens of an answer to a question without a number of its own.
func (b *Benchmark) tokens() int { return cmp.Or(b.MaxTokens, defaultTokens) }

// score parses an answer and scores it.
func (b *Benchmark) score(q *Question, a Answer) Score {
	if b.Whole && a.Finish == finishLength {
		return Score{Failed: true}
	}
	return b.Score(q, a.Text)
}

// accuracy is the mean of the points in percent; a missing answer earns nothing.
func accuracy(_ context.Context, all []*Scored) (Metrics, error) {
	return Metrics{{"accuracy", 100 * Mean(all)}}, nil
}

// Mean returns the mean of the points, 0 if there are none.
func Mean(all []*Scored) float64 {
	sum := 0.0
	for _, x := range all {
		sum += x.Points
	}
	if len(all) == 0 {
		return 0
	}
	return sum / float64(len(all))
}
