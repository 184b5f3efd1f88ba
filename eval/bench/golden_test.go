package bench

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"image"
	_ "image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/pytext"
)

// tolerance is relative: sums are taken in the harnesses' order.
const tolerance = 1e-12

// expected is the result of a harness's own code for a benchmark; see tools/fixtures/benchmarks.py.
type expected struct {
	Name, Protocol, Split, Data string
	Judge                       bool // testdata's judge answers
	Keys                        []any
	Texts                       []string
	Images                      []int
	Runs                        []struct {
		Answers []string
		Scores  []float64
		Metrics map[string]float64
	}
}

func unzip(t *testing.T, name string) io.Reader {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// vectors calls f with each line of a file.
func vectors[T any](t *testing.T, name string, f func(v T)) {
	t.Helper()
	in := bufio.NewScanner(unzip(t, name))
	in.Buffer(nil, 1<<22)
	n := 0
	for ; in.Scan(); n++ {
		var v T
		if err := json.Unmarshal(in.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		f(v)
	}
	if n == 0 || in.Err() != nil {
		t.Fatalf("%s: %d lines, %v", name, n, in.Err())
	}
}

func near(got, want float64) bool {
	return math.Abs(got-want) <= tolerance*max(1, math.Abs(want))
}

// Ensure that prompts, scores and aggregates equal those of the harnesses' own code.
func TestHarnesses(t *testing.T) {
	replies := map[string]string{}
	if err := json.NewDecoder(unzip(t, "judge.json.gz")).Decode(&replies); err != nil {
		t.Fatal(err)
	}
	judge := func(_ context.Context, prompt string) (string, error) {
		reply, ok := replies[prompt]
		if !ok {
			return "", fmt.Errorf("no such request: %q", prompt)
		}
		return reply, nil
	}
	vectors(t, "expected.jsonl.gz", func(want expected) {
		t.Run(fmt.Sprint(want.Name, want.Protocol, want.Split, want.Judge), func(t *testing.T) {
			o := Options{Protocol: want.Protocol, Split: want.Split}
			if want.Judge {
				o.Judge = judge
			}
			b, err := Open(want.Name, filepath.Join("testdata", want.Data), o)
			if err != nil {
				t.Fatal(err)
			}
			if b.Close != nil {
				defer b.Close()
			}
			checkPrompts(t, b, &want)
			for _, run := range want.Runs {
				answers := map[int]string{}
				for i, a := range run.Answers {
					answers[i] = a
				}
				r, _, err := eval.ScoreAll(t.Context(), b, eval.Selection{}, answers)
				if err != nil {
					t.Fatal(err)
				}
				for i, s := range run.Scores {
					if got := r.Scores[i].Score; got == nil || !near(*got, s) {
						t.Errorf("question %d: score %v, want %v of %q", i, got, s, run.Answers[i])
					}
				}
				for name, v := range run.Metrics {
					if got, ok := r.Metrics.Get(name); !ok || !near(got, v) {
						t.Errorf("%s: got %v, want %v", name, got, v)
					}
				}
			}
		})
	})
}

func checkPrompts(t *testing.T, b *eval.Benchmark, want *expected) {
	t.Helper()
	n := 0
	for q, err := range b.Questions() {
		if err != nil {
			t.Fatal(err)
		}
		if n < len(want.Texts) {
			if q.Text != want.Texts[n] {
				t.Errorf("question %d: %q, want %q", n, q.Text, want.Texts[n])
			}
			if key := want.Keys[n]; fmt.Sprint(q.Key) != strings.TrimSuffix(fmt.Sprintf("%v",
				number64(key)), ".0") {
				t.Errorf("question %d: key %v, want %v", n, q.Key, key)
			}
			if len(q.Images) != want.Images[n] {
				t.Errorf("question %d: %d pictures, want %d", n, len(q.Images), want.Images[n])
			}
		}
		n++
	}
	if len(want.Texts) > 0 && n != len(want.Texts) {
		t.Errorf("%d questions, want %d", n, len(want.Texts))
	}
}

// number64 makes a whole number of what JSON read as a float.
func number64(v any) any {
	if f, ok := v.(float64); ok {
		return int64(f)
	}
	return v
}

// Ensure that every picture of the hub's files and of tables opens, in order and out of order.
func TestPictures(t *testing.T) {
	for _, c := range []struct{ name, data, protocol string }{
		{"gqa", "hub/lmms-lab/GQA", LMMS}, {"mmbench-en", "hub/lmms-lab/MMBench_EN", Paper}, {"mmbench-cn", "llava/mmbench_cn", Paper},
		{"mme", "hub/lmms-lab/MME", LMMS}, {"pope", "hub/lmms-lab/POPE", LMMS}, {"scienceqa", "hub/lmms-lab/ScienceQA", LMMS},
		{"vqav2", "hub/lmms-lab/VQAv2", LMMS}, {"textvqa", "hub/lmms-lab/textvqa", LMMS}, {"seedbench", "hub/lmms-lab/SEED-Bench", LMMS},
		{"ocrbench", "hub/echo840/OCRBench", LMMS},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := Open(c.name, filepath.Join("testdata", c.data), Options{Protocol: c.protocol})
			if err != nil {
				t.Fatal(err)
			}
			if b.Close != nil {
				defer b.Close()
			}
			var images []eval.Image
			for q, err := range b.Questions() {
				if err != nil {
					t.Fatal(err)
				}
				images = append(images, q.Images...)
			}
			for i := range images {
				// 0, last, 1, last-1, …: a reader of rows in order must go back.
				j := i / 2
				if i%2 == 1 {
					j = len(images) - 1 - i/2
				}
				f, err := images[j].Open()
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := image.Decode(f); err != nil {
					t.Fatalf("%s: %v", images[j].Name, err)
				}
				f.Close()
			}
		})
	}
}

func TestVQAVectors(t *testing.T) {
	vectors(t, "vqa_normalise.jsonl.gz", func(v struct {
		S           string
		M4C         string
		LMMSTextVQA string `json:"lmms_textvqa"`
		OfficialVQA string `json:"official_vqa"`
	}) {
		for name, c := range map[string][2]string{
			"m4c": {normalVQA(v.S), v.M4C}, "lmms_textvqa": {normalVQA(v.S), v.LMMSTextVQA},
			"official": {words(punctuation(oneLine(v.S), false)), v.OfficialVQA},
		} {
			if c[0] != c[1] {
				t.Errorf("%s of %q: %q, want %q", name, v.S, c[0], c[1])
			}
		}
	})
	vectors(t, "vqa_accuracy.jsonl.gz", func(v struct {
		Humans   []string
		Pred     string
		TextVQA  float64 `json:"lmms_textvqa"`
		LLaVA    float64 `json:"llava_textvqa"`
		VQAv2    float64 `json:"lmms_vqav2"`
		Official float64 `json:"official_vqa_percent"`
		Upload   float64 `json:"official_vqa_percent_of_llava_upload"`
	}) {
		var text, raw []human
		for i, h := range v.Humans {
			text = append(text, human{normalVQA(h), fmt.Sprint(i)})
			raw = append(raw, human{h, fmt.Sprint(i)})
		}
		q, qt := &eval.Question{Doc: raw}, &eval.Question{Doc: text}
		for name, c := range map[string][2]float64{
			"lmms textvqa":  {scoreTextVQA(exactMean)(qt, v.Pred).Points, v.TextVQA},
			"llava textvqa": {scoreTextVQA(sumMean)(qt, v.Pred).Points, v.LLaVA},
			"lmms vqav2":    {scoreVQAv2LMMS(q, v.Pred).Points, v.VQAv2},
			"official":      {100 * scoreVQAv2Paper(q, v.Pred).Points, v.Official},
			"upload":        {100 * scoreVQAv2Paper(q, normalVQA(v.Pred)).Points, v.Upload},
		} {
			if math.Abs(c[0]-c[1]) > 0.005+tolerance { // the tool rounds to two decimals
				t.Errorf("%s: %v, want %v of %q by %q", name, c[0], c[1], v.Pred, v.Humans)
			}
		}
	})
}

func TestYesNoVectors(t *testing.T) {
	vectors(t, "yes_no.jsonl.gz", func(v struct {
		S         string
		LLaVAPOPE string `json:"llava_pope"`
		LMMSPOPE  string `json:"lmms_pope"`
		LMMSMME   string `json:"lmms_mme"`
		Tool      string `json:"mme_tool"`
	}) {
		trimmed := v.S == pytext.Strip(v.S) // as scripts do with a model's answers
		pope, mme := &eval.Question{Doc: ""}, &eval.Question{Doc: mmeTruth{}}
		for name, c := range map[string][2]string{
			"lmms pope": {scorePOPELMMS(pope, v.S).Parsed, v.LMMSPOPE},
			"lmms mme":  {scoreMMELMMS(mme, v.S).Parsed, v.LMMSMME},
		} {
			if c[0] != c[1] {
				t.Errorf("%s of %q: %q, want %q", name, v.S, c[0], c[1])
			}
		}
		if p, m := scorePOPEPaper(pope, v.S).Parsed, scoreMMEPaper(mme, v.S).Parsed; trimmed &&
			(p != v.LLaVAPOPE || m != v.Tool) {
			t.Errorf("pope and mme's tool of %q: %q %q, want %q %q", v.S, p, m, v.LLaVAPOPE, v.Tool)
		}
	})
}

func TestOptionVectors(t *testing.T) {
	vectors(t, "options.jsonl.gz", func(v struct {
		S         string
		Options   []string
		Letter    *string  `json:"lmms_mmbench_option"`
		LMMS      *string  `json:"lmms_mmbench"`
		Extract   string   `json:"lmms_mcq_extract"`
		ExtractAH string   `json:"lmms_mcq_extract_AH"`
		EvalKit   *string  `json:"vlmevalkit"`
		LMMSSci   []string `json:"lmms_scienceqa"`
		Sci       string   `json:"llava_scienceqa"`
		SciIndex  int      `json:"llava_scienceqa_index"`
		SEEDRight []string `json:"lmms_seed_right"`
	}) {
		var all []choice
		var letters []string
		for i, text := range v.Options {
			letters = append(letters, "ABCDE"[i:i+1])
			all = append(all, choice{letters[i], text})
		}
		text := func(p *string) string {
			if p == nil {
				return ""
			}
			return *p
		}
		four := all[:min(4, len(all))] // lmms-eval's MMBench has the letters A to D
		var sci, seed []string
		for i, l := range strings.Split("ABCDE", "") {
			if i < len(all) && scoreSciLMMS(&eval.Question{Doc: sciTruth{answer: i,
				choices: len(all)}}, v.S).Points == 1 {
				sci = append(sci, l)
			}
			if scoreSEEDLMMS(&eval.Question{Doc: seedTruth{answer: l}}, v.S).Points == 1 &&
				l != "E" {
				seed = append(seed, l)
			}
		}
		for name, c := range map[string][2]string{
			"lmms letter": {optionLetter(v.S), text(v.Letter)}, "lmms mmbench": {letterOfLMMS(v.S, four), text(v.LMMS)},
			"mcq": {letterAnywhere(v.S, letters[:len(four)]), v.Extract}, "mcq A-H": {letterAnywhere(v.S, nil), v.ExtractAH},
			"evalkit": {letterOfEvalKit(v.S, all), text(v.EvalKit)}, "lmms sci": {fmt.Sprint(sci), fmt.Sprint(v.LMMSSci)},
			"seed": {fmt.Sprint(seed), fmt.Sprint(v.SEEDRight)},
		} {
			if c[0] != c[1] {
				t.Errorf("%s of %q with %q: %q, want %q", name, v.S, v.Options, c[0], c[1])
			}
		}
		for i := range all {
			if v.S != pytext.Strip(v.S) {
				break
			}
			s := scoreSciPaper(&eval.Question{Doc: sciTruth{answer: i, choices: len(all)}}, v.S)
			if right := i == v.SciIndex; s.Parsed != v.Sci || right != (s.Points == 1) {
				t.Errorf("llava scienceqa of %q: %q %v, want %q, index %d", v.S, s.Parsed, s.Points,
					v.Sci, v.SciIndex)
			}
		}
	})
}

func TestMatchVectors(t *testing.T) {
	vectors(t, "exact_match.jsonl.gz", func(v struct {
		Gold, Pred string
		LMMS       float64 `json:"lmms_gqa"`
		Parsed     string  `json:"llava_gqa_prediction"`
		LLaVA      float64 `json:"llava_gqa"`
	}) {
		q := &eval.Question{Doc: gqaTruth{answer: v.Gold}}
		if v.Pred != pytext.Strip(v.Pred) {
			return // the converter was called with texts that scripts would trim
		}
		l, p := scoreGQALMMS(q, v.Pred), scoreGQAPaper(q, v.Pred)
		if l.Points != v.LMMS || p.Points != v.LLaVA || p.Parsed != v.Parsed {
			t.Errorf("%q for %q: %v %v %q, want %+v", v.Pred, v.Gold, l.Points, p.Points, p.Parsed,
				v)
		}
	})
	vectors(t, "ocr_contains.jsonl.gz", func(v struct {
		Dataset, Pred string
		Answers       any
		Restore, LMMS float64
	}) {
		truth := ocrTruth{formula: v.Dataset == "HME100k"}
		switch a := v.Answers.(type) {
		case string:
			truth.answers = []string{a}
		case []any:
			for _, s := range a {
				truth.answers = append(truth.answers, s.(string))
			}
		}
		q := &eval.Question{Doc: truth}
		plain := func(s string) string { return s }
		if r, l := scoreOCR(plain)(q, v.Pred).Points,
			scoreOCR(plainWidth)(q, v.Pred).Points; r != v.Restore ||
			l != v.LMMS {
			t.Errorf("%q for %q of %s: %v %v, want %v %v", v.Pred, v.Answers, v.Dataset, r, l,
				v.Restore, v.LMMS)
		}
	})
}

// Ensure that the generator draws the same numbers as Python's random.seed(2680) and randint(0, 4).
func TestTwister(t *testing.T) {
	r := newTwister(2680)
	for i, want := range []uint32{
		4, 3, 2, 4, 4, 3, 3, 2, 4, 2, 3, 2, 3, 2, 3, 0, 2, 0, 0, 3, 1, 2, 2, 4,
	} {
		if got := r.below(5); got != want {
			t.Fatalf("draw %d: %d, want %d", i, got, want)
		}
	}
}
