package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/reduce"
)

// summary is a report of one answer in a line, as in "576 → 64 tokens · first token 1.9 s · 12
// tok/s"; empty if a server said nothing of it.
func summary(ans *restore.Answer) string {
	var all api.VisualTokens
	for i := range ans.Pictures {
		all.Add(&ans.Pictures[i])
	}
	var parts []string
	if n := len(ans.Pictures); n > 0 {
		tokens := fmt.Sprintf("%d tokens", all.Before)
		switch {
		case all.Mean > 0:
			tokens = fmt.Sprintf("%d → %.4g tokens a layer", all.Before, all.Mean)
		case all.Kept+all.Merged != all.Before:
			tokens = fmt.Sprintf("%d → %d tokens", all.Before, all.Kept+all.Merged)
		}
		if n > 1 {
			tokens = fmt.Sprintf("%d pictures, %s", n, tokens)
		}
		parts = append(parts, tokens)
	}
	if first := ans.Timings.FirstToken; first > 0 {
		parts = append(parts, "first token "+cli.Seconds(first.Seconds()))
	}
	if v := tokensPerSecond(ans); v > 0 {
		digits := 0
		if v < 10 {
			digits = 1
		}
		parts = append(parts, fmt.Sprintf("%.*f tok/s", digits, v))
	}
	if note := finishNote(ans.Finish); note != "" {
		parts = append(parts, strings.TrimPrefix(note, ", "))
	}
	return strings.Join(parts, " · ")
}

// writeTable writes a report of one answer: one line each for model, tokens, method, times, speed
// and, if peak is not 0, memory.
func writeTable(w io.Writer, info *restore.Info, ans *restore.Answer, peak int64) error {
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "model\t%s\n", info.Name)
	if e := info.Encoder; e != nil && e.Why != "" {
		fmt.Fprintf(t, "encoder\t%s, because %s\n", e.Type, e.Why)
	}
	var all api.VisualTokens
	for i := range ans.Pictures {
		p := &ans.Pictures[i]
		all.Add(p)
		label, why := "visual tokens", "" // for one picture the line about the method says it
		if len(ans.Pictures) > 1 {
			label, why = fmt.Sprintf("picture %d", i+1), contentNote(p.Content)
		}
		if p.Cache != "" && p.Cache != restore.CacheNone {
			why += fmt.Sprintf(", cache %s", p.Cache)
		}
		fmt.Fprintf(t, "%s\t%s%s\n", label,
			cli.TokensLine(p.Tokens, p.Encoded, p.Kept, p.Merged), why)
	}
	if len(ans.Pictures) > 1 {
		fmt.Fprintf(t, "visual tokens\t%s\n",
			cli.TokensLine(all.Before, all.Encoded, all.Kept, all.Merged))
	}
	if len(ans.Pictures) > 0 {
		fmt.Fprintf(t, "method\t%s\n", ans.Pictures[0].Method)
	}
	if ans.ChosenBefore > 0 {
		fmt.Fprintf(t, "chosen before\t%d of the pictures: their tokens were chosen for the "+
			"question they came with\n", ans.ChosenBefore)
	}
	fmt.Fprintf(t, "prompt\t%s", cli.Count(ans.Usage.Prompt, "token"))
	if ans.Usage.Cached > 0 {
		fmt.Fprintf(t, ", %d of them cached", ans.Usage.Cached)
	}
	fmt.Fprintf(t, "\ntime\t%s\n", stageTimes(&ans.Timings))
	fmt.Fprintf(t, "answer\t%s", cli.Count(ans.Usage.Generated, "token"))
	if v := tokensPerSecond(ans); v > 0 {
		fmt.Fprintf(t, ", %.1f tokens/s", v)
	}
	fmt.Fprintf(t, "%s\n", finishNote(ans.Finish))
	if peak > 0 {
		fmt.Fprintf(t, "memory\t%s at peak\n", bytesize.MB(peak))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// tokensPerSecond is the speed of decoding, 0 if there was none. The first token is the prompt's;
// the token that ends an answer is decoded, but not counted.
func tokensPerSecond(ans *restore.Answer) float64 {
	n := ans.Usage.Generated
	if ans.Finish != restore.FinishStop {
		n--
	}
	if n <= 0 || ans.Timings.Decode <= 0 {
		return 0
	}
	return float64(n) / ans.Timings.Decode.Seconds()
}

// stageTimes lists the times of the stages that ran.
func stageTimes(r *restore.Timings) string {
	var out []string
	for _, s := range []struct {
		name string
		time time.Duration
	}{{"queue", r.Queue.Truncate(time.Millisecond)}, {"prepare", r.Prepare}, {"encode", r.Encode},
		{"select", r.Select}, {"merge", r.Merge}, {"prefill", r.Prefill},
		{"first token", r.FirstToken}} {
		if s.time > 0 {
			out = append(out, s.name+" "+cli.Milliseconds(s.time))
		}
	}
	if out == nil {
		return "none of the stages ended"
	}
	return strings.Join(out, ", ")
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
func finishNote(finish restore.Finish) string {
	switch finish {
	case restore.FinishLength:
		return ", cut by --n-predict or the context"
	case restore.FinishCancelled:
		return ", interrupted"
	}
	return ""
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
	Encoder         *restore.Encoder   `json:"encoder,omitempty"`
	Answer          string             `json:"answer"`
	Finish          restore.Finish     `json:"finish"`
	Tokens          []int32            `json:"tokens"`
	VisualTokens    visualJSON         `json:"visual_tokens"`
	Images          []visualJSON       `json:"images"`
	Method          string             `json:"method"`
	Parameters      json.RawMessage    `json:"parameters"`
	PromptTokens    int                `json:"prompt_tokens"`
	CachedTokens    int                `json:"cached_tokens"`
	ChosenBefore    int                `json:"pictures_chosen_for_earlier_questions,omitempty"`
	GeneratedTokens int                `json:"generated_tokens"`
	TokensPerSecond float64            `json:"tokens_per_second"`
	Times           map[string]float64 `json:"times_ms"`
	PeakRSS         int64              `json:"peak_rss_bytes"`
}

func newAnswerJSON(
	info *restore.Info, ans *restore.Answer, names, overlays, stages []string,
) answerJSON {
	t := &ans.Timings
	millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	j := answerJSON{
		Model: info.Name, Weights: info.Weights, Encoder: info.Encoder, Answer: ans.Text,
		Finish: ans.Finish, Tokens: append([]int32{}, ans.Tokens...), Images: []visualJSON{},
		Method: "none", PromptTokens: ans.Usage.Prompt, CachedTokens: ans.Usage.Cached,
		ChosenBefore: ans.ChosenBefore, GeneratedTokens: ans.Usage.Generated,
		TokensPerSecond: tokensPerSecond(ans),
		Times: map[string]float64{
			"prepare": millis(t.Prepare), "encode": millis(t.Encode), "select": millis(t.Select),
			"merge": millis(t.Merge), "prefill": millis(t.Prefill),
			"first_token": millis(t.FirstToken), "decode": millis(t.Decode),
		},
	}
	for i := range ans.Pictures {
		p := &ans.Pictures[i]
		v := visualJSON{Content: p.Content}
		v.Add(p)
		j.VisualTokens.Add(p)
		if i == 0 {
			j.Method, j.Parameters = p.Method, p.Parameters
		}
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
