package paper

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/chart"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/table"
)

// Ensure the paper's Averages follow from the figures next to them, so that both are as printed.
func TestValues(t *testing.T) {
	if n := len(tables()); n != Tables {
		t.Fatalf("%d tables, want %d", n, Tables)
	}
	checked := 0
	for i := range tables() {
		x := &tables()[i]
		for row := range x.Rows {
			if len(x.Rows[row].Cells) != len(x.Columns) {
				t.Fatalf("table %d, row %d: %d cells, want %d", x.Number, row,
					len(x.Rows[row].Cells), len(x.Columns))
			}
			printed, ok := x.value(row, "Average").(float64)
			parts := x.benchmarks()
			if !ok || len(parts) == 0 {
				continue
			}
			checked++
			if v, _ := x.retained(row, parts).(float64); math.Abs(v-printed) > 0.0501 {
				t.Errorf("table %d, row %d: %.3f, printed %.1f", x.Number, row, v, printed)
			}
		}
	}
	if checked != 143 {
		t.Errorf("%d Averages checked, want 143", checked)
	}
}

// Ensure every row of methods has a setting, and as many rows as settings.
func TestSettings(t *testing.T) {
	for _, i := range Items() {
		if i.Figure {
			continue
		}
		x, err := tableOf(i.Number)
		if err != nil {
			t.Fatal(err)
		}
		if m, ok := x.matrix(); ok {
			for r := range m.settings {
				if len(m.settings[r]) != len(m.columns) || len(m.paper[r]) != len(m.columns) {
					t.Errorf("%s, row %d: %d settings and %d values, want %d", i, r,
						len(m.settings[r]), len(m.paper[r]), len(m.columns))
				}
			}
			continue
		}
		if i.Number == 8 || i.Number == 18 || i.Number == 20 {
			continue
		}
		settings := x.settings()
		if len(settings) != len(x.Rows) {
			t.Errorf("%s: %d settings, want %d", i, len(settings), len(x.Rows))
		}
		for r, s := range settings {
			if name := x.Rows[r].Method; s.Base == "" && strings.HasPrefix(name, "+") {
				t.Errorf("%s: row %d (%s) reads every token", i, r, name)
			}
		}
	}
	s := Setting{Base: "visionzip", NVis: 64, Plain: true}
	if r, err := s.reduction(576); err != nil || !r.Plain ||
		r.Options["positions"] != "sequential" {
		t.Errorf("%+v, %v: the paper's plain baselines renumber positions", r, err)
	}
	s = Setting{Base: "fastv", NVis: 192, Plain: true}
	if r, err := s.reduction(576); err != nil || r.Options["positions"] != nil {
		t.Errorf("%+v, %v: methods inside the decoder keep positions", r, err)
	}
	s = Setting{Base: "holov", NVis: 320, Share: 1. / 9}
	if r, err := s.reduction(576); err != nil || r.NVis != 64 {
		t.Errorf("%+v, %v: want the share of this model's tokens", r, err)
	}
	for _, c := range []struct {
		s       Setting
		tokens  int
		nVis    int
		share   float64
		anchors any
	}{
		{holov, 576, 64, 0, nil},
		{holov, 256, 28, 0, "released"}, // 28.4
		{holov, 0, 0, 1. / 9, "released"},
		{holov, 4, 1, 0, nil},
		{holov.with("gamma", 1.0), 256, 28, 0, nil},
		{holov.with("anchors", "uniform"), 256, 28, 0, "uniform"},
		{Setting{Base: "holov", NVis: 160, Share: 1. / 18}, 576, 32, 0, "released"},
		{Setting{Base: "holov", NVis: 160, Share: 1. / 18, Plain: true}, 576, 32, 0, nil},
		{Setting{Base: "fastv", NVis: 64}, 288, 32, 0, nil},
		{Setting{Base: "flowcut", NVis: 64}, 256, 28, 0, "released"},
		{Setting{Base: "divprune", Share: 0.111}, 0, 0, 0.111, "released"},
	} {
		r, err := c.s.reduction(c.tokens)
		if err != nil || r.NVis != c.nVis || r.KeepRatio != c.share ||
			r.Options["anchors"] != c.anchors {
			t.Errorf("%s of %d tokens: got %+v, %v, want %d, %v, anchors %v: the paper's share, "+
				"and its anchors", c.s, c.tokens, r, err, c.nVis, c.share, c.anchors)
		}
	}
}

// Ensure that a page says what the paper's numbers of tokens became, and of how many questions its
// score of OCRBench is.
func TestNotes(t *testing.T) {
	for _, c := range []struct {
		theirs, ours int
		want         string
	}{{576, 576, "[]"}, {576, 256, "the 256 tokens"}, {2880, 0, "each picture's"}} {
		if got := fmt.Sprint(budgetNote(c.theirs, c.ours)); !strings.Contains(got, c.want) {
			t.Errorf("%d, %d: got %s, want %q", c.theirs, c.ours, got, c.want)
		}
	}
	ocr, err := tableOf(11)
	if err != nil {
		t.Fatal(err)
	}
	m, _ := ocr.matrix()
	if got := figureName(&Source{}, m); !strings.Contains(got, "1,000 questions") {
		t.Errorf("got %q", got)
	}
}

// opened opens the embedded model with records in a folder.
func opened(t *testing.T, records string) *Maker {
	t.Helper()
	m, err := restore.Open(t.Context(), "", &restore.Options{Threads: 1, EncodedBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &Maker{Model: m, Records: records, Paper: llava}
}

// llava is the paper's model without weights.
func llava() (*engine.Engine, error) {
	config, err := os.ReadFile("../model/llava/shapes/llava-1.5-7b.json")
	if err != nil {
		return nil, err
	}
	ck, err := checkpoint.FromConfig("llava-1.5-7b", config)
	if err != nil {
		return nil, err
	}
	return engine.New(ck, engine.Options{Threads: 1},
		engine.Hooks{Describe: true, Weights: engine.NoData})
}

// Ensure every table and figure is made on a scene, in every format, says so, and is made again
// from the records alone.
func TestPages(t *testing.T) {
	items := Items()
	if testing.Short() {
		items = []Item{{false, 4}, {false, 8}, {false, 11}, {false, 14}, {false, 18}, {false, 20},
			{true, 2}, {true, 3}}
	}
	records := t.TempDir()
	mk := opened(t, records)
	ctx := context.Background()
	for _, i := range items {
		src := Drawn(1)
		p, err := mk.Make(ctx, i, src)
		if err != nil {
			t.Fatalf("%s: %v", i, err)
		}
		counted := i.String() == "table 8" || i.String() == "table 20" || i.String() == "figure 3"
		if said := strings.Contains(p.Title, "drawn scenes"); said == counted ||
			p.Scenes == counted {
			t.Errorf("%s: %q", i, p.Title)
		}
		if len(p.Rows) < 4 || i.Figure != (len(p.Panels) > 0) {
			t.Errorf("%s: %d rows and %d panels", i, len(p.Rows), len(p.Panels))
		}
		numbers := 0
		for _, row := range p.Rows {
			if len(row) != 1 && len(row) != len(p.Columns) {
				t.Errorf("%s: %v, want %d cells", i, row, len(p.Columns))
			}
			for _, v := range row {
				switch v := v.(type) {
				case string:
					if strings.Contains(v, planned) {
						t.Errorf("%s: %v", i, row)
					}
				case float64:
					if numbers++; math.IsNaN(v) || math.IsInf(v, 0) {
						t.Errorf("%s: %v", i, row)
					}
				}
			}
		}
		if numbers == 0 {
			t.Errorf("%s: no numbers", i)
		}
		for _, f := range table.Formats {
			var b strings.Builder
			if err := p.Write(&b, f); err != nil || b.Len() == 0 {
				t.Errorf("%s as %s: %v", i, f, err)
			}
		}
		if i.Figure {
			drawn(t, i, p)
		}
		if data, err := json.Marshal(p); err != nil || !strings.Contains(string(data), `"rows":`) {
			t.Errorf("%s: %s, %v", i, data, err)
		}

		other := *mk
		other.done = nil
		plan, err := other.Work(ctx, i, src)
		if err != nil || plan.Done != plan.Runs || plan.Left != 0 {
			t.Errorf("%s: %+v, %v after it was run", i, plan, err)
		}
		again, err := other.Make(ctx, i, src)
		if err != nil || fmt.Sprint(again.Rows) != fmt.Sprint(p.Rows) {
			t.Errorf("%s: %v, %v, want the same as before", i, again, err)
		}
	}
}

// drawn checks that a figure can be drawn.
func drawn(t *testing.T, i Item, p *Page) {
	t.Helper()
	var b bytes.Buffer
	if err := chart.Draw(&b, p.Title, p.Panels); err != nil {
		t.Errorf("%s: %v", i, err)
	}
	var text struct {
		All []string `xml:"text"`
	}
	if err := xml.Unmarshal(b.Bytes(), &text); err != nil || len(text.All) == 0 {
		t.Errorf("%s: got %d texts, %v, want a drawing with texts", i, len(text.All), err)
	}
}

// Ensure the operations that are counted for the paper's model are those that it prints.
func TestOperations(t *testing.T) {
	mk := opened(t, t.TempDir())
	for _, number := range []int{8, 20} {
		p, err := mk.Make(context.Background(), Item{Number: number}, Drawn(1))
		if err != nil {
			t.Fatal(err)
		}
		compared := 0
		for _, row := range p.Rows {
			for c := 2; c < len(row); c += 2 {
				paper, ok := row[c].(float64)
				if ours, is := row[c-1].(float64); ok && is {
					compared++
					if math.Abs(ours-paper) > 0.0005 {
						t.Errorf("table %d: %v: %s: %.4f, the paper has %v", number, row[0],
							p.Columns[c-1].Name, ours, paper)
					}
				}
			}
		}
		if want := map[int]int{8: 9, 20: 15}[number]; compared != want {
			t.Errorf("table %d: %d values compared, want %d", number, compared, want)
		}
	}
}

// Ensure what cannot be run is marked with why, stands for no number, and nothing is made of
// nothing.
func TestNotRun(t *testing.T) {
	ctx := context.Background()
	mk := opened(t, t.TempDir())
	src := Folder(t.TempDir(), bench.Options{}, 0)
	if _, err := mk.Make(ctx, Item{Number: 11}, src); err == nil ||
		!strings.HasPrefix(err.Error(), "ocrbench: ") {
		t.Errorf("got %v, want what is missing", err)
	}

	mk = opened(t, t.TempDir())
	src = Folder("../../eval/bench/testdata/llava", bench.Options{}, 2)
	defer src.Close()
	p, err := mk.Make(ctx, Item{Number: 3}, src)
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(p.Notes, "\n")
	for _, want := range []string{"(a) ", "not run: ", "The Average of "} {
		if !strings.Contains(notes, want) {
			t.Errorf("%s, want %q", notes, want)
		}
	}
	for _, row := range p.Rows {
		if len(row) > 1 {
			if mark, ok := row[1].(string); !ok || !strings.HasPrefix(mark, "(") {
				t.Errorf("%v: an Average of benchmarks of which some are missing", row)
			}
		}
	}

	for _, i := range []Item{{false, 0}, {false, 21}, {true, 1}, {true, 6}} {
		if _, err := mk.Make(ctx, i, src); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want an error of one line", i, err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	mk = opened(t, t.TempDir())
	if _, err := mk.Make(ctx, Item{Number: 4}, Drawn(1)); err == nil {
		t.Error("an interrupted page was made")
	}
}

// Ensure that figures by lmms-eval's protocol are in the paper's units, and that titles name it.
func TestProtocol(t *testing.T) {
	for _, c := range []struct {
		name, protocol, metric, part string
		got, want                    float64
	}{
		{"gqa", bench.LMMS, "exact_match", "", 0.625, 62.5},
		{"gqa", bench.Paper, "accuracy", "", 61.5, 61.5},
		{"pope", bench.LMMS, "pope_f1_score", "", 0.75, 75},
		{"mmbench-en", bench.LMMS, "gpt_eval_score", "", 64.5, 64.5},
		{"ocrbench", bench.LMMS, "ocrbench_accuracy", "", 0.25, 250},
		{"seedbench", bench.LMMS, "seed_image", "image", 0.5, 50},
		{"seedbench", bench.Paper, "image", "image", 70.5, 70.5},
		{bench.ScenesName, "", "count", "count", 99.5, 99.5},
	} {
		x := &outcome{result: &eval.Result{Metrics: eval.Metrics{{Name: c.metric, Value: c.got}}}}
		if v, why := x.value(c.name, c.protocol, c.part); v != c.want || why != "" {
			t.Errorf("%s, %s: got %v, %q, want %v", c.name, c.protocol, v, why, c.want)
		}
	}
	want := "D by lmms-eval's protocol (the first 2 questions)"
	if got := Folder("D", bench.Options{Protocol: bench.LMMS}, 2).title(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Ensure that measurements of pictures keep to a limit of questions, which their titles name: every
// drawn scene has more than two questions.
func TestPicturesLimit(t *testing.T) {
	for limit, want := range map[int]int{0: 3, 2: 1} {
		got, err := pictures(drawnScenes(3), 100, limit)
		if err != nil || len(got) != want {
			t.Errorf("limit %d: %d pictures, %v, want %d", limit, len(got), err, want)
		}
	}
}

// Ensure that questions which are asked together are answered as each alone is, whatever the
// reduction, the number of pictures at a time and of threads.
func TestTogether(t *testing.T) {
	settings := []Setting{holov, full, {Base: "fastv", NVis: 192, Plain: true}}
	if testing.Short() {
		settings = settings[:1]
	}
	for _, s := range settings {
		answers := map[int]string{}
		for _, threads := range []int{1, 2} {
			model, err := restore.Open(t.Context(), "",
				&restore.Options{Threads: threads, EncodedBytes: 1 << 30})
			if err != nil {
				t.Fatal(err)
			}
			defer model.Close()
			how, err := s.reduction(576)
			if err != nil {
				t.Fatal(err)
			}
			b := drawnScenes(2)
			m := &eval.Service{Model: model, Reduction: how}
			if threads == 1 {
				for q, err := range b.Questions() {
					if err != nil {
						t.Fatal(err)
					}
					pic, err := q.Images[0].Picture()
					if err != nil {
						t.Fatal(err)
					}
					a, err := model.Ask(t.Context(), restore.Request{
						Prompt: q.Text, Pictures: []*restore.Picture{pic}, Reduction: how,
						MaxTokens: b.MaxTokens, NoCache: true,
					})
					if err != nil {
						t.Fatal(err)
					}
					answers[q.ID] = a.Text
				}
			}
			for _, parallel := range []int{1, 2} {
				o := eval.RunOptions{Parallel: parallel}
				_, scored, err := eval.Run(t.Context(), b, m, o)
				if err != nil || len(scored) != len(answers) {
					t.Fatalf("%s: %d answers, want %d, %v", s, len(scored), len(answers), err)
				}
				for _, x := range scored {
					if want := answers[x.Question.ID]; x.Answer != want {
						t.Errorf("%s, %d threads, %d pictures: question %d: %q, alone %q", s,
							threads, parallel, x.Question.ID, x.Answer, want)
					}
				}
			}
		}
	}
}
