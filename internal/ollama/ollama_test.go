package ollama

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// model is a service that only describes itself.
type model struct{ restore.Service }

func (model) Info() *restore.Info {
	return &restore.Info{ID: "builtin", Vocab: 640, Context: 4096}
}

var env = api.NewFront(model{}, api.Settings{MaxImages: 2})

func ok(t *testing.T, q *api.Call, err error) *api.Call {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// Ensure that requests in Ollama's form become the same questions.
func TestRequests(t *testing.T) {
	q, err := ParseChat(
		[]byte(
			`{"model":"builtin:latest","messages":[{"role":"system","content":"be brief","odd":1},{"role":"user","content":"what?","images":["AAAA"]},
		{"role":"assistant","content":"a cat"},{"role":"user","content":"sure?","name":"me"}],"keep_alive":"5m","think":false,"tools":[],"format":"json",
		"options":{"temperature":0.5,"top_k":3,"seed":7,"stop":["x"],"num_predict":-1,"num_ctx":100,"repeat_penalty":1,"num_thread":4,"typical_p":1},
		"restore":{"base":"holov","n_vis":5},"logprobs":true,"top_logprobs":1,"odd":1}`,
		),
		env,
	)
	r := ok(t, q, err)
	reduced, _ := json.Marshal(r.Messages[1].Parts[0].Reduction)
	if !q.Stream || q.Idle || q.Model != "builtin:latest" || len(r.Messages) != 4 ||
		r.Shown[0].Path != "messages[1].images[0]" ||
		r.Messages[1].Parts[1].Text != "what?" || r.MaxTokens != 0 ||
		r.Request.Context != 100 || r.Sampling.Temperature != 0.5 || r.Sampling.TopK != 3 ||
		r.Sampling.Seed != 7 ||
		r.Stop[0] != "x" ||
		!r.Format.Object ||
		string(reduced) != `{"base":"holov","n_vis":5}` ||
		r.Top != 1 {
		t.Errorf("got %+v %+v", q, r)
	}
	ignored := "options.typical_p messages[0].odd messages[3].name odd"
	if got := strings.Join(r.Ignored, " "); got != ignored {
		t.Errorf("ignored: got %q, want %q", got, ignored)
	}
	q, err = ParseGenerate(
		[]byte(
			`{"prompt":"what?","system":"be brief","images":["AAAA"],"stream":false,"format":{"type":"null"},"context":[],"options":{"num_predict":3}}`,
		),
		env,
	)
	if r = ok(t, q, err); q.Stream || len(r.Messages) != 2 || len(r.Messages[1].Parts) != 2 ||
		r.MaxTokens != 3 ||
		string(r.Format.Schema) != `{"type":"null"}` {
		t.Errorf("got %+v %+v", q, r)
	}
	q, err = ParseGenerate([]byte(`{"prompt":"any value","format":{ }}`), env)
	if r = ok(t, q, err); string(r.Format.Schema) != `{ }` {
		t.Errorf("got %+v", r.Format)
	}
	q, err = ParseGenerate([]byte(`{"prompt":"as it is","raw":true}`), env)
	if r = ok(t, q, err); !r.Raw || r.Prompt != "as it is" || r.Messages != nil {
		t.Errorf("got %+v", r)
	}
	for _, body := range []string{`{}`, `{"messages":[]}`, `{"model":"builtin","keep_alive":0}`} {
		if q, err := ParseChat([]byte(body), env); err != nil || !q.Idle {
			t.Errorf("%s: got %+v, %v, want a load", body, q, err)
		}
		if q, err := ParseGenerate([]byte(`{"prompt":""}`), env); err != nil || !q.Idle {
			t.Errorf("got %+v, %v, want a load", q, err)
		}
	}
}

// Ensure that fields that cannot be honoured are refused by name.
func TestRefusals(t *testing.T) {
	chat := func(b []byte) error { _, err := ParseChat(b, env); return err }
	generate := func(b []byte) error { _, err := ParseGenerate(b, env); return err }
	const user = `"messages":[{"role":"user","content":"a"}]`
	for _, c := range []struct {
		parse         func([]byte) error
		body, message string
	}{
		{chat, `{` + user + `,"think":true}`, `"builtin" does not support thinking`},
		{chat, `{` + user + `,"tools":[{}]}`, `"builtin" does not support tools`},
		{chat, `{` + user + `,"format":"xml"}`, `format: got "xml"`},
		{chat, `{` + user + `,"format":{"not":"a"}}`, `format: keyword "not" at /not`},
		{chat, `{` + user + `,"options":{"num_ctx":5000}}`, `options.num_ctx: got 5000, want at most 4096`},
		{chat, `{` + user + `,"options":{"num_predict":0}}`, `options.num_predict: got 0`},
		{chat, `{` + user + `,"options":{"num_predict":-3}}`, `options.num_predict: got -3, want at least -2`},
		{chat, `{` + user + `,"options":{"mirostat":1}}`, `options.mirostat: got 1, want 0`},
		{chat, `{` + user + `,"options":{"repeat_penalty":11}}`, `options.repeat_penalty: got 11, want at most 10`},
		{chat, `{` + user + `,"options":{"temperature":"x"}}`, `options.temperature: got "x", want a number`},
		{chat, `{` + user + `,"top_logprobs":3}`, `top_logprobs: got 3 without logprobs`},
		{chat, `{` + user + `,"stream":1}`, `stream: got 1, want true or false`},
		{chat, `{"messages":[{"role":"tool","content":"a"}]}`, `messages[0].role: got "tool"`},
		{chat, `{"messages":[{"role":"user","content":""}]}`, `messages[0].content: got neither`},
		{chat, `{"messages":[{"role":"user","content":["a"]}]}`, `messages[0].content: got a list, want a string`},
		{chat, `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`, `messages[1].role: got "assistant" in the last message, want a user's`},
		{chat, `{"messages":[{"role":"user","images":["A","B"]},{"role":"user","images":["A"]}]}`, `got 3 pictures, want at most 2 (--max-images)`},
		{chat, `{"messages":[{"role":"user","images":[1]}]}`, `messages[0].images[0]: got 1, want a string`},
		{chat, `{` + user + `,"restore":{"nvis":1}}`, `restore.nvis: unknown field, the nearest is n_vis`},
		{generate, `{"prompt":"a","suffix":"b"}`, `suffix: got "b"`},
		{generate, `{"prompt":"a","template":"{{x}}"}`, `template: got`},
		{generate, `{"prompt":"a","context":[1,2]}`, `context: got a list`},
		{generate, `{"prompt":"a","raw":true,"images":["A"]}`, `raw: got true with`},
		{generate, `{"prompt":5}`, `prompt: got 5, want a string`},
		{generate, `{`, `invalid JSON at byte 1`},
	} {
		err := c.parse([]byte(c.body))
		var e *wire.Error
		if !errors.As(err, &e) || e.Status != 400 || !strings.Contains(e.Message, c.message) {
			t.Errorf("%s: got %v, want %s", c.body, err, c.message)
		}
	}
}

// Ensure that replies have Ollama's fields.
func TestReplies(t *testing.T) {
	created := regexp.MustCompile(`"created_at":"[^"]*"`)
	a := &restore.Answer{
		Text:   "hi",
		Finish: restore.FinishLength,
		Usage:  restore.Usage{Prompt: 130, Cached: 30, Generated: 2},
		Timings: restore.Timings{
			Prefill:    10,
			FirstToken: 50,
			Decode:     20,
		},
		Logprobs: []restore.Token{{Bytes: []byte("hi"), Logprob: -1}},
	}
	call := &api.Call{Request: new(restore.Request)}
	chat := &reply{model: "builtin", q: call}
	generate := &reply{model: "builtin", generate: true, q: call}
	const head = `{"model":"builtin","created_at":"2026-01-02T03:04:05.000006Z",`
	const report = `"restore":{"images":[],"visual_tokens":{"before":0,"kept":0,"merged":0}}}`
	for _, c := range []struct {
		got  any
		want string
	}{
		{json.RawMessage(chat.Piece(&restore.Piece{Text: "hi"})[0].Text), head + `"message":{"role":"assistant","content":"hi"},"done":false}`},
		{json.RawMessage(generate.Piece(&restore.Piece{Text: "hi"})[0].Text), head + `"response":"hi","done":false}`},
		{generate.Piece(&restore.Piece{Text: "hi", Tokens: a.Logprobs})[0].Data, head + `"response":"hi","done":false,"logprobs":[{"token":"hi","logprob":-1,"bytes":[104,105]}]}`},
		{chat.whole(nil), head + `"message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}`},
		{chat.End(a)[0].Data, head + `"message":{"role":"assistant","content":""},"done":true,"done_reason":"length","total_duration":70,"load_duration":0,` +
			`"prompt_eval_count":130,"prompt_eval_duration":10,"eval_count":2,"eval_duration":20,` + report},
		{generate.whole(a), head + `"response":"hi","done":true,"done_reason":"length","total_duration":70,"load_duration":0,` +
			`"prompt_eval_count":130,"prompt_eval_duration":10,"eval_count":2,"eval_duration":20,"logprobs":[{"token":"hi","logprob":-1,"bytes":[104,105]}],` + report},
		{failure(wire.Bad("x", "a", "b")), `{"error":"a: b"}`},
	} {
		got, err := json.Marshal(c.got)
		got = created.ReplaceAll(got, []byte(`"created_at":"2026-01-02T03:04:05.000006Z"`))
		if err != nil || string(got) != c.want {
			t.Errorf("got %s\nwant %s", got, c.want)
		}
	}
}

// FuzzBodies parses any body on both routes.
func FuzzBodies(f *testing.F) {
	f.Add(
		[]byte(
			`{"messages":[{"role":"user","content":"a","images":["AAAA"]}],"options":{"num_predict":-1},"format":{}}`,
		),
	)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, parse := range []api.Parse{ParseChat, ParseGenerate} {
			q, err := parse(body, env)
			var e *wire.Error
			if err != nil && (!errors.As(err, &e) || e.Status != 400 || e.Code == "") {
				t.Fatalf("%q: %v", body, err)
			}
			if err == nil && !q.Idle && !q.Raw && len(q.Messages) == 0 {
				t.Fatalf("%q: taken without a question", body)
			}
		}
	})
}
