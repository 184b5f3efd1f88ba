package bench

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/pytext"
)

// lmmsTasks maps benchmarks and splits to the harness's names.
var lmmsTasks = map[[2]string]string{
	{"gqa", "testdev"}:        "gqa",
	{"mmbench-en", "dev"}:     "mmbench_en_dev",
	{"mmbench-en", "test"}:    "mmbench_en_test",
	{"mmbench-cn", "dev"}:     "mmbench_cn_dev",
	{"mmbench-cn", "test"}:    "mmbench_cn_test",
	{"mmbench-cn", "cc"}:      "mmbench_cn_cc",
	{"mme", "test"}:           "mme",
	{"pope", "test"}:          "pope",
	{"pope", "adversarial"}:   "pope_adv",
	{"pope", "popular"}:       "pope_pop",
	{"pope", "random"}:        "pope_random",
	{"scienceqa", "test"}:     "scienceqa_img",
	{"scienceqa", "img"}:      "scienceqa_img",
	{"scienceqa", "full"}:     "scienceqa",
	{"vqav2", "validation"}:   "vqav2_val",
	{"vqav2", "test"}:         "vqav2_test",
	{"vqav2", "testdev"}:      "vqav2_testdev", // the harness has no such task
	{"textvqa", "validation"}: "textvqa_val",
	{"textvqa", "test"}:       "textvqa_test",
	{"seedbench", "test"}:     "seedbench",
	{"ocrbench", "test"}:      "ocrbench",
}

// nullHash is the hash that the harness writes for every document: of the text null.
const nullHash = "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"

// member is a member of an ordered object.
type member struct {
	name  string
	value any
}

type object []member

// MarshalJSON writes the members in their order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		for j, v := range []any{m.name, m.value} {
			text, err := files.JSON(v, "")
			if err != nil {
				return nil, err
			}
			b.WriteByte("{:,:"[2*min(i, 1)+j])
			b.Write(text)
		}
	}
	if len(o) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// WriteLMMS writes a run in lmms-eval's format, so that scripts for it can read the run:
// DATE_results.json and DATE_samples_TASK.jsonl in dir, and DATE_log_TASK.json, which its model
// from_log replays. judged means that a judge was used.
func WriteLMMS(
	dir string,
	b *eval.Benchmark,
	r *eval.Result,
	all []*eval.Scored,
	judged bool,
) error {
	task := lmmsTasks[[2]string{b.Name, b.Split}]
	if b.Name == "mmbench-en" && b.Split == "dev" && !judged {
		task += "_static"
	}
	now := time.Now()
	date := now.Format("20060102_150405")
	path := filepath.Join(dir, date+"_results.json")
	if err := files.WriteJSON(path, lmmsResults(task, date, b, r), "  "); err != nil {
		return err
	}
	path = filepath.Join(dir, date+"_log_"+task+".json")
	if err := files.WriteJSON(path, lmmsLog(task, now, all), ""); err != nil {
		return err
	}
	var samples bytes.Buffer
	for _, x := range all {
		line, err := files.JSON(lmmsSample(b, x), "")
		if err != nil {
			return err
		}
		samples.Write(line)
	}
	path = filepath.Join(dir, date+"_samples_"+task+".jsonl")
	return files.Write(path, samples.Bytes(), 0o666)
}

// lmmsResults returns the content of the results file.
func lmmsResults(task, date string, b *eval.Benchmark, r *eval.Result) object {
	scores, better := object{{"alias", task}}, object{}
	for _, m := range r.Metrics {
		if strings.Contains(m.Name, "_stderr") {
			continue
		}
		scores = append(scores, member{m.Name + ",none", m.Value})
		better = append(better, member{m.Name, true})
		for _, suffix := range []string{"_stderr", "_stderr_clt", "_stderr_clustered"} {
			var v any = "N/A"
			if x, ok := r.Metrics.Get(m.Name + suffix); ok {
				v = x
			}
			scores = append(scores, member{m.Name + suffix + ",none", v})
		}
	}
	if b.Name == "textvqa" || strings.HasPrefix(b.Name, "mmbench") || task == "vqav2_test" {
		// The harness lists the upload as a metric.
		scores = append(
			scores,
			member{"submission,none", nil},
			member{"submission_stderr,none", "N/A"},
			member{
				"submission_stderr_clt,none",
				"N/A",
			},
			member{"submission_stderr_clustered,none", "N/A"},
		)
	}
	of := func(v any) object { return object{{task, v}} }
	return object{
		{"results", of(scores)},
		{"group_subtasks", of([]string{})},
		{
			"configs",
			of(object{{"task", task}, {"test_split", b.Split}, {"output_type", "generate_until"},
				{
					"generation_kwargs",
					object{
						{"max_new_tokens", b.MaxTokens},
						{"temperature", 0},
						{"do_sample", false},
					},
				}}),
		},
		{"versions", of("Yaml")},
		{"n-shot", of(0)},
		{"higher_is_better", of(better)},
		{"n-samples", of(object{{"original", r.Questions}, {"effective", r.Questions}})},
		{"config", object{{"model", "restore"}, {"model_args", ""}, {"batch_size", "1"}}},
		{"date", date},
		{"model_source", "restore"},
		{"system_instruction", nil},
		{"chat_template", nil},
	}
}

// lmmsLog returns what from_log reads: the answer to each row of the task's data. A row without an
// answer, in a run of a part, ends the replay, so such a replay needs the same --limit.
func lmmsLog(task string, now time.Time, all []*eval.Scored) object {
	logs := make([]object, len(all))
	for i, x := range all {
		logs[i] = object{{"doc_id", x.Question.ID}, {"resps", [][]string{{x.Answer}}}}
	}
	return object{
		{"args", object{{"model", "restore"}, {"model_args", ""}, {"limit", nil}}},
		{"model_configs", object{{"task", task}}},
		{"time", now.Format("0102_1504")},
		{"logs", logs},
	}
}

// lmmsSample returns a line of the samples file.
func lmmsSample(b *eval.Benchmark, x *eval.Scored) object {
	target, metrics := lmmsMetrics(b, x)
	out := object{{"doc_id", x.Question.ID}, {"target", target}}
	filtered := pytext.Strip(x.Answer)
	if filtered != x.Answer {
		out = append(out, member{"resps", x.Answer})
	}
	out = append(out, member{"filtered_resps", filtered}, member{"token_counts", []any{nil}},
		member{"doc_hash", nullHash})
	out = append(out, metrics...)
	return append(out, member{"input", x.Question.Text})
}

// lmmsMetrics returns the truth and the metrics of a line.
func lmmsMetrics(b *eval.Benchmark, x *eval.Scored) (target string, metrics object) {
	hidden := b.Submission != nil && b.Submission.Only
	answer := pytext.Strip(x.Answer)
	same := func(v any, names ...string) object {
		var o object
		for _, n := range names {
			o = append(o, member{n, v})
		}
		return o
	}
	switch t := x.Question.Doc.(type) {
	case gqaTruth:
		return t.answer, same(x.Points, "exact_match")
	case *mmbRow:
		return pyText(t.cells["answer"]), same(t.submission(answer, b.Split == "cc"),
			"gpt_eval_score", "submission")
	case mmeTruth:
		name := "mme_perception_score"
		for _, c := range mmeCognition {
			if c == x.Question.Category {
				name = "mme_cognition_score"
			}
		}
		return strings.ToUpper(t.answer[:1]) + t.answer[1:], same(object{{"question_id", t.picture},
			{"category", x.Question.Category}, {"score", x.Points}}, name)
	case string: // POPE's label
		return t, same(
			object{{"question_id", x.Question.Key}, {"score", x.Points}, {"prediction", x.Parsed},
				{"ground_truth", t}}, "pope_accuracy", "pope_precision", "pope_recall",
			"pope_f1_score",
			"pope_yes_ratio")
	case sciTruth:
		return string(rune('A' + t.answer)), same(x.Points, "exact_match")
	case seedTruth:
		return t.answer, same(object{{"pred", x.Parsed}, {"answer", t.answer}, {"question_id",
			x.Question.Key}}, "seed_"+t.kind, "seed_all")
	case ocrTruth:
		return pyList(t.answers), same(
			object{{"question_type", x.Question.Category}, {"score", int(x.Points)},
				{"prediction", answer}, {"ground_truth", t.answers}}, "ocrbench_accuracy")
	}
	// The rest is VQAv2 and TextVQA, whose target names a column that does not exist.
	upload := object{{"submission", object{{"question_id", x.Question.Key}, {"answer", x.Parsed}}}}
	switch {
	case hidden:
		return "answer", upload
	case b.Name == "textvqa":
		return "answer", append(same(x.Points, "exact_match"), upload...)
	}
	return "answer", same(x.Points, "exact_match")
}

// submission returns a row in the harness's form.
func (m *mmbRow) submission(answer string, culture bool) object {
	o := object{
		{"index", m.index},
		{"question", m.question},
		{"answer", m.cells["answer"]},
		{"prediction", answer},
	}
	if culture {
		o = append(o, member{"source", m.cells["source"]}, member{"category", m.category})
	} else {
		o = append(o, member{"hint", m.cells["hint"]}, member{"source", m.cells["source"]},
			member{"split", m.cells["split"]}, member{"category", m.category},
			member{"L2-category", m.l2})
	}
	for _, letter := range strings.Split("ABCDE", "") {
		v, ok := m.cells[letter]
		if !ok {
			v = "nan"
		}
		o = append(o, member{letter, v})
	}
	return o
}

// pyText is Python's str() of a text or None.
func pyText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return "None"
}

// pyList is Python's str() of a list of texts.
func pyList(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quote := "'"
		if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
			quote = `"`
		}
		var b strings.Builder
		for _, r := range s {
			switch {
			case r == '\n':
				b.WriteString(`\n`)
			case r == '\t':
				b.WriteString(`\t`)
			case r == '\r':
				b.WriteString(`\r`)
			case string(r) == quote || r == '\\':
				b.WriteString(`\` + string(r))
			case r < 0x80 && (r < ' ' || r == 0x7f) || r >= 0x80 && r < 0x100 &&
				!unicode.IsPrint(r):
				fmt.Fprintf(&b, `\x%02x`, r)
			case !unicode.IsPrint(r) && r < 0x10000:
				fmt.Fprintf(&b, `\u%04x`, r)
			case !unicode.IsPrint(r):
				fmt.Fprintf(&b, `\U%08x`, r)
			default:
				b.WriteRune(r)
			}
		}
		s = b.String()
		quoted[i] = quote + s + quote
	}
	return fmt.Sprintf("[%s]", strings.Join(quoted, ", "))
}
