package server_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/server"
)

// Ensure that each of several choices is the answer to the request with its own seed, streamed or
// not, and that the prompt is read and the picture encoded once, also where nothing is cached.
func TestChoices(t *testing.T) {
	h := start(t, nil)
	const n, seed = 3, 11
	options := map[string]any{"temperature": 1.5, "max_tokens": 20, "seed": seed}
	var want [n]string
	generated := 0
	for i := range want {
		options["seed"] = seed + i
		r := h.chat(t, body("Describe the image.", options, scene(t)))
		want[i] = r.text()
		generated += r.Usage.Completion
	}
	options["seed"], options["n"] = seed, n
	for name, own := range map[string]map[string]any{
		"cached": {}, "fresh": {"cache": false}, "report": {"report": "groups"},
	} {
		options["restore"] = own
		r := h.chat(t, body("Describe the image.", options, scene(t)))
		if len(r.Choices) != n || r.Usage.Completion != generated ||
			r.Timings.PromptN+r.Timings.CacheN != r.Usage.Prompt || len(r.Restore.Images) != 1 ||
			r.Restore.Seed == nil || *r.Restore.Seed != seed {
			t.Fatalf("%s: got %s, want %d tokens in all", name, r.raw, generated)
		}
		for i, c := range r.Choices {
			if c.Message.Content != want[i] || c.FinishReason == "" {
				t.Errorf("%s, choice %d: got %q, want %q", name, i, c.Message.Content, want[i])
			}
		}
	}
	more := map[string]any{"stream": true, "stream_options": map[string]any{"include_usage": true}}
	maps.Copy(more, options)
	s := h.post(t, "/v1/chat/completions", body("Describe the image.", more, scene(t)))
	var got [n]strings.Builder
	finished, usage := 0, 0
	for line := range strings.SplitSeq(s.raw, "\n") {
		var c struct {
			Choices []struct {
				Index  int
				Delta  struct{ Content string }
				Finish *string `json:"finish_reason"`
			}
			Usage *struct {
				Completion int `json:"completion_tokens"`
			}
		}
		data, ok := strings.CutPrefix(line, "data: {")
		if !ok || json.Unmarshal([]byte("{"+data), &c) != nil {
			continue
		}
		for _, one := range c.Choices {
			got[one.Index].WriteString(one.Delta.Content)
			if one.Finish != nil {
				finished |= 1 << one.Index
			}
		}
		if c.Usage != nil {
			usage = c.Usage.Completion
		}
	}
	for i := range got {
		if got[i].String() != want[i] {
			t.Errorf("streamed choice %d: got %q, want %q", i, got[i].String(), want[i])
		}
	}
	if finished != 1<<n-1 || usage != generated || !strings.HasSuffix(s.raw, "data: [DONE]\n\n") {
		t.Errorf("finished %b, %d tokens: %s", finished, usage, s.raw)
	}
}

// Ensure that each choice takes a place, and that a call with more choices than there are places is
// refused and leaves none behind.
func TestChoicesTakePlaces(t *testing.T) {
	h := start(t, func(eo *restore.Options, _ *api.Settings, _ *server.Options) {
		eo.Parallel, eo.Queue = 2, 1
	})
	// so long that no choice ends before the last one is submitted
	options := map[string]any{"temperature": 1, "max_tokens": 300, "ignore_eos": true, "n": 4}
	r := h.post(t, "/v1/chat/completions", body("What?", options))
	if r.status != 400 || r.Error == nil || r.Error.Param != "n" ||
		!strings.Contains(r.Error.Message, "got 4, want at most 3") {
		t.Errorf("four choices in three places: got %d %s", r.status, r.raw)
	}
	options["n"], options["max_tokens"] = 3, 3
	for range 3 {
		if r := h.post(t, "/v1/chat/completions", body("What?", options)); r.status == 200 {
			return
		}
	}
	t.Error("three choices in three places are refused")
}

// Ensure that penalties and biases change the answer, also at temperature 0, on every route that
// has them.
func TestPenalties(t *testing.T) {
	h := start(t, nil)
	plain := h.chat(t, body("Describe the image.", nil, scene(t))).text()
	// past its end, where the model is less sure than the smaller penalties are strong
	long := map[string]any{"ignore_eos": true, "max_tokens": 100}
	longer := h.chat(t, body("Describe the image.", long, scene(t))).text()
	for _, more := range []map[string]any{
		{"frequency_penalty": 2}, {"presence_penalty": 2}, {"repeat_penalty": 3},
		{"repetition_penalty": 3, "repeat_last_n": -1},
	} {
		maps.Copy(more, long)
		got := h.chat(t, body("Describe the image.", more, scene(t))).text()
		if got == longer || !strings.HasPrefix(got, "A") {
			t.Errorf("%v: got %q, the same as without", more, got)
		}
	}
	for _, more := range []map[string]any{
		{"repeat_penalty": 3, "repeat_last_n": 0}, {"logit_bias": map[string]any{}},
	} {
		if got := h.chat(t, body("Describe the image.", more, scene(t))).text(); got != plain {
			t.Errorf("%v: got %q, want %q", more, got, plain)
		}
	}
	ids := struct{ Tokens []int }{}
	raw := h.post(t, "/tokenize", map[string]any{"content": "A"}).raw
	if err := json.Unmarshal([]byte(raw), &ids); err != nil || len(ids.Tokens) == 0 {
		t.Fatal(raw)
	}
	first := ids.Tokens[len(ids.Tokens)-1]
	forbidden := h.chat(t, body("Describe the image.", map[string]any{
		"logit_bias": []any{[]any{first, false}}}, scene(t))).text()
	if strings.HasPrefix(forbidden, "A ") {
		t.Errorf("without %q the answer begins with %q", "A", forbidden)
	}
	r := h.post(t, "/api/generate", map[string]any{"prompt": "Describe the image.", "stream": false,
		"images": []any{scene(t)}, "options": map[string]any{"repeat_penalty": 3}})
	if r.status != 200 || strings.Contains(r.raw, description) {
		t.Errorf("Ollama: got %s", r.raw)
	}
}
