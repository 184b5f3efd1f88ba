package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	api "github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/reduce"
)

// writeTable writes a report of one answer: one line each for model, tokens, method, times, speed
// and memory.
func writeTable(w io.Writer, m *engine.Engine, ans *engine.Answer) error {
	r := &ans.Report
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	info := m.Info()
	fmt.Fprintf(t, "model\t%s\n", info.Name)
	if e := info.Encoder; e != nil && e.Why != "" {
		fmt.Fprintf(t, "encoder\t%s\n", e)
	}
	for i, p := range r.Images {
		label, why := "visual tokens", "" // for one picture the line about the method says it
		if len(r.Images) > 1 {
			label, why = fmt.Sprintf("picture %d", i+1), contentNote(p.Content)
		}
		fmt.Fprintf(t, "%s\t%s%s\n", label, tokensLine(p.Tokens, p.Kept, p.Merged), why)
	}
	if len(r.Images) > 1 {
		fmt.Fprintf(t, "visual tokens\t%s\n", tokensLine(r.Before, r.Kept, r.Merged))
	}
	if len(r.Images) > 0 {
		fmt.Fprintf(t, "method\t%s\n", r.Options)
	}
	if r.ChosenBefore > 0 {
		fmt.Fprintf(t, "chosen before\t%d of the pictures: their tokens were chosen for the "+
			"question they came with\n", r.ChosenBefore)
	}
	fmt.Fprintf(t, "prompt\t%d tokens", r.PromptTokens)
	if r.CachedTokens > 0 {
		fmt.Fprintf(t, ", %d of them cached", r.CachedTokens)
	}
	fmt.Fprintf(t, "\ntime\t%s\n", stageTimes(r))
	fmt.Fprintf(t, "answer\t%d tokens", r.GeneratedTokens)
	if r.TokensPerSecond > 0 {
		fmt.Fprintf(t, ", %.1f tokens/s", r.TokensPerSecond)
	}
	fmt.Fprintf(t, "%s\n", finishNote(ans.Finish))
	fmt.Fprintf(t, "memory\t%s at peak\n", bytesize.MB(r.PeakRSS))
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// stageTimes lists the times of the stages that ran.
func stageTimes(r *engine.Report) string {
	var out []string
	for _, s := range []struct {
		name string
		time time.Duration
	}{{"prepare", r.Prepare}, {"encode", r.Encode}, {"select", r.Select}, {"merge", r.Merge},
		{"prefill", r.Prefill},
		{"first token", r.FirstToken}} {
		if s.time > 0 {
			out = append(out, s.name+" "+ms(s.time))
		}
	}
	if out == nil {
		return "none of the stages ended"
	}
	return strings.Join(out, ", ")
}

// tokensLine formats counts, as in "576 -> 32 kept + 32 merged" or "576, not reduced".
func tokensLine(before, kept, merged int) string {
	if merged == 0 && kept == before {
		return fmt.Sprintf("%d, not reduced", before)
	}
	return fmt.Sprintf("%d -> %d kept + %d merged", before, kept, merged)
}

// sizeLine formats a picture's size and tokens.
func sizeLine(width, height, tokens int) string {
	return fmt.Sprintf("%dx%d pixels, %d visual tokens", width, height, tokens)
}

// contentNote says how a picture's content set its budget, if it did.
func contentNote(c *reduce.Content) string {
	if c == nil {
		return ""
	}
	return ", " + c.String()
}

// finishNote says why an answer ended, if the model did not end it.
func finishNote(finish string) string {
	switch finish {
	case "length":
		return ", cut by --n-predict or the context"
	case "cancelled":
		return ", interrupted"
	}
	return ""
}

// ms formats a duration in milliseconds with three significant digits, short ones in microseconds.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 10:
		return fmt.Sprintf("%.1f ms", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f ms", v)
	}
	return fmt.Sprintf("%.1f µs", 1000*v)
}

// visualJSON counts visual tokens before and after a reduction.
type visualJSON struct {
	File string `json:"file,omitempty"`
	api.VisualTokens
	Content *reduce.Content `json:"content,omitempty"` // how it set the budget
	Overlay string          `json:"overlay,omitempty"`
	Stages  string          `json:"overlay_stages,omitempty"`
}

// answerJSON is the output of --json for an answer. Times are in milliseconds.
type answerJSON struct {
	Model           string             `json:"model"`
	Weights         map[string]int64   `json:"weights"` // number of weights by type
	Encoder         *engine.Encoder    `json:"encoder,omitempty"`
	Answer          string             `json:"answer"`
	Finish          string             `json:"finish"`
	Tokens          []int32            `json:"tokens"`
	VisualTokens    visualJSON         `json:"visual_tokens"`
	Images          []visualJSON       `json:"images"`
	Method          string             `json:"method"`
	Parameters      any                `json:"parameters"`
	PromptTokens    int                `json:"prompt_tokens"`
	CachedTokens    int                `json:"cached_tokens"`
	ChosenBefore    int                `json:"pictures_chosen_for_earlier_questions,omitempty"`
	GeneratedTokens int                `json:"generated_tokens"`
	TokensPerSecond float64            `json:"tokens_per_second"`
	Times           map[string]float64 `json:"times_ms"`
	PeakRSS         int64              `json:"peak_rss_bytes"`
}

func newAnswerJSON(
	m *engine.Engine,
	ans *engine.Answer,
	names, overlays, stages []string,
) answerJSON {
	r := &ans.Report
	millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	info := m.Info()
	j := answerJSON{
		Model: info.Name, Weights: info.Kept, Encoder: info.Encoder, Answer: ans.Text,
		Finish: ans.Finish,
		Tokens: append([]int32{}, ans.Tokens...),
		Images: []visualJSON{},
		Method: r.Options.String(), Parameters: r.Options,
		PromptTokens: r.PromptTokens, CachedTokens: r.CachedTokens, ChosenBefore: r.ChosenBefore,
		GeneratedTokens: r.GeneratedTokens, TokensPerSecond: r.TokensPerSecond,
		Times: map[string]float64{
			"prepare":     millis(r.Prepare),
			"encode":      millis(r.Encode),
			"select":      millis(r.Select),
			"merge":       millis(r.Merge),
			"prefill":     millis(r.Prefill),
			"first_token": millis(r.FirstToken),
			"decode":      millis(r.Decode),
		},
		PeakRSS: r.PeakRSS,
	}
	for i, p := range r.Images {
		v := visualJSON{Content: p.Content}
		v.Add(p.Tokens, p.Kept, p.Merged, p.Mean())
		j.VisualTokens.Add(p.Tokens, p.Kept, p.Merged, p.Mean())
		if i < len(names) {
			v.File = names[i]
		}
		if i < len(overlays) {
			v.Overlay = overlays[i]
		}
		if i < len(stages) {
			v.Stages = stages[i]
		}
		j.Images = append(j.Images, v)
	}
	return j
}

// writeJSON writes v on one line without HTML escaping.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// columns writes rows as a table; the first row is the heading.
func columns(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}
