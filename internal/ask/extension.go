package ask

import (
	"encoding/json"
	"time"
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
	Kept       int             `json:"kept"`
	Merged     int             `json:"merged"`
	Mean       float64         `json:"mean,omitempty"` // as in VisualTokens
	Cache      Cache           `json:"cache"`
	Method     string          `json:"method"`
	Parameters json.RawMessage `json:"parameters"`
	Groups     *GroupReport    `json:"-"`
}

// MarshalJSON adds the groups' fields if the request asked for them.
func (e ImageExtension) MarshalJSON() ([]byte, error) {
	type plain ImageExtension // without this method
	if e.Groups == nil {
		return json.Marshal(plain(e))
	}
	return json.Marshal(struct {
		plain
		Grid   *Grid         `json:"grid"`
		Area   *Area         `json:"area,omitempty"`
		Groups []groupFields `json:"groups"`
	}{plain(e), e.Groups.Grid, e.Groups.Area, e.Groups.list()})
}

// GroupReport says which tokens each row of a picture stands for.
type GroupReport struct {
	Grid *Grid // nil: no grid
	Area *Area // covered by the grid; nil: not known
	List []Group
}

func (g *GroupReport) list() []groupFields {
	out := make([]groupFields, len(g.List))
	for i, x := range g.List {
		out[i] = groupFields(x)
	}
	return out
}

// Grid is the number of rows and columns of a picture's tokens.
type Grid struct {
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

type groupFields struct {
	Members  []int   `json:"members"`
	Position float64 `json:"position"`
	Kept     bool    `json:"kept"`
}

// VisualTokens counts the visual tokens of a request. Kept and Merged are those after the last
// layer.
type VisualTokens struct {
	Before int     `json:"before"`
	Kept   int     `json:"kept"`
	Merged int     `json:"merged"`
	Mean   float64 `json:"mean,omitempty"` // that enter a layer, if layers differ; else 0
}

// Add counts a picture.
func (v *VisualTokens) Add(tokens, kept, merged int, mean float64) {
	if mean > 0 || v.Mean > 0 {
		picture := VisualTokens{Kept: kept, Merged: merged, Mean: mean}
		v.Mean = v.Read() + picture.Read()
	}
	v.Before, v.Kept, v.Merged = v.Before+tokens, v.Kept+kept, v.Merged+merged
}

// Read is how many tokens enter a layer of the decoder, on average.
func (v *VisualTokens) Read() float64 {
	if v.Mean > 0 {
		return v.Mean
	}
	return float64(v.Kept + v.Merged)
}

// Extend returns the Extension for a request without an answer.
func (c *Count) Extend(r *Request) *Extension {
	e := &Extension{Images: []ImageExtension{}, Ignored: r.Ignored}
	for i, p := range c.Pictures {
		x := ImageExtension{
			Index:      i,
			Width:      p.Width,
			Height:     p.Height,
			Tokens:     p.Tokens,
			Kept:       p.Kept,
			Merged:     p.Merged,
			Mean:       p.Mean,
			Cache:      p.Cache,
			Method:     p.Method,
			Parameters: p.Parameters,
		}
		if x.Parameters == nil {
			x.Parameters = json.RawMessage("null")
		}
		if r.Groups {
			x.Groups = &GroupReport{List: p.Groups}
			if p.Rows > 0 {
				x.Groups.Grid = &Grid{p.Rows, p.Cols}
				if p.Area.Width > 0 {
					x.Groups.Area = &p.Area
				}
			}
		}
		e.Images = append(e.Images, x)
		e.Visual.Add(p.Tokens, p.Kept, p.Merged, p.Mean)
	}
	return e
}

// Extension returns the Extension for an answer.
func (a *Answer) Extension(r *Request) *Extension {
	e := a.Extend(r)
	e.Seed, e.Worker = a.Seed, a.Worker
	return e
}

// TimingFields are the timings of a reply: llama-server's fields and our additions.
type TimingFields struct {
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

// TimingFields returns the timings of an answer.
func (a *Answer) TimingFields() *TimingFields {
	t := &a.Timings
	f := &TimingFields{Queue: millis(t.Queue), Prepare: millis(t.Prepare), Encode: millis(t.Encode),
		Select: millis(
			t.Select,
		), Merge: millis(t.Merge), PromptN: a.Prompt - a.Cached, CacheN: a.Cached,
		Prompt: millis(
			t.Prefill,
		), TTFT: millis(t.FirstToken), PredictedN: a.Completion, Predicted: millis(t.Decode)}
	f.PromptPerToken, f.PromptPerSec = rates(f.PromptN, f.Prompt)
	f.PerToken, f.PerSecond = rates(f.PredictedN, f.Predicted)
	return f
}

func millis(d time.Duration) float64 { return float64(max(0, d.Microseconds())) / 1000 }

// rates returns milliseconds per token and tokens per second, 0 without tokens.
func rates(n int, ms float64) (perToken, perSecond float64) {
	if n == 0 || ms == 0 {
		return 0, 0
	}
	return ms / float64(n), 1000 * float64(n) / ms
}
