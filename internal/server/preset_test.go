package server_test

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/server"
)

// presets reads presets as the command line has them.
func presets(tb testing.TB, list ...string) (out []*api.Preset) {
	tb.Helper()
	for _, text := range list {
		name, object, _ := strings.Cut(text, "=")
		p, err := api.ParsePreset(name, []byte(object))
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func withPresets(tb testing.TB) *host {
	return start(tb, func(_ *restore.Options, as *api.Settings, _ *server.Options) {
		as.Aliases = []string{"tiny"}
		as.Presets = presets(tb, `full={"base":"none"}`, `few={"n_vis":32}`,
			`brief={"keep_ratio":0.05,"max_tokens":2,"system":"Answer with a word."}`)
	})
}

// Ensure that the requests of evaluation harnesses, as they were recorded, read the tokens of the
// preset that their model names, and that a detail alone is no budget but named in the reply.
func TestHarnessRequests(t *testing.T) {
	h := withPresets(t)
	for _, c := range []struct {
		file, model string
		tokens      int
		ignored     string
	}{
		{"vlmevalkit", "builtin", 64, "messages[0].content[0].image_url.detail"},
		{"vlmevalkit", "full", 576, "messages[0].content[0].image_url.detail"},
		{"vlmevalkit", "few:latest", 32, "messages[0].content[0].image_url.detail"},
		{"lmms-eval", "builtin", 64, ""},
		{"lmms-eval", "full", 576, ""},
		{"lmms-eval", "few", 32, ""},
	} {
		var b map[string]any
		golden.JSON(t, "testdata/harness/"+c.file+".json", &b)
		b["model"] = c.model
		r := h.post(t, "/v1/chat/completions", b)
		if r.status != 200 {
			t.Errorf("%s of %s: got %s", c.file, c.model, r.raw)
			continue
		}
		var more struct {
			Model   string
			Restore struct {
				Ignored []string `json:"ignored_fields"`
			}
		}
		if err := json.Unmarshal([]byte(r.raw), &more); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(more.Restore.Ignored, " "); r.Usage.Details.Image != c.tokens ||
			got != c.ignored || more.Model != "builtin" {
			t.Errorf("%s of %s: got %d tokens, ignored %q, model %q, want %d, %q, builtin", c.file,
				c.model, r.Usage.Details.Image, got, more.Model, c.tokens, c.ignored)
		}
	}
}

// Ensure that a preset's fields are defaults on all routes, below those of a request.
func TestPresets(t *testing.T) {
	h := withPresets(t)
	pic := base64.StdEncoding.EncodeToString(scene(t))
	counted := func(model string, more map[string]any) int {
		b := body("What number is written?", more, scene(t))
		b["model"] = model
		return h.chat(t, b).Usage.Details.Image
	}
	if n := counted("few", map[string]any{"restore": map[string]any{"n_vis": 10}}); n != 10 {
		t.Errorf("a request's own budget: got %d tokens, want 10", n)
	}
	if n := counted("full", map[string]any{"restore": map[string]any{"base": "divprune",
		"n_vis": 20}}); n != 20 {
		t.Errorf("a request's reduction over base none: got %d tokens, want 20", n)
	}
	if n := counted("tiny", nil); n != 64 {
		t.Errorf("an alias: got %d tokens, want 64", n)
	}
	brief := h.chat(t, body("What number is written?", map[string]any{"model": "brief"}, scene(t)))
	if brief.Usage.Completion > 2 || brief.Usage.Details.Image != 29 {
		t.Errorf("brief: got %d tokens of %d of the picture, want 2 of 29", brief.Usage.Completion,
			brief.Usage.Details.Image)
	}
	plain := h.chat(t, body("What number is written?",
		map[string]any{"restore": map[string]any{"keep_ratio": 0.05}}, scene(t)))
	if brief.Usage.Prompt <= plain.Usage.Prompt {
		t.Errorf("brief: got %d tokens of the prompt, want more than %d, a system prompt's",
			brief.Usage.Prompt, plain.Usage.Prompt)
	}
	for _, c := range []struct {
		path string
		body map[string]any
	}{
		{"/api/generate", map[string]any{"prompt": "What?", "images": []any{pic}}},
		{"/api/chat", map[string]any{"messages": []any{map[string]any{"role": "user",
			"content": "What?", "images": []any{pic}}}}},
		{"/v1/responses", map[string]any{"input": []any{map[string]any{"role": "user",
			"content": []any{map[string]any{"type": "input_image",
				"image_url": dataURL(scene(t))}}}}}},
		{"/tokenize", body("What?", nil, scene(t))},
	} {
		c.body["model"], c.body["stream"] = "few", false
		var got struct {
			Restore struct {
				Visual struct{ Kept, Merged int } `json:"visual_tokens"`
			}
		}
		r := h.post(t, c.path, c.body)
		if err := json.Unmarshal([]byte(r.raw), &got); err != nil {
			t.Fatal(err)
		}
		if n := got.Restore.Visual.Kept + got.Restore.Visual.Merged; n != 32 {
			t.Errorf("%s: got %d tokens, want 32: %s", c.path, n, r.raw)
		}
	}
	r := h.post(t, "/v1/chat/completions", body("What?", map[string]any{"model": "fewer"}))
	if r.status != 404 || !strings.Contains(r.raw, "builtin, tiny, full, few, brief") {
		t.Errorf("an unknown name: got %d %s, want 404 with all names", r.status, r.raw)
	}
}

// Ensure that lists of models name the presets and what they set.
func TestPresetsListed(t *testing.T) {
	h := withPresets(t)
	type fields struct {
		Of     string          `json:"preset_of"`
		Preset json.RawMessage `json:"preset"`
		Detail any             `json:"detail"`
	}
	var list struct {
		Data []struct {
			ID      string
			Restore fields
		}
	}
	var tags struct {
		Models []struct {
			Name    string
			Restore fields
		}
	}
	if err := json.Unmarshal([]byte(get(t, h, "/v1/models")), &list); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(get(t, h, "/api/tags")), &tags); err != nil {
		t.Fatal(err)
	}
	want := []string{"builtin", "full", "few", "brief"}
	if len(list.Data) != len(want) || len(tags.Models) != len(want) {
		t.Fatalf("got %d and %d models, want %d", len(list.Data), len(tags.Models), len(want))
	}
	for i, name := range want {
		of := ""
		if i > 0 {
			of = "builtin"
		}
		m, tag := list.Data[i], tags.Models[i]
		if m.ID != name || m.Restore.Of != of || m.Restore.Detail != nil ||
			tag.Name != name+":latest" || tag.Restore.Of != of {
			t.Errorf("got %+v and %+v, want preset %s of %q, no detail", m, tag, name, of)
		}
	}
	if got := string(list.Data[2].Restore.Preset); got != `{"n_vis":32}` {
		t.Errorf("got fields %s, want {\"n_vis\":32}", got)
	}
	if got := get(t, h, "/v1/models/few"); !strings.Contains(got, `"id":"few"`) {
		t.Errorf("/v1/models/few: got %s", got)
	}
}

// Ensure that wrong presets are refused at the start, by name.
func TestPresetsRefused(t *testing.T) {
	for _, c := range []struct{ name, object, want string }{
		{"", `{}`, "got no name"},
		{"a", `{"nvis":3}`, "the nearest is n_vis"},
		{"a", `{"gamma":3}`, "gamma: got 3"},
		{"a", `{"top_p":0}`, "top_p"},
		{"a", `{"max_tokens":0}`, "max_tokens"},
		{"a", `{"n_vis":5,"keep_ratio":0.5}`, "one of them"},
		{"a", `{"base":"none","n_vis":5}`, "base none"},
		{"a", `[]`, "want an object"},
	} {
		_, err := api.ParsePreset(c.name, []byte(c.object))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: got %v, want an error with %q", c.name, c.object, err, c.want)
		}
	}
	m := embedded(t, &restore.Options{}, nil)
	defer m.Close()
	for _, c := range []struct {
		s    api.Settings
		want string
	}{
		{api.Settings{Presets: presets(t, `builtin={}`)}, "taken"},
		{api.Settings{Presets: presets(t, `builtin:latest={}`)}, "taken"}, // Ollama's name of it
		{api.Settings{Presets: presets(t, `b={}`), Aliases: []string{"b"}}, "taken"},
		{api.Settings{Presets: presets(t, `b={}`, `b={}`)}, "taken"},
		{api.Settings{Presets: presets(t, `b={"n_vis":0}`)}, "n-vis"},
		{api.Settings{Presets: presets(t, `b={"n_vis":577}`)}, "want at most 576"},
		{api.Settings{Exact: true, Reduction: &restore.Reduction{Base: "holov", NVis: 577}},
			"want at most 576"},
	} {
		if c.s.Reduction == nil {
			c.s.Reduction = &restore.Reduction{Base: "holov", NVis: 64}
		}
		err := cmp.Or(c.s.CheckPresets(m), c.s.Check(m))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want an error with %q", c.s, err, c.want)
		}
	}
}

// get returns the body at path.
func get(tb testing.TB, h *host, path string) string {
	tb.Helper()
	r, err := http.Get(h.url + path)
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Body.Close()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}
