package bench

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
	"github.com/restore-vlm/restore/internal/pytext"
)

// MMBench: questions with two to four options, asked once for each rotation of the options; the
// indices of rotations differ by a million. Liu et al. 2023, https://arxiv.org/abs/2307.06281. A
// question is right if all its rotations are (circular evaluation).
//
//	paper   hint, question, options and "…letter from the given choices directly." (Chinese in
//	        mmbench-cn); letters by VLMEvalKit's exact matching; unreadable answers are wrong
//	lmms    "There are several options:", an empty line before the instruction; letters by
//	        the harness's rules; if they fail, by a judge or, without one, by the last
//	        resort of its task mmbench_en_dev_static
var mmbenchEN = definition{
	name: "mmbench-en", title: "MMBench", splits: []string{"dev", "test"},
	repos: []string{"lmms-lab/MMBench_EN", "lmms-lab-encoder/MMBench", "lmms-lab/MMBench"},
	open:  func(s *source) (*eval.Benchmark, error) { return openMMBench(s, "en") },
}

// The split cc is the Chinese culture set, which has no rotations in the paper's scripts.
var mmbenchCN = definition{
	name: "mmbench-cn", title: "MMBench-CN", splits: []string{"dev", "test", "cc"},
	repos: []string{"lmms-lab/MMBench", "lmms-lab-encoder/MMBench"},
	open:  func(s *source) (*eval.Benchmark, error) { return openMMBench(s, "cn") },
}

// rotation is the difference between the indices of a question's rotations.
const rotation = 1_000_000

// maxIndex is the most characters of a cell that names, in VLMEvalKit's tables, the question that
// has the picture; pictures have more.
const maxIndex = 64

// mmbRow is a question of MMBench in the forms that both harnesses use.
type mmbRow struct {
	index    int64
	answer   string
	question string
	choices  []choice // those with a text
	category string
	l2       string
	cells    map[string]any // for submissions
}

func openMMBench(s *source, lang string) (*eval.Benchmark, error) {
	b := &eval.Benchmark{MaxTokens: 1024, Metrics: metricsMMBPaper}
	b.Score = func(q *eval.Question, answer string) eval.Score {
		row := q.Doc.(*mmbRow)
		return scoreLetter(row, letterOfEvalKit(pytext.Strip(answer), row.choices))
	}
	b.Submission = &eval.Submission{
		Ext:  ".xlsx",
		Only: s.Split == "test",
		Write: func(w io.Writer, all []*eval.Scored) error {
			return writeMMBench(w, all, s.paper(), s.Split == "cc")
		},
	}
	if !s.paper() {
		if lang == "cn" {
			b.MaxTokens = 256
		}
		b.Score = func(q *eval.Question, answer string) eval.Score {
			row := q.Doc.(*mmbRow)
			return scoreLetter(row, letterOfLMMS(pytext.Strip(answer), row.choices))
		}
		b.Metrics = func(ctx context.Context, all []*eval.Scored) (eval.Metrics, error) {
			return metricsMMBLMMS(ctx, all, s.Judge)
		}
	}
	rows, image, closer, err := s.mmbRows(lang)
	if err != nil {
		return nil, err
	}
	b.Close = closer
	b.Questions = number(rows, func(r *dataset.Row, q *eval.Question) {
		row := s.mmbRow(r)
		q.Key, q.Doc, q.Category = row.index, row, row.category
		q.Text = row.promptLMMS(lang, s.Split)
		if s.paper() {
			q.Text = row.promptPaper(r, lang)
		}
		q.Images = []eval.Image{image(r, q.ID, row)}
	})
	return b, nil
}

// mmbRows opens LLaVA's table or the hub's files.
func (s *source) mmbRows(
	lang string,
) (rows iter.Seq2[*dataset.Row, error], image func(*dataset.Row, int, *mmbRow) eval.Image,
	closer func() error, err error) {
	folders := []string{"mmbench", "mmbench_cn"}
	patterns := []string{
		"mmbench_" + s.Split + "_" + lang + "*.tsv",
		"MMBench_" + strings.ToUpper(s.Split+"_"+lang) + "*.tsv",
	}
	if lang == "en" {
		patterns = append(patterns, "mmbench_"+s.Split+"_[0-9]*.tsv",
			"MMBench_"+strings.ToUpper(s.Split)+"_[0-9]*.tsv")
	} else {
		slices.Reverse(folders)
	}
	if s.Split == "cc" {
		patterns = []string{"CCBench*.tsv", "mmbench_cc*.tsv", "MMBench_CC*.tsv"}
	}
	if file := s.question(folders, patterns...); file != "" {
		var cells sync.Map // of column image by index
		image = func(r *dataset.Row, _ int, row *mmbRow) eval.Image {
			cell := r.Cell("image")
			cells.Store(fmt.Sprint(row.index), cell)
			return eval.Image{
				Name: fmt.Sprint(row.index % rotation),
				At:   r.Where() + `, column "image"`,
				Open: func() (io.ReadCloser, error) {
					text, err := cell()
					if err == nil && len(text) <= maxIndex {
						if other, ok := cells.Load(text); ok {
							text, err = other.(func() (string, error))()
						}
					}
					if err == nil && len(text) <= maxIndex {
						return nil, fmt.Errorf("got %q, want a picture in base64, or the index of "+
							"a question that has it", text)
					}
					return io.NopCloser(base64.NewDecoder(base64.StdEncoding,
						strings.NewReader(text))), err
				},
			}
		}
		return dataset.Table(file), image, nil, nil
	}
	if !s.paper() || s.Split != "dev" { // the paper's set has one split
		slices.Reverse(s.repos)
	}
	split, config := s.Split, lang
	if s.Split == "cc" {
		split, config = "test", "cc"
	}
	p, err := s.hub(split, config)
	if err != nil {
		return nil, nil, nil, err
	}
	need := []string{"index", "question", "A", "B", "category", "source"}
	for _, c := range []string{
		"C", "D", "E", "hint", "L2-category", "l2-category", "comment", "split",
	} {
		if p.HasColumn(c) {
			need = append(need, c)
		}
	}
	if s.Split != "cc" && !p.HasColumn("hint") {
		need = append(need, "hint") // so that the error names it
	}
	if !s.Prompts {
		need = append(need, "answer")
	}
	image = func(_ *dataset.Row, id int, row *mmbRow) eval.Image {
		return inParquet(p, fmt.Sprint(row.index%rotation), int64(id), 0)
	}
	return p.Scan("", need...), image, p.Close, nil
}

// mmbRow reads the cells of a row.
func (s *source) mmbRow(r *dataset.Row) *mmbRow {
	row := &mmbRow{index: r.Int("index"), question: r.Text("question"), cells: map[string]any{}}
	for _, c := range []string{
		"question", "hint", "answer", "source", "split", "category", "A", "B", "C", "D", "E",
		"comment",
	} {
		if !r.Has(c) {
			continue
		}
		if text, ok := r.Optional(c); ok {
			row.cells[c] = text
		} else {
			row.cells[c] = nil
		}
	}
	row.category, _ = row.cells["category"].(string)
	for _, name := range []string{"L2-category", "l2-category"} {
		if r.Has(name) {
			row.l2, _ = r.Optional(name)
		}
	}
	if !s.Prompts && s.Split != "test" {
		row.answer = r.Text("answer")
		if s.paper() && dataset.Absent(row.answer) {
			r.Fail("answer", "got %q, want a letter", row.answer)
		}
	}
	for _, letter := range strings.Split("ABCDE", "") {
		text, ok := row.cells[letter].(string)
		if ok && (s.paper() && !dataset.Absent(text) || !s.paper() && letter != "E") {
			row.choices = append(row.choices, choice{letter, text})
		}
	}
	return row
}

// promptPaper returns LLaVA's prompt. Options end before the first missing one.
func (m *mmbRow) promptPaper(r *dataset.Row, lang string) string {
	none := func(cell string) (string, bool) {
		text, ok := m.cells[cell].(string)
		lower := pytext.Lower(text)
		return text, !ok || dataset.Absent(text) || lower == "nan" || lower == "none"
	}
	if dataset.Absent(m.question) {
		r.Fail("question", "got %q, want a question", m.question)
	}
	text := m.question
	if hint, no := none("hint"); !no {
		text = hint + "\n" + text
	}
	for _, letter := range strings.Split("ABCD", "") {
		option, no := none(letter)
		if no {
			break
		}
		text += "\n" + letter + ". " + option
	}
	if lang == "cn" {
		return text + "\n请直接回答选项字母。"
	}
	return text + letterAnswer
}

// promptLMMS returns lmms-eval's prompt. It leaves out options that are null, empty or "nan"; the
// Chinese tasks show a hint "nan".
func (m *mmbRow) promptLMMS(lang, split string) string {
	options := "There are several options:\n"
	for _, letter := range strings.Split("ABCDE", "") {
		if text, ok := m.cells[letter].(string); ok && text != "" && text != "nan" {
			options += letter + ". " + text + "\n"
		}
	}
	text := m.question + " " + strings.TrimRight(options, "\n")
	if hint, ok := m.cells["hint"].(string); ok && split != "cc" &&
		(lang == "cn" || hint != "nan") {
		text = hint + " " + text
	}
	if lang == "cn" {
		return text + "\n\n请直接使用所提供的选项字母作为答案回答。"
	}
	return text + "\n" + letterAnswer
}

func scoreLetter(row *mmbRow, letter string) eval.Score {
	s := eval.Right(letter != "" && letter == row.answer, letter)
	s.Failed = letter == ""
	return s
}

// mmbGroup is the rotations of a question; the first of them comes first.
type mmbGroup struct{ rows []*eval.Scored }

// mmbGroups sorts questions by index and groups their rotations. It drops rotations without a first
// one.
func mmbGroups(all []*eval.Scored) ([]*mmbGroup, error) {
	sorted := slices.Clone(all)
	index := func(x *eval.Scored) int64 { return x.Question.Doc.(*mmbRow).index }
	slices.SortStableFunc(sorted, func(a, b *eval.Scored) int { return int(index(a) - index(b)) })
	var groups []*mmbGroup
	of := map[int64]*mmbGroup{}
	for _, x := range sorted {
		if i := index(x); i >= 0 && i < rotation && of[i] == nil {
			of[i] = &mmbGroup{}
			groups = append(groups, of[i])
		}
	}
	for _, x := range sorted {
		if g := of[index(x)%rotation]; g != nil {
			g.rows = append(g.rows, x)
		}
	}
	if len(groups) == 0 {
		return nil, errors.New("no question without a rotation: want indices below 1000000")
	}
	return groups, nil
}

// metricsMMBPaper computes the circular score in percent.
func metricsMMBPaper(_ context.Context, all []*eval.Scored) (eval.Metrics, error) {
	groups, err := mmbGroups(all)
	if err != nil {
		return nil, err
	}
	right := 0.0
	for _, g := range groups {
		if !slices.ContainsFunc(g.rows, func(x *eval.Scored) bool { return x.Points == 0 }) {
			right++
		}
	}
	return eval.Metrics{{Name: "circular", Value: 100 * right / float64(len(groups))}}, nil
}

// metricsMMBLMMS computes lmms-eval's gpt_eval_score. A wrong letter decides a group immediately.
// Then the judge, or the last resort without one, reads answers that the rules could not read.
func metricsMMBLMMS(ctx context.Context, all []*eval.Scored, judge Judge) (eval.Metrics, error) {
	groups, err := mmbGroups(all)
	if err != nil {
		return nil, err
	}
	random := newTwister(2680)
	hits := 0.0
	for _, g := range groups {
		if slices.ContainsFunc(
			g.rows,
			func(x *eval.Scored) bool { return x.Parsed != "" && x.Points == 0 },
		) {
			continue
		}
		hit := true
		for _, x := range g.rows {
			if x.Parsed != "" {
				continue
			}
			row := x.Question.Doc.(*mmbRow)
			var letter string
			if judge == nil {
				var letters []string
				for _, c := range row.choices {
					letters = append(letters, c.letter)
				}
				letter = letterAnywhere(pytext.Strip(x.Answer), letters)
			} else {
				var err error
				letter, err = askJudge(ctx, judge, row, pytext.Strip(x.Answer), random)
				if err != nil {
					return nil, fmt.Errorf("index %d: %w", row.index, err)
				}
			}
			x.Score = scoreLetter(row, letter)
			if x.Points == 0 {
				hit = false
				break
			}
		}
		if hit {
			hits++
		}
	}
	return eval.Metrics{{Name: "gpt_eval_score", Value: hits / float64(len(groups)) * 100}}, nil
}
