package bench

import (
	"strings"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
	"github.com/restore-vlm/restore/internal/pytext"
)

// TextVQA: questions about text in a picture, with ten human answers each. Singh et al. 2019,
// https://arxiv.org/abs/1904.08920. Version 0.5.1.
//
//	paper   the question, "Reference OCR token: " with the words that an OCR program found,
//	        and "…single word or phrase."; EvalAI's normaliser on both sides
//	lmms    the same without the OCR words, which scores far lower
var textvqa = definition{
	name: "textvqa", title: "TextVQA", splits: []string{"validation", "test"},
	repos: []string{"lmms-lab/textvqa", "lmms-lab-encoder/textvqa"},
	open:  openTextVQA,
}

const ocrTokens = "Reference OCR token: "

func openTextVQA(s *source) (*eval.Benchmark, error) {
	b := &eval.Benchmark{MaxTokens: 128, Score: scoreTextVQA(sumMean)}
	if !s.paper() {
		b.MaxTokens, b.Score, b.Metrics = 1024, scoreTextVQA(exactMean), meanMatch
	}
	if s.Split == "test" {
		b.Score = func(_ *eval.Question, answer string) eval.Score {
			return eval.Score{Parsed: normalVQA(answer)}
		}
		b.Submission = &eval.Submission{Ext: ".json", Only: true, Write: uploads(parsedOf)}
	} else if file := s.question([]string{"textvqa"},
		"llava_textvqa_val_v051_ocr.jsonl"); file != "" {
		return b, textvqaLines(s, b, file)
	}
	truth := s.Split == "validation" && !s.Prompts
	need := []string{"question_id", "image_id", "question"}
	if s.paper() {
		need = append(need, "ocr_tokens")
	}
	if truth {
		need = append(need, "answers")
	}
	return s.fromHub(b, s.Split, dataset.DefaultConfig, need, func(
		r *dataset.Row, q *eval.Question, at picture,
	) {
		q.Key, q.Text = r.Int("question_id"), pytext.Capitalize(r.Text("question"))
		if s.paper() {
			q.Text += "\n" + ocrTokens + strings.Join(r.Texts("ocr_tokens"), ", ")
		}
		q.Text += shortAnswer
		q.Images = []eval.Image{at(r.Text("image_id"), 0)}
		if truth {
			q.Doc = tenHumans(r)
		}
	})
}

// textvqaLines reads LLaVA's question file. A question is matched with its annotation by the
// picture and the question's text, because the ids in the file identify pictures.
func textvqaLines(s *source, b *eval.Benchmark, file string) error {
	type key struct{ image, question string }
	truth := map[key][]human{}
	if !s.Prompts {
		path, err := nextTo(file, "TextVQA_0.5.1_val.json")
		if err != nil {
			return err
		}
		err = each(dataset.Array(path, "data"), func(r *dataset.Row) {
			truth[key{r.Text("image_id"), pytext.Lower(r.Text("question"))}] = tenHumans(r)
		})
		if err != nil {
			return err
		}
	}
	dir := s.folder(file, "train_images", "images")
	b.Questions = number(dataset.Lines(file), func(r *dataset.Row, q *eval.Question) {
		q.Key, q.Text = r.Text("question_id"), r.Text("text")
		q.Images = []eval.Image{inFolder(dir, r.Text("image"))}
		question, ok := textvqaQuestion(q.Text)
		if !ok {
			r.Fail("text", "no question, want two lines, or three with %q", ocrTokens)
			return
		}
		if !s.paper() {
			q.Text = pytext.Capitalize(question) + shortAnswer
		}
		if s.Prompts {
			return
		}
		humans, ok := truth[key{r.Text("question_id"), pytext.Lower(question)}]
		if !ok {
			r.Fail("question_id", "picture %q with this question has no annotation", q.Key)
		}
		q.Doc = humans
	})
	return nil
}

// textvqaQuestion finds the question in a prompt, which has one of three forms.
func textvqaQuestion(text string) (string, bool) {
	lines := strings.Split(text, "\n")
	if strings.HasPrefix(text, "OCR tokens: ") {
		if _, rest, ok := strings.Cut(text, "Question: "); ok {
			question, _, ok := strings.Cut(rest, " Short answer:")
			return question, ok
		}
		return "", false
	}
	first := strings.HasPrefix(text, strings.TrimSpace(ocrTokens))
	switch {
	case len(lines) == 3 && first && strings.Contains(text, ocrTokens):
		return lines[1], true
	case len(lines) == 3 && strings.Contains(text, ocrTokens), len(lines) == 2:
		return lines[0], true
	}
	return "", false
}

// tenHumans reads the column answers; each human counts separately.
func tenHumans(r *dataset.Row) []human {
	answers := r.Texts("answers")
	if len(answers) != 10 {
		r.Fail("answers", "got %d, want 10", len(answers))
	}
	out := make([]human, len(answers))
	for i, a := range answers {
		out[i] = human{answer: normalVQA(a), rest: string(rune('0' + i))}
	}
	return out
}

func scoreTextVQA(mean func([]float64) float64) func(*eval.Question, string) eval.Score {
	return func(q *eval.Question, answer string) eval.Score {
		answer = normalVQA(pytext.Strip(answer))
		return eval.Score{Parsed: answer, Points: mean(agreement(q.Doc.([]human), answer))}
	}
}

// parsedOf is the normalised answer.
func parsedOf(x *eval.Scored) string { return x.Parsed }
