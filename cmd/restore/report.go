package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	restore "github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/overlay"
)

// writeTable writes what was done for one answer: a line each for tokens, method, times, speed and memory.
func writeTable(w io.Writer, ans *restore.Answer) error {
	r := &ans.Report
	var b bytes.Buffer
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i, p := range r.Images {
		label := "visual tokens"
		if len(r.Images) > 1 {
			label = fmt.Sprintf("picture %d", i+1)
		}
		fmt.Fprintf(t, "%s\t%s\n", label, tokensLine(p.Tokens, p.Kept, p.Merged))
	}
	if len(r.Images) > 1 {
		fmt.Fprintf(t, "visual tokens\t%s\n", tokensLine(r.Before, r.Kept, r.Merged))
	}
	if len(r.Images) > 0 {
		fmt.Fprintf(t, "method\t%s\n", describe(r.Options))
	}
	if r.ChosenBefore > 0 {
		fmt.Fprintf(t, "chosen before\t%d of the pictures: what is kept of them was chosen for the question they came with\n", r.ChosenBefore)
	}
	fmt.Fprintf(t, "prompt\t%d tokens", r.PromptTokens)
	if r.CachedTokens > 0 {
		fmt.Fprintf(t, ", %d of them kept from before", r.CachedTokens)
	}
	fmt.Fprintf(t, "\ntime\tprepare %s, encode %s, select %s, merge %s, prefill %s, first token %s\n",
		ms(r.Prepare), ms(r.Encode), ms(r.Select), ms(r.Merge), ms(r.Prefill), ms(r.FirstToken))
	fmt.Fprintf(t, "answer\t%d tokens, %.1f tokens/s%s\n", r.GeneratedTokens, r.TokensPerSecond, finishNote(ans.Finish))
	fmt.Fprintf(t, "memory\t%.1f MB at peak\n", float64(r.PeakRSS)/1e6)
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// tokensLine is "576 -> 32 kept + 32 merged", or "576, not reduced".
func tokensLine(before, kept, merged int) string {
	if merged == 0 && kept == before {
		return fmt.Sprintf("%d, not reduced", before)
	}
	return fmt.Sprintf("%d -> %d kept + %d merged", before, kept, merged)
}

// finishNote says why an answer ended when it did not end by itself.
func finishNote(finish string) string {
	switch finish {
	case "length":
		return ", cut by --n-predict or the context"
	case "cancelled":
		return ", interrupted"
	}
	return ""
}

// ms is a duration in milliseconds with three digits that count.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f ms", v)
	case v >= 10:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.2f ms", v)
}

// visualJSON counts visual tokens before and after a reduction.
type visualJSON struct {
	File    string `json:"file,omitempty"`
	Before  int    `json:"before"`
	Kept    int    `json:"kept"`
	Merged  int    `json:"merged"`
	Overlay string `json:"overlay,omitempty"`
	Stages  string `json:"overlay_stages,omitempty"`
}

// answerJSON is the object that --json prints for an answer. Times are in milliseconds.
type answerJSON struct {
	Model           string             `json:"model"`
	Weights         map[string]int64   `json:"weights"` // numbers by the type in which they are kept
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

func newAnswerJSON(m *restore.Model, ans *restore.Answer, names, overlays, stages []string) answerJSON {
	r := &ans.Report
	millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	info := m.Info()
	j := answerJSON{
		Model: info.Name, Weights: info.Kept, Answer: ans.Text, Finish: ans.Finish, Tokens: append([]int32{}, ans.Tokens...),
		VisualTokens: visualJSON{Before: r.Before, Kept: r.Kept, Merged: r.Merged}, Images: []visualJSON{},
		Method: describe(r.Options), Parameters: r.Options,
		PromptTokens: r.PromptTokens, CachedTokens: r.CachedTokens, ChosenBefore: r.ChosenBefore, GeneratedTokens: r.GeneratedTokens, TokensPerSecond: r.TokensPerSecond,
		Times: map[string]float64{"prepare": millis(r.Prepare), "encode": millis(r.Encode), "select": millis(r.Select), "merge": millis(r.Merge),
			"prefill": millis(r.Prefill), "first_token": millis(r.FirstToken), "decode": millis(r.Decode)},
		PeakRSS: r.PeakRSS,
	}
	for i, p := range r.Images {
		v := visualJSON{Before: p.Tokens, Kept: p.Kept, Merged: p.Merged}
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

// writeJSON writes v on one line, with text as it is.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// drawOverlays writes the picture of kept and merged patches of each picture of r, and that of the stages of a method inside the encoder or the decoder. It
// returns the files' names.
func (o *runOptions) drawOverlays(r restore.Request, ans *restore.Answer) (names, stages []string, err error) {
	for i, p := range ans.Report.Images {
		if i >= len(r.Images) {
			continue
		}
		if o.overlay != "" {
			name := overlayName(o.overlay, i, len(r.Images))
			if err := writePNG(name, overlay.Draw(r.Images[i], p.Reduction, p.Grids)); err != nil {
				return names, stages, err
			}
			names = append(names, name)
		}
		if o.stages != "" && p.Reduction != nil && len(p.Reduction.Stages) > 0 {
			name := overlayName(o.stages, i, len(r.Images))
			if err := writePNG(name, overlay.DrawStages(r.Images[i], p.Reduction, p.Grids)); err != nil {
				return names, stages, err
			}
			stages = append(stages, name)
		}
	}
	return names, stages, nil
}

func writePNG(path string, img image.Image) error {
	return writeFile(path, nil, func(w io.Writer) error { return png.Encode(w, img) })
}

// columns writes rows as a table whose first row is the heading.
func columns(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}
