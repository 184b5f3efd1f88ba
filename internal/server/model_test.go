package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/seam"
	"github.com/restore-vlm/restore/internal/server"
)

// host is a server with the embedded model.
type host struct {
	*server.Server
	e   *engine.Engine
	m   *restore.Model
	url string
}

// start serves the embedded model as `restore serve` does.
func start(tb testing.TB, change func(*restore.Options, *api.Settings, *server.Options)) *host {
	tb.Helper()
	return startOn(tb, nil, nil, change)
}

// startOn is start at an address, which may be nil, with a picture processor around the model's, if
// it is not nil.
func startOn(
	tb testing.TB, l net.Listener, around func(imageproc.Processor) imageproc.Processor,
	change func(*restore.Options, *api.Settings, *server.Options),
) *host {
	tb.Helper()
	open := func(o *restore.Options) *restore.Model { return embedded(tb, o, around) }
	return serveOn(tb, l, open, change)
}

// serve serves a model as `restore serve` does.
func serve(
	tb testing.TB, path string,
	change func(*restore.Options, *api.Settings, *server.Options),
) *host {
	tb.Helper()
	return serveOn(tb, nil, func(o *restore.Options) *restore.Model {
		m, err := restore.Open(tb.Context(), path, o)
		if err != nil {
			tb.Fatal(err)
		}
		return m
	}, change)
}

func serveOn(
	tb testing.TB, l net.Listener, open func(*restore.Options) *restore.Model,
	change func(*restore.Options, *api.Settings, *server.Options),
) *host {
	tb.Helper()
	loader, err := media.New(media.Options{
		MaxBytes: 20e6, Timeout: time.Minute, Domains: []string{"127.0.0.1"},
	})
	if err != nil {
		tb.Fatal(err)
	}
	mo := &restore.Options{Threads: 2, Parallel: 4, Queue: 64}
	as := api.Settings{
		Sampling:  restore.Sampling{TopK: 40, TopP: 0.95, MinP: 0.05},
		Reduction: &restore.Reduction{Base: "holov", NVis: 64},
		Pictures:  restore.PictureOptions{MaxBytes: 20e6, MaxPixels: 64e6}, MaxImages: 16,
		Media: loader}
	so := server.Options{Version: "test", Kernel: "go", MaxBodyBytes: 64e6,
		RequestTimeout: 10 * time.Minute, Loopback: true}
	if change != nil {
		change(mo, &as, &so)
	}
	m := open(mo)
	h := &host{Server: server.New(so), e: seam.Engine(m), m: m}
	h.Ready(m, as)
	s := httptest.NewUnstartedServer(h)
	if l != nil {
		s.Listener.Close()
		s.Listener = l
	}
	s.Start()
	h.url = s.URL
	tb.Cleanup(func() {
		s.Close()
		if err := m.Close(); err != nil {
			tb.Error(err)
		}
	})
	return h
}

// embedded opens the embedded model.
func embedded(
	tb testing.TB, o *restore.Options, around func(imageproc.Processor) imageproc.Processor,
) *restore.Model {
	tb.Helper()
	if around == nil {
		m, err := restore.Open(tb.Context(), "", o)
		if err != nil {
			tb.Fatal(err)
		}
		return m
	}
	b, err := formats.Files{}.Open()
	if err != nil {
		tb.Fatal(err)
	}
	part := &b.Parts().Processor
	p, err := families.Processor(part.Data)
	if err != nil {
		tb.Fatal(err)
	}
	hooks := engine.Hooks{Processor: around(p)}
	part.Data = nil
	e, err := engine.New(b, seam.Options(o), hooks)
	if err != nil {
		tb.Fatal(err)
	}
	return seam.Model(e, o).(*restore.Model)
}

// scene is the readme's picture; other is a square of another colour.
func scene(tb testing.TB) []byte {
	tb.Helper()
	data, err := os.ReadFile("../../docs/scene.png")
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func square(tb testing.TB, shade uint8) []byte {
	tb.Helper()
	m := image.NewRGBA(image.Rect(0, 0, 336, 336))
	for i := range m.Pix {
		m.Pix[i] = 220
	}
	for y := 40; y < 110; y++ {
		for x := 200; x < 270; x++ {
			m.Set(x, y, color.RGBA{220, shade, 40, 255})
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, m); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func dataURL(data []byte) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(data)
}

// body is a chat about pictures, with additional fields.
func body(text string, more map[string]any, pics ...any) map[string]any {
	var content []any
	for _, p := range pics {
		if data, ok := p.([]byte); ok {
			p = map[string]any{"url": dataURL(data)}
		}
		content = append(content, map[string]any{"type": "image_url", "image_url": p})
	}
	content = append(content, map[string]any{"type": "text", "text": text})
	b := map[string]any{"messages": []any{map[string]any{"role": "user", "content": content}}}
	maps.Copy(b, more)
	return b
}

// reply has the fields of an answer that the tests read.
type reply struct {
	status  int
	raw     string
	Choices []struct {
		Message      struct{ Content string }
		FinishReason string `json:"finish_reason"`
		Logprobs     *struct {
			Content []struct {
				Token   string
				Logprob float64
				Bytes   []byte2
				Top     []struct{ Token string } `json:"top_logprobs"`
			}
		}
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
			Image  int `json:"image_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Timings timings
	Restore struct {
		Images []struct {
			Tokens, Kept, Merged int
			Cache                string
			Method               string
			Parameters           map[string]any
			Grid                 *struct{ Rows, Cols int }
			Groups               []struct {
				Members []int
				Kept    bool
			}
		}
		Seed    *int64
		Ignored []string `json:"ignored_fields"`
	}
	Error *struct{ Code, Param, Message string }
}

type byte2 = int // JSON has no bytes

// timings are the times of an answer, in milliseconds.
type timings struct {
	Queue   float64 `json:"queue_ms"`
	Prepare float64 `json:"prepare_ms"`
	Encode  float64 `json:"encode_ms"`
	Select  float64 `json:"select_ms"`
	Merge   float64 `json:"merge_ms"`
	Prompt  float64 `json:"prompt_ms"`
	TTFT    float64 `json:"ttft_ms"`
	PromptN int     `json:"prompt_n"`
	CacheN  int     `json:"cache_n"`
}

func (r *reply) text() string {
	if len(r.Choices) == 0 {
		return "nothing: " + r.raw
	}
	return r.Choices[0].Message.Content
}

// post sends a request; header is "Name: value".
func (h *host) post(tb testing.TB, path string, b any, header ...string) *reply {
	tb.Helper()
	data, err := json.Marshal(b)
	if err != nil {
		tb.Fatal(err)
	}
	return h.send(tb, path, data, header...)
}

// send is post for a body as it is sent.
func (h *host) send(tb testing.TB, path string, body []byte, header ...string) *reply {
	tb.Helper()
	q, err := http.NewRequest("POST", h.url+path, bytes.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	for _, x := range header {
		name, value, _ := strings.Cut(x, ": ")
		q.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(q)
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	server.CheckReply(tb, h.url, "POST", path, resp, string(raw))
	r := &reply{status: resp.StatusCode, raw: string(raw)}
	_ = json.Unmarshal(raw, r) // streams are read by their text
	return r
}

// chat asks /v1/chat/completions and expects an answer.
func (h *host) chat(tb testing.TB, b any, header ...string) *reply {
	tb.Helper()
	r := h.post(tb, "/v1/chat/completions", b, header...)
	if r.status != 200 {
		tb.Fatalf("got %d %s", r.status, r.raw)
	}
	return r
}

const description = "A red cross at the top left, a red cross at the center, a green star " +
	"at the middle right, a pink cross at the bottom right and the number 22."

// Ensure that every form of a question gets the engine's answer.
func TestAnswerIsTheEngines(t *testing.T) {
	h := start(t, nil)
	pic, err := imageproc.Decode(scene(t), "scene", imageproc.DecodeOptions{EXIF: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		restore map[string]any
		o       methods.Given
	}{
		{nil, methods.Given{"base": "holov", "n-vis": int64(64)}}, {map[string]any{"base": "none"}, methods.Given{"base": "none"}},
		{map[string]any{"base": "divprune", "n_vis": 32, "restore": false}, methods.Given{"base": "divprune", "n-vis": int64(32), "restore": false}},
		{map[string]any{"base": "fastv", "n_vis": 128}, methods.Given{"base": "fastv", "n-vis": int64(128)}},
		{map[string]any{"base": "flowcut", "n_vis": 100, "gamma": 0.75}, methods.Given{"base": "flowcut", "n-vis": int64(100), "gamma": 0.75}},
	} {
		o, err := c.o.Options()
		if err != nil {
			t.Fatal(err)
		}
		want, err := h.e.Ask(t.Context(), engine.Request{
			Prompt: "Describe the image.", Images: engine.Pictures(pic), Reduce: o,
		})
		if err != nil {
			t.Fatal(err)
		}
		more := map[string]any{}
		if c.restore != nil {
			more["restore"] = c.restore
		}
		got := h.chat(t, body("Describe the image.", more, scene(t)))
		if got.text() != want.Text || got.Usage.Completion != len(want.Tokens) ||
			got.Restore.Images[0].Method != want.Report.Images[0].Options.String() {
			t.Errorf("%v: got %q, want %q", c.restore, got.text(), want.Text)
		}
		if n := got.Timings.PromptN + got.Timings.CacheN; n != got.Usage.Prompt ||
			got.Usage.Details.Cached != got.Timings.CacheN {
			t.Errorf("%v: prompt_n + cache_n is %d, prompt_tokens %d", c.restore, n,
				got.Usage.Prompt)
		}
	}
}

// Ensure that a picture's object overrides its detail, which overrides the body's object, which
// overrides the server's flags, and that errors name the path of the field.
func TestReductions(t *testing.T) {
	h := start(t, func(_ *restore.Options, as *api.Settings, _ *server.Options) {
		as.DetailBudget = true
	})
	url := dataURL(scene(t))
	for _, c := range []struct {
		image, restore map[string]any
		kept, merged   int
		base           string
		code, param    string
	}{
		{nil, nil, 32, 32, "holov", "", ""},
		{nil, map[string]any{"n_vis": 32}, 16, 16, "holov", "", ""},
		{nil, map[string]any{"keep_ratio": 0.5}, 144, 144, "holov", "", ""},
		{nil, map[string]any{"restore": false}, 64, 0, "holov", "", ""},
		{nil, map[string]any{"base": "none"}, 576, 0, "none", "", ""},
		{nil, map[string]any{"base": "random", "seed": 3}, 32, 32, "random", "", ""},
		{nil, map[string]any{"n_vis": 576}, 576, 0, "none", "", ""},
		{map[string]any{"detail": "low"}, nil, 16, 16, "holov", "", ""},
		{map[string]any{"detail": "high"}, map[string]any{"n_vis": 7}, 96, 96, "holov", "", ""},
		{map[string]any{"detail": "original"}, nil, 576, 0, "none", "", ""},
		{map[string]any{"detail": "auto"}, map[string]any{"n_vis": 10}, 5, 5, "holov", "", ""},
		{map[string]any{"restore": map[string]any{"n_vis": 20}}, map[string]any{"base": "divprune", "n_vis": 30}, 10, 10, "divprune", "", ""},
		{map[string]any{"restore": map[string]any{"base": "none"}}, map[string]any{"base": "divprune", "n_vis": 30}, 576, 0, "none", "", ""},
		{map[string]any{"restore": map[string]any{"keep_ratio": 0.1}}, map[string]any{"n_vis": 30}, 29, 29, "holov", "", ""},
		{nil, map[string]any{"n_vis": 577}, 0, 0, "", "integer_above_max_value", "restore.n_vis"},
		{nil, map[string]any{"n_vis": 0}, 0, 0, "", "integer_below_min_value", "restore.n_vis"},
		{nil, map[string]any{"n_vis": "64"}, 0, 0, "", "invalid_value", "restore.n_vis"},
		{nil, map[string]any{"keep_ratio": 1.5}, 0, 0, "", "decimal_above_max_value", "restore.keep_ratio"},
		{nil, map[string]any{"gamma": 2}, 0, 0, "", "decimal_above_max_value", "restore.gamma"},
		{nil, map[string]any{"keep_ratio": 0}, 0, 0, "", "decimal_below_min_value", "restore.keep_ratio"},
		{nil, map[string]any{"base": "fastv", "n_vis": 9}, 0, 0, "", "integer_below_min_value", "restore.n_vis"},
		{nil, map[string]any{"n_vis": 5, "keep_ratio": 0.5}, 0, 0, "", "invalid_value", "restore.keep_ratio"},
		{nil, map[string]any{"base": "none", "n_vis": 5}, 0, 0, "", "invalid_value", "restore.n_vis"},
		{nil, map[string]any{"base": "best"}, 0, 0, "", "invalid_value", "restore.base"},
		{nil, map[string]any{"seed": 3}, 0, 0, "", "invalid_value", "restore.seed"},
		{nil, map[string]any{"restore": false, "gamma": 0.5}, 0, 0, "", "invalid_value", "restore.gamma"},
		{map[string]any{"restore": map[string]any{"n_vis": 600}}, nil, 0, 0, "", "integer_above_max_value", "messages[0].content[0].image_url.restore.n_vis"},
		{map[string]any{"detail": "low", "restore": map[string]any{"n_vis": 6}}, nil, 0, 0, "", "invalid_value", "messages[0].content[0].image_url.detail"},
	} {
		pic := map[string]any{"url": url}
		maps.Copy(pic, c.image)
		b := body("What number is written?", nil, pic)
		if c.restore != nil {
			b["restore"] = c.restore
		}
		r := h.post(t, "/v1/chat/completions", b)
		if c.code != "" {
			if r.Error == nil || r.status != 400 || r.Error.Code != c.code ||
				r.Error.Param != c.param {
				t.Errorf("%v %v: got %d %s, want %s %s", c.image, c.restore, r.status, r.raw,
					c.code, c.param)
			}
			continue
		}
		if r.status != 200 {
			t.Errorf("%v %v: got %s", c.image, c.restore, r.raw)
			continue
		}
		// With --join all, kept tokens that others join count as merged.
		i, n := r.Restore.Images[0], c.kept+c.merged
		if i.Kept > c.kept || i.Kept+i.Merged != n || i.Parameters["base"] != c.base ||
			r.Usage.Details.Image != n {
			t.Errorf("%v %v: got %d kept, %d merged of %v, want %d, %d of %s", c.image, c.restore,
				i.Kept, i.Merged, i.Parameters["base"], c.kept, c.merged, c.base)
		}
	}
	r := h.chat(t, body("What?", map[string]any{"restore": map[string]any{"report": "groups"}},
		scene(t)))
	seen := map[int]bool{}
	kept := 0
	for _, g := range r.Restore.Images[0].Groups {
		for _, m := range g.Members {
			seen[m] = true
		}
		if g.Kept {
			kept++
		}
	}
	if g := r.Restore.Images[0].Grid; len(seen) != 576 || kept != 32 ||
		len(r.Restore.Images[0].Groups) != 64 || g == nil || g.Rows != 24 || g.Cols != 24 {
		t.Errorf("groups: got %d tokens in %d groups, %d kept, grid %v", len(seen),
			len(r.Restore.Images[0].Groups), kept, g)
	}
}

// Ensure that a second question about a picture skips the encoder and has the answer of a new
// server, and that salts, keys and cache: false separate requests.
func TestCaches(t *testing.T) {
	dir := t.TempDir()
	withDisk := func(mo *restore.Options, _ *api.Settings, so *server.Options) {
		mo.CacheFolder, mo.Warn = dir, func(s string) { t.Error(s) }
		so.Keys, so.IsolateKeys = []string{"a", "b"}, true
	}
	h := start(t, withDisk)
	fresh := start(t, nil)
	pics := [][]byte{scene(t), square(t, 40)}
	const who = "Authorization: Bearer a"
	for _, pic := range pics {
		for i, question := range []string{
			"Describe the image.", "What number is written?", "Is there a red square in the image?",
		} {
			got := h.chat(t, body(question, nil, pic), who)
			want := fresh.chat(t, body(question,
				map[string]any{"restore": map[string]any{"cache": false}}, pic))
			cache := got.Restore.Images[0].Cache
			if got.text() != want.text() || i == 0 && cache != "none" ||
				i > 0 && (cache != "prefix" || got.Timings.Encode != 0) {
				t.Errorf("%s: got %q from %s, want %q", question, got.text(), cache, want.text())
			}
			if want.Restore.Images[0].Cache != "none" {
				t.Errorf("cache: false reads a cache: %s", want.Restore.Images[0].Cache)
			}
		}
	}
	salted := map[string]any{"restore": map[string]any{"cache_salt": "s"}}
	for _, c := range []struct {
		more   map[string]any
		header string
		want   string
	}{
		{salted, who, "none"}, {salted, who, "prefix"}, {nil, "Authorization: Bearer b", "none"}, {nil, "X-Api-Key: b", "prefix"}, {nil, who, "prefix"},
		{salted, "X-Api-Key: b", "none"},
	} {
		if got := h.chat(t, body("Describe the image.", c.more, pics[0]),
			c.header); got.Restore.Images[0].Cache != c.want || got.text() != description {
			t.Errorf("%v %s: got %s, want %s", c.more, c.header, got.Restore.Images[0].Cache,
				c.want)
		}
	}
	other := map[string]any{"restore": map[string]any{"n_vis": 32}}
	if got := h.chat(t, body("Describe the image.", other, pics[0]),
		who); got.Restore.Images[0].Cache != "none" {
		t.Errorf("another budget: got %s", got.Restore.Images[0].Cache)
	}

	byContent := map[string]any{"restore": map[string]any{"n_vis": "auto:64", "guard": true}}
	auto := h.chat(t, body("Describe the image.", byContent, pics[0]), who)

	// Another server with the same folder.
	again := start(t, withDisk)
	got := again.chat(t, body("Describe the image.", byContent, pics[0]), who)
	if g, w := &got.Restore.Images[0], &auto.Restore.Images[0]; g.Cache != "disk" ||
		got.Timings.Encode != 0 ||
		g.Kept != w.Kept || g.Merged != w.Merged || got.text() != auto.text() ||
		!reflect.DeepEqual(g.Parameters, w.Parameters) {
		t.Errorf("a budget by content: got %+v %q, want %+v %q", g, got.text(), w, auto.text())
	}
	if got := again.chat(t, body("Describe the image.", nil, pics[0]),
		who); got.Restore.Images[0].Cache != "disk" || got.text() != description ||
		got.Timings.Encode != 0 {
		t.Errorf("over a restart: got %s %q", got.Restore.Images[0].Cache, got.text())
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got files %v, %v", files, err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		data[len(data)/2] ^= 0x10
		if err := os.WriteFile(f, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	damaged := start(t, withDisk)
	if got := damaged.chat(t, body("Describe the image.", nil, pics[0]),
		who); got.Restore.Images[0].Cache != "none" || got.text() != description {
		t.Errorf("damaged: got %s %q", got.Restore.Images[0].Cache, got.text())
	}
}

// Ensure that no answer depends on other requests: many at once equal each alone.
func TestTogetherIsAlone(t *testing.T) {
	h := start(t, nil)
	pics := [][]byte{scene(t), square(t, 40), square(t, 200)}
	var bodies []map[string]any
	for i := range 36 {
		more := map[string]any{
			"max_tokens": 5 + i%20, "restore": map[string]any{"n_vis": 8 + 40*(i%4), "cache": i%3 != 0},
		}
		if i%2 == 0 {
			more["temperature"], more["seed"] = 0.9, i
		}
		if i%5 == 0 {
			more["response_format"] = map[string]any{"type": "json_object"}
		}
		bodies = append(bodies,
			body([]string{"Describe the image.", "What number is written?"}[i%2], more, pics[i%3]))
	}
	want := make([]string, len(bodies))
	for i, b := range bodies {
		want[i] = h.chat(t, b).text()
	}
	got := make([]string, len(bodies))
	var wait sync.WaitGroup
	for i, b := range bodies {
		wait.Go(func() { got[i] = h.post(t, "/v1/chat/completions", b).text() })
	}
	wait.Wait()
	for i := range bodies {
		if got[i] != want[i] {
			t.Errorf("request %d: got %q, alone %q", i, got[i], want[i])
		}
	}
}

// Ensure that an answer to a schema is always valid, at any temperature.
func TestSchemas(t *testing.T) {
	h := start(t, nil)
	for _, schema := range []string{
		`{"type":"object","properties":{"colour":{"enum":["red","green"]},"n":{"type":"integer"},"who":{"type":"string","maxLength":12}},"required":["colour","n"]}`,
		`{"type":"array","items":{"type":"object","properties":{"x":{"type":"number"},"y":{"type":["boolean","null"]}},"required":["x"]},"minItems":1,"maxItems":3}`,
		`{"anyOf":[{"type":"string","minLength":2,"maxLength":5},{"const":{"a":[1,2]}}]}`,
	} {
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
		if err != nil {
			t.Fatal(err)
		}
		c := jsonschema.NewCompiler()
		if err := c.AddResource("s.json", doc); err != nil {
			t.Fatal(err)
		}
		valid, err := c.Compile("s.json")
		if err != nil {
			t.Fatal(err)
		}
		for seed := range 8 {
			format := map[string]any{
				"type": "json_schema", "json_schema": map[string]any{"name": "x", "schema": json.RawMessage(schema)},
			}
			r := h.chat(
				t,
				body("What is there?",
					map[string]any{
						"response_format": format, "temperature": 0.25 * float64(seed), "seed": seed, "max_tokens": 300,
					}, scene(t)))
			if r.Choices[0].FinishReason != "stop" {
				continue
			}
			v, err := jsonschema.UnmarshalJSON(strings.NewReader(r.text()))
			if err == nil {
				err = valid.Validate(v)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", schema, r.text(), err)
			}
		}
	}
	r := h.post(t, "/v1/chat/completions",
		body("x", map[string]any{"response_format": map[string]any{"type": "json_schema",
			"json_schema": map[string]any{"name": "x", "schema": json.RawMessage(`{"type":"object","properties":{"a":{"type":"null"}},"required":["a","b"]}`)}}}))
	if r.Error == nil || r.Error.Code != "invalid_json_schema" ||
		r.Error.Param != "response_format.json_schema.schema" ||
		!strings.Contains(r.Error.Message, "/required") {
		t.Errorf("contradiction: got %s", r.raw)
	}
}

// Ensure that stop strings, log probabilities, seeds and limits follow the contract, streamed or
// not.
func TestSampling(t *testing.T) {
	h := start(t, nil)
	r := h.chat(
		t,
		body("Describe the image.",
			map[string]any{
				"stop": []string{"star", "a green"}, "logprobs": true, "top_logprobs": 3,
			}, scene(t)))
	var joined []byte
	for _, p := range r.Choices[0].Logprobs.Content {
		for _, b := range p.Bytes {
			joined = append(joined, byte(b))
		}
		// the stop string cuts a token
		whole := strings.HasSuffix(p.Top[0].Token, p.Token) ||
			strings.HasPrefix(p.Top[0].Token, p.Token)
		if len(p.Top) != 3 || !whole || p.Logprob > 0 {
			t.Errorf("token %q: got %+v", p.Token, p)
		}
	}
	if want := description[:strings.Index(description, "a green")]; r.text() != want ||
		string(joined) != want || r.Choices[0].FinishReason != "stop" {
		t.Errorf("got %q, its tokens are %q, want %q", r.text(), joined, want)
	}
	drawn := h.chat(t, body("Describe the image.", map[string]any{"temperature": 1.5,
		"max_tokens": 30}, scene(t)))
	if drawn.Restore.Seed == nil || *drawn.Restore.Seed < 0 || *drawn.Restore.Seed >= 1<<53 {
		t.Fatalf("seed: got %v", drawn.Restore.Seed)
	}
	again := h.chat(t, body("Describe the image.", map[string]any{"temperature": 1.5,
		"max_tokens": 30, "seed": *drawn.Restore.Seed}, scene(t)))
	stream := h.post(t, "/v1/chat/completions",
		body("Describe the image.",
			map[string]any{
				"temperature": 1.5, "max_tokens": 30, "seed": *drawn.Restore.Seed, "stream": true,
			}, scene(t)))
	var streamed strings.Builder
	for _, line := range strings.Split(stream.raw, "\n") {
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if data, ok := strings.CutPrefix(line, "data: {"); ok &&
			json.Unmarshal([]byte("{"+data), &c) == nil && len(c.Choices) > 0 {
			streamed.WriteString(c.Choices[0].Delta.Content)
		}
	}
	if again.text() != drawn.text() || streamed.String() != drawn.text() {
		t.Errorf("the same seed gives %q, %q and in a stream %q", drawn.text(), again.text(),
			streamed.String())
	}
	if greedy := h.chat(t, body("x", nil)); greedy.Restore.Seed != nil {
		t.Error("a seed is reported where nothing was drawn")
	}
	cut := h.chat(t, body("Describe the image.", map[string]any{"max_tokens": 2}, scene(t)))
	long := h.chat(t, body("Describe the image.", map[string]any{"max_tokens": 1e12,
		"ignore_eos": true, "stop": "22"}, scene(t)))
	if cut.Choices[0].FinishReason != "length" || cut.Usage.Completion != 2 ||
		long.Choices[0].FinishReason != "stop" {
		t.Errorf("limits: got %s and %s", cut.raw, long.raw)
	}
}

// Ensure that a stream has the same tokens as a whole reply, also the last one, of which a stop
// string leaves a part.
func TestStreamedTokens(t *testing.T) {
	h := start(t, nil)
	stop := []string{", a g"}
	question := body("Describe the image.", map[string]any{"logprobs": true, "stop": stop},
		scene(t))
	several := body("Describe the image.", map[string]any{"logprobs": true, "stop": stop, "n": 2,
		"temperature": 1e-6}, scene(t))
	const each, tokens = `"bytes":\[(.*?)\]`, `"tokens":\[(.*?)\],"token_logprobs"`
	for _, c := range []struct {
		name, path string
		body       map[string]any
		tokens     string // pattern of a list of them
		times      int    // that a stream has each
	}{
		{"chat", "/v1/chat/completions", question, each, 1},
		{"choices", "/v1/chat/completions", several, each, 1},
		{"completion", "/v1/completions", map[string]any{"prompt": "Hello", "logprobs": 0,
			"max_tokens": 100, "stop": stop, "response_format": map[string]any{
				"type": "json_schema", "json_schema": map[string]any{
					"name": "d", "schema": map[string]any{"const": description}}}}, tokens, 1},
		// also in the last four events
		{"response", "/v1/responses", map[string]any{"stop": stop,
			"include": []string{"message.output_text.logprobs"},
			"input": []any{map[string]any{"role": "user", "content": []any{
				map[string]any{"type": "input_text", "text": "Describe the image."},
				map[string]any{"type": "input_image", "image_url": dataURL(scene(t))},
			}}}}, each, 5},
		{"ollama", "/api/chat", map[string]any{"logprobs": true,
			"options": map[string]any{"stop": stop},
			"messages": []any{map[string]any{"role": "user", "content": "Describe the image.",
				"images": []any{scene(t)}}}}, each, 1},
	} {
		var got [2][]string
		for i := range got {
			c.body["stream"] = i == 1
			var lists []string
			all := regexp.MustCompile(c.tokens).FindAllStringSubmatch(
				h.post(t, c.path, c.body).raw, -1)
			for _, m := range all {
				if m[1] != "" {
					lists = append(lists, m[1])
				}
			}
			got[i] = strings.Split(strings.Join(lists, ","), ",")
			slices.Sort(got[i])
		}
		want := slices.Repeat(got[0], c.times)
		slices.Sort(want)
		if len(want) < 10 || !slices.Equal(got[1], want) {
			t.Errorf("%s: got %q in a stream, want %q", c.name, got[1], want)
		}
	}
}

// Ensure that a request that does not fit is refused before the first byte, with its numbers.
func TestContext(t *testing.T) {
	h := start(t, nil)
	var pics []any
	for range 8 {
		pics = append(pics, scene(t))
	}
	for _, stream := range []bool{false, true} {
		r := h.post(t, "/v1/chat/completions",
			body("What?", map[string]any{"stream": stream}, pics...))
		if r.status != 400 || r.Error == nil || r.Error.Code != "context_length_exceeded" ||
			r.Error.Param != "messages" ||
			!strings.Contains(r.raw, `"n_ctx":4096`) || !strings.Contains(r.Error.Message, "sequential") {
			t.Errorf("got %d %s", r.status, r.raw)
		}
	}
	if r := h.post(t, "/v1/chat/completions",
		body("What?", map[string]any{"restore": map[string]any{"positions": "sequential"}},
			pics...)); r.status != 200 {
		t.Errorf("sequential: got %s", r.raw)
	}
	small := start(t, func(eo *restore.Options, _ *api.Settings, _ *server.Options) {
		eo.KVBytes = 2e6
	})
	r := small.post(t, "/v1/chat/completions",
		body("What?", map[string]any{"restore": map[string]any{"base": "none"}}, scene(t)))
	if r.status != 400 || r.Error.Code != "context_length_exceeded" ||
		!strings.Contains(r.Error.Message, "--kv-mb") {
		t.Errorf("kv-mb: got %d %s", r.status, r.raw)
	}
	ctx := h.post(t, "/api/chat", map[string]any{
		"stream": false, "messages": []any{map[string]any{"role": "user", "content": strings.Repeat("word ", 100)}}, "options": map[string]any{"num_ctx": 50},
	})
	if ctx.status != 400 || !strings.Contains(ctx.raw, "context's 50") {
		t.Errorf("num_ctx: got %d %s", ctx.status, ctx.raw)
	}
	short := h.post(t, "/api/generate", map[string]any{
		"prompt": "Hi", "raw": true, "stream": false, "options": map[string]any{"num_ctx": 12}, "ignore_eos": true,
	})
	if short.status != 200 || !strings.Contains(short.raw, `"done_reason":`) {
		t.Errorf("num_ctx: got %d %s", short.status, short.raw)
	}
}

// Ensure that bad pictures are refused with OpenAI's codes.
func TestPictures(t *testing.T) {
	h := start(t, nil)
	var wide bytes.Buffer
	if err := png.Encode(&wide, image.NewGray(image.Rect(0, 0, 9000, 9000))); err != nil {
		t.Fatal(err)
	}
	cut := scene(t)[:2000]
	for name, c := range map[string]struct {
		url, code, text string
	}{
		"no picture": {dataURL([]byte("hello, I am text")), "unsupported_image_media_type", "PNG, JPEG, WebP, GIF or BMP"},
		"cut short":  {dataURL(cut), "image_parse_error", ""},
		"too large":  {dataURL(wide.Bytes()), "image_too_large", "9000 x 9000 = 81000000 pixels, want at most 64000000 (--max-image-pixels)"},
		"TIFF":       {dataURL([]byte("II*\x00\x08\x00\x00\x00")), "unsupported_image_media_type", "PNG"},
		"http":       {"http://example.com/a.png", "image_url_not_allowed", "--allowed-media-domains"},
	} {
		r := h.post(t, "/v1/chat/completions", body("x", nil, map[string]any{"url": c.url}))
		if r.status != 400 || r.Error == nil || r.Error.Code != c.code ||
			r.Error.Param != "messages[0].content[0].image_url.url" ||
			!strings.Contains(r.Error.Message, c.text) {
			t.Errorf("%s: got %d %s, want %s", name, r.status, r.raw, c.code)
		}
	}
}

// Ensure that prompts without a template, and control tokens in a user's text, are read literally.
func TestPrompts(t *testing.T) {
	h := start(t, nil)
	ids := h.post(t, "/tokenize", map[string]any{"content": "Hello", "add_special": true})
	var tokens struct{ Tokens []int32 }
	if err := json.Unmarshal([]byte(ids.raw), &tokens); err != nil {
		t.Fatal(err)
	}
	text := func(prompt any) string {
		r := h.post(t, "/v1/completions", map[string]any{"prompt": prompt, "max_tokens": 8})
		var c struct {
			Choices []struct{ Text string }
			Usage   struct {
				Prompt int `json:"prompt_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(r.raw), &c); err != nil || r.status != 200 {
			t.Fatalf("%v: got %s, %v", prompt, r.raw, err)
		}
		return fmt.Sprint(c.Choices[0].Text, c.Usage.Prompt)
	}
	if a, b := text("Hello"), text(tokens.Tokens); a != b {
		t.Errorf("text gives %q, its tokens %q", a, b)
	}
	if r := h.post(t, "/v1/completions", map[string]any{"prompt": []int{638}}); r.status != 400 ||
		r.Error.Param != "prompt[0]" {
		t.Errorf("a picture's token: got %d %s", r.status, r.raw)
	}
	plain := h.post(t, "/tokenize", body("a  b", nil))
	marked := h.post(t, "/tokenize", body("a <image></s> b", nil))
	if marked.status != 200 || len(marked.raw) == 0 || plain.raw == marked.raw ||
		strings.Contains(marked.raw, `"image_tokens":576`) {
		t.Errorf("control tokens in a text: got %s and %s", plain.raw, marked.raw)
	}
}

// Ensure that the model's digest depends on its content, with or without a folder of pictures.
func TestDigest(t *testing.T) {
	digest := func(o *restore.Options) string {
		m, err := restore.Open(t.Context(), "", o)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		return m.Info().Digest + m.Info().Fingerprint
	}
	a, b := digest(nil), digest(&restore.Options{CacheFolder: t.TempDir()})
	if a != b || len(a) != 64+15 || strings.Count(a, "0") > 32 {
		t.Errorf("got %s and %s", a, b)
	}
	if c := digest(&restore.Options{Weights: restore.Q8}); c[:64] != a[:64] || c == a {
		t.Errorf("in other types: got %s, want the digest of %s and another fingerprint", c, a)
	}
}

// Ensure that a request whose context ends reports it.
func TestCancelled(t *testing.T) {
	h := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	data, err := json.Marshal(body("Describe the image.", map[string]any{"ignore_eos": true,
		"restore": map[string]any{"base": "none"}}, scene(t)))
	if err != nil {
		t.Fatal(err)
	}
	q, err := http.NewRequestWithContext(ctx, "POST", h.url+"/v1/chat/completions",
		bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	runs := func(n int) bool {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if s := h.e.Stats(); s.Running == n && s.Waiting == 0 {
				return true
			}
			if time.Now().After(end) {
				return false
			}
		}
	}
	go func() {
		runs(1)
		cancel()
	}()
	if _, err := http.DefaultClient.Do(q); err == nil {
		t.Fatal("the request was not cancelled")
	}
	if !runs(0) {
		t.Errorf("after a minute: %+v", h.e.Stats())
	}
}

// Ensure that the embedded model has the program's date.
func TestCreated(t *testing.T) {
	h := start(t, nil)
	resp, err := http.Get(h.url + "/api/tags")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var tags struct {
		Models []struct {
			Modified time.Time `json:"modified_at"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&tags); err != nil || len(tags.Models) != 1 {
		t.Fatalf("%+v, %v", tags, err)
	}
	at := tags.Models[0].Modified
	if at.Before(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)) || at.After(time.Now()) {
		t.Errorf("got %v, want when this program was built", at)
	}
}

// Ensure that /v1/models says the fewest tokens that each method takes: the server answers with
// that many, and refuses fewer.
func TestLeastTokens(t *testing.T) {
	h := start(t, nil)
	var list struct {
		Data []struct {
			Restore struct {
				Methods []string
				About   []struct {
					Name, Summary string
					Budget        bool
					Each          bool `json:"each_question"`
					Least         int
				} `json:"about_methods"`
			}
		}
	}
	if err := json.Unmarshal([]byte(get(t, h, "/v1/models")), &list); err != nil {
		t.Fatal(err)
	}
	r := list.Data[0].Restore
	if len(r.About) != len(r.Methods)+1 || r.About[0].Name != "none" {
		t.Fatalf("got %d methods and %d descriptions, want one more, none first",
			len(r.Methods), len(r.About))
	}
	pic := scene(t)
	ask := func(base string, n int) int {
		return h.post(t, "/tokenize", body("Where?", map[string]any{
			"restore": map[string]any{"base": base, "n_vis": n},
		}, pic)).status
	}
	several := 0
	each := map[string]bool{"cdpruner": true, "mmtok": true, "dart-text": true, "fastv": true,
		"pdrop": true, "sparsevlm": true, "fitprune": true}
	for i, m := range r.About[1:] {
		if m.Each != each[m.Name] {
			t.Errorf("%s: each_question is %t", m.Name, m.Each)
		}
		if m.Name != r.Methods[i] || m.Summary == "" || m.Budget != (m.Least > 0) ||
			m.Budget != (m.Name != "pixelprune") {
			t.Errorf("%+v: want a summary and the least of %s", m, r.Methods[i])
		}
		if m.Least == 0 { // not with this model, and it takes no number
			if got := ask(m.Name, 64); got != http.StatusBadRequest {
				t.Errorf("%s, 64 tokens: got %d, want 400", m.Name, got)
			}
			continue
		}
		if got := ask(m.Name, m.Least); got != http.StatusOK {
			t.Errorf("%s, %d tokens: got %d", m.Name, m.Least, got)
		}
		if m.Least > 1 {
			several++
			if got := ask(m.Name, m.Least-1); got != http.StatusBadRequest {
				t.Errorf("%s, %d tokens: got %d, want 400", m.Name, m.Least-1, got)
			}
		}
	}
	if several == 0 {
		t.Error("no method takes more than one token at least")
	}
	if got := ask("downsample", 3); got != http.StatusBadRequest { // no grid of a square
		t.Errorf("downsample, 3 tokens: got %d, want 400", got)
	}
}
