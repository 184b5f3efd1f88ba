package api

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/restore-vlm/restore"
)

// Extension is the object "restore" of a reply: it reports the reductions.
type Extension struct {
	Images  []ImageExtension `json:"images"`
	Visual  VisualTokens     `json:"visual_tokens"`
	Seed    *int64           `json:"seed,omitempty"`
	Ignored []string         `json:"ignored_fields,omitempty"`
	Worker  string           `json:"worker,omitempty"`
}

// ImageExtension is the report about one picture.
type ImageExtension struct {
	Index      int             `json:"index"`
	Width      int             `json:"width"`
	Height     int             `json:"height"`
	Tokens     int             `json:"tokens"`
	Encoded    int             `json:"encoded,omitempty"` // as in VisualTokens
	Kept       int             `json:"kept"`
	Merged     int             `json:"merged"`
	Mean       float64         `json:"mean,omitempty"` // as in VisualTokens
	Cache      restore.Cache   `json:"cache"`
	Method     string          `json:"method"`
	Parameters json.RawMessage `json:"parameters"`
	*groupFields
}

// groupFields say which tokens each row of a picture stands for.
type groupFields struct {
	Grid   *gridFields     `json:"grid"`           // nil: no grid
	Area   *restore.Area   `json:"area,omitempty"` // covered by the grid; nil: not known
	Groups []restore.Group `json:"groups"`
}

// gridFields are the number of rows and columns of a picture's tokens.
type gridFields struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

// VisualTokens counts the visual tokens of a request. Kept and Merged are those after the last
// layer.
type VisualTokens struct {
	Before int `json:"before"`
	// those that a method before the encoder left, if it left out any; else 0
	Encoded int     `json:"encoded,omitempty"`
	Kept    int     `json:"kept"`
	Merged  int     `json:"merged"`
	Mean    float64 `json:"mean,omitempty"` // that enter a layer, if layers differ; else 0
}

// pruned returns how many of a picture's tokens were encoded, 0 if all were.
func pruned(p *restore.PictureReport) int {
	if p.Encoded == p.Tokens {
		return 0
	}
	return p.Encoded
}

// Add counts a picture.
func (v *VisualTokens) Add(p *restore.PictureReport) {
	if p.Mean > 0 || v.Mean > 0 {
		v.Mean = v.Read() + p.Read()
	}
	if n := pruned(p); n > 0 || v.Encoded > 0 {
		v.Encoded = cmp.Or(v.Encoded, v.Before) + cmp.Or(n, p.Tokens)
	}
	v.Before, v.Kept, v.Merged = v.Before+p.Tokens, v.Kept+p.Kept, v.Merged+p.Merged
}

// Read is how many tokens enter a layer of the decoder, on average.
func (v *VisualTokens) Read() float64 {
	if v.Mean > 0 {
		return v.Mean
	}
	return float64(v.Kept + v.Merged)
}

// Extend returns the Extension for an answer, or for a count, to a call.
func (c *Call) Extend(a *restore.Answer) *Extension {
	e := &Extension{Images: []ImageExtension{}, Ignored: c.Ignored, Worker: a.Worker}
	if c.Sampling.Temperature > 0 && a.Finish != "" {
		e.Seed = &c.Sampling.Seed
	}
	for i := range a.Pictures {
		p := &a.Pictures[i]
		x := ImageExtension{Index: i, Width: p.Width, Height: p.Height, Tokens: p.Tokens,
			Encoded: pruned(p), Kept: p.Kept, Merged: p.Merged, Mean: p.Mean, Cache: p.Cache,
			Method: p.Method, Parameters: p.Parameters}
		if x.Parameters == nil {
			x.Parameters = json.RawMessage("null")
		}
		if c.Groups {
			x.groupFields = &groupFields{Groups: p.Groups}
			if x.Groups == nil {
				x.Groups = []restore.Group{}
			}
			if p.Rows > 0 {
				x.Grid = &gridFields{p.Rows, p.Cols}
				if p.Area.Width > 0 {
					x.Area = &p.Area
				}
			}
		}
		e.Images = append(e.Images, x)
		e.Visual.Add(p)
	}
	return e
}

// Report returns what Extend and NewTimings were made of, as far as they tell it, in an answer.
func Report(e *Extension, t *Timings) *restore.Answer {
	a := &restore.Answer{Worker: e.Worker}
	for _, x := range e.Images {
		a.Pictures = append(a.Pictures, restore.PictureReport{Width: x.Width, Height: x.Height,
			Tokens: x.Tokens, Encoded: cmp.Or(x.Encoded, x.Tokens), Kept: x.Kept,
			Merged: x.Merged, Mean: x.Mean, Cache: x.Cache, Method: x.Method,
			Parameters: x.Parameters})
	}
	if t == nil {
		return a
	}
	a.Usage = restore.Usage{Prompt: t.PromptN + t.CacheN, Cached: t.CacheN, Generated: t.PredictedN}
	a.Timings = restore.Timings{Queue: duration(t.Queue), Prepare: duration(t.Prepare),
		Encode: duration(t.Encode), Select: duration(t.Select), Merge: duration(t.Merge),
		Prefill: duration(t.Prompt), FirstToken: duration(t.TTFT), Decode: duration(t.Predicted)}
	return a
}

// Timings are the timings of a reply: llama-server's fields and our additions.
type Timings struct {
	Queue          float64 `json:"queue_ms"`
	Prepare        float64 `json:"prepare_ms"`
	Encode         float64 `json:"encode_ms"`
	Select         float64 `json:"select_ms"`
	Merge          float64 `json:"merge_ms"`
	PromptN        int     `json:"prompt_n"`
	CacheN         int     `json:"cache_n"`
	Prompt         float64 `json:"prompt_ms"`
	PromptPerToken float64 `json:"prompt_per_token_ms"`
	PromptPerSec   float64 `json:"prompt_per_second"`
	TTFT           float64 `json:"ttft_ms"`
	PredictedN     int     `json:"predicted_n"`
	Predicted      float64 `json:"predicted_ms"`
	PerToken       float64 `json:"predicted_per_token_ms"`
	PerSecond      float64 `json:"predicted_per_second"`
}

// NewTimings returns the timings of an answer.
func NewTimings(a *restore.Answer) *Timings {
	t, u := &a.Timings, &a.Usage
	f := &Timings{Queue: millis(t.Queue), Prepare: millis(t.Prepare), Encode: millis(t.Encode),
		Select: millis(t.Select), Merge: millis(t.Merge), PromptN: u.Prompt - u.Cached,
		CacheN: u.Cached, Prompt: millis(t.Prefill), TTFT: millis(t.FirstToken),
		PredictedN: u.Generated, Predicted: millis(t.Decode)}
	f.PromptPerToken, f.PromptPerSec = rates(f.PromptN, f.Prompt)
	f.PerToken, f.PerSecond = rates(f.PredictedN, f.Predicted)
	return f
}

func millis(d time.Duration) float64 { return float64(max(0, d.Microseconds())) / 1000 }

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// rates returns milliseconds per token and tokens per second, 0 without tokens.
func rates(n int, ms float64) (perToken, perSecond float64) {
	if n == 0 || ms == 0 {
		return 0, 0
	}
	return ms / float64(n), 1000 * float64(n) / ms
}
