package batch

import (
	"cmp"
	"encoding/json"
	"maps"
)

// Summary counts the results of a run.
type Summary struct {
	Lines    int                `json:"lines"`    // lines of the input
	Before   int                `json:"before"`   // of these, answered by earlier runs
	Changed  int                `json:"changed"`  // lines that changed after they were answered
	Answers  int                `json:"answers"`  // responses of status 200
	Refused  map[string]int     `json:"refused"`  // other responses, by error code
	Unread   map[string]int     `json:"unread"`   // lines that could not be read, by code
	Pictures int                `json:"pictures"` // in answered requests
	Tokens   Tokens             `json:"tokens"`
	Cache    map[string]int     `json:"cache"`  // pictures, by where their tokens came from
	Stages   map[string]float64 `json:"stages"` // seconds of processing, by stage
	Seconds  float64            `json:"seconds"`
}

// Tokens counts the rows that the decoder read and generated.
type Tokens struct {
	Prompt     int `json:"prompt"`
	Cached     int `json:"cached"` // prompt rows whose keys and values were cached
	Completion int `json:"completion"`
	Visual     int `json:"visual"` // visual tokens before reduction
	Kept       int `json:"kept"`
	Merged     int `json:"merged"`
}

func newSummary() Summary {
	return Summary{Refused: map[string]int{}, Unread: map[string]int{}, Cache: map[string]int{},
		Stages: map[string]float64{}}
}

// Done is the number of lines that got their result in this run.
func (s *Summary) Done() int {
	n := s.Answers
	for _, counts := range []map[string]int{s.Refused, s.Unread} {
		for _, k := range counts {
			n += k
		}
	}
	return n
}

func (s Summary) clone() Summary {
	s.Refused, s.Unread, s.Cache = maps.Clone(s.Refused), maps.Clone(s.Unread), maps.Clone(s.Cache)
	s.Stages = maps.Clone(s.Stages)
	return s
}

// answerBody has the fields of an answer, from any route, that a summary needs.
type answerBody struct {
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Input      int `json:"input_tokens"`
		Completion int `json:"completion_tokens"`
		Output     int `json:"output_tokens"`
		Read       int `json:"cache_read_input_tokens"` // Anthropic's, besides Input
	} `json:"usage"`
	Timings          map[string]float64 `json:"timings"`
	OllamaPrompt     int                `json:"prompt_eval_count"`
	OllamaPrefill    float64            `json:"prompt_eval_duration"` // in ns
	OllamaCompletion int                `json:"eval_count"`
	OllamaDecode     float64            `json:"eval_duration"` // in ns
	Restore          struct {
		Images []struct {
			Tokens int    `json:"tokens"`
			Kept   int    `json:"kept"`
			Merged int    `json:"merged"`
			Cache  string `json:"cache"`
		} `json:"images"`
	} `json:"restore"`
}

// stages maps the names of timings, in milliseconds, to stages.
var stages = map[string]string{
	"prepare_ms": "prepare", "encode_ms": "encode", "select_ms": "select", "merge_ms": "merge",
	"prompt_ms": "prefill", "predicted_ms": "decode", "queue_ms": "queue"}

// add counts one result.
func (s *Summary) add(r *Result) {
	if r.Error != nil {
		s.Unread[r.Error.Code]++
		return
	}
	if r.Response.Status != 200 {
		s.Refused[cmp.Or(r.Response.Code, "unknown")]++
		return
	}
	var b answerBody
	if err := json.Unmarshal(r.Response.Body, &b); err != nil {
		s.Refused["not_json"]++
		return
	}
	s.Answers++
	s.Tokens.Prompt += b.Usage.Prompt + b.Usage.Input + b.Usage.Read + b.OllamaPrompt
	s.Tokens.Completion += b.Usage.Completion + b.Usage.Output + b.OllamaCompletion
	s.Tokens.Cached += int(b.Timings["cache_n"])
	for name, stage := range stages {
		s.Stages[stage] += b.Timings[name] / 1000
	}
	s.Stages["prefill"] += b.OllamaPrefill / 1e9
	s.Stages["decode"] += b.OllamaDecode / 1e9
	s.Pictures += len(b.Restore.Images)
	for _, p := range b.Restore.Images {
		s.Tokens.Visual += p.Tokens
		s.Tokens.Kept += p.Kept
		s.Tokens.Merged += p.Merged
		s.Cache[p.Cache]++
	}
}
