package eval

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/errs"
)

const pixel = "\x89PNG\r\n\x1a\n picture"

func question(text string) *Question {
	return &Question{Text: text, Images: []Image{{Name: "a", Open: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(pixel)), nil
	}}}}
}

// Ensure that requests to a server, and the reading of its replies, are right, for this project's
// servers and others.
func TestServer(t *testing.T) {
	var bodies []map[string]any
	replies := []string{
		`{"choices":[{"message":{"content":" red "},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}`,
		`{"choices":[{"message":{"content":"blue"},"finish_reason":"length"}],"timings":{"encode_ms":5,"ttft_ms":20},` +
			`"restore":{"images":[{"tokens":576,"kept":32,"merged":32,"parameters":{"base":"holov"}}],` +
			`"visual_tokens":{"before":576,"kept":32,"merged":32}}}`,
	}
	busy := 2
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		if busy > 0 {
			busy--
			w.Header().Set("Retry-After", "0")
			http.Error(w, `{"error":{"message":"queue full"}}`, http.StatusTooManyRequests)
			return
		}
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		bodies = append(bodies, body)
		io.WriteString(w, replies[len(bodies)-1])
	}))
	defer server.Close()
	ask := func(s *Server, q *Question) (a Answer, err error) {
		q.MaxTokens = 16
		err = s.Answer(t.Context(), []*Question{q}, func(_ int, got Answer) error {
			a = got
			return nil
		})
		return a, err
	}
	plain := &Server{URL: server.URL, Model: "m", Key: "key", System: "Be brief."}
	a, err := ask(plain, question("What?"))
	if err != nil || a.Text != " red " || a.Finish != "stop" || a.Prompt != 9 || a.Tokens != 2 ||
		a.Before != 0 {
		t.Errorf("%v %+v", err, a)
	}
	got, err := json.Marshal(bodies[0])
	want := `{"max_tokens":16,"messages":[{"content":"Be brief.","role":"system"},{"content":[` +
		`{"image_url":{"url":"data:image/png;base64,iVBORw0KGgogcGljdHVyZQ=="},"type":"image_url"},` +
		`{"text":"What?","type":"text"}],"role":"user"}],"model":"m","temperature":0}`
	if err != nil || string(got) != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	ours := &Server{
		URL:       server.URL + "/v1/",
		Model:     "m",
		Key:       "key",
		Reduction: json.RawMessage(`{"n_vis":64}`),
	}
	a, err = ask(ours, &Question{Text: "What?"})
	if err != nil || a.Before != 576 || a.After != 64 || a.Seconds.Encode != 0.005 ||
		a.Seconds.FirstToken != 0.02 || string(a.Reduction) != `{"base":"holov"}` {
		t.Errorf("%v %+v", err, a)
	}
	if b := bodies[1]; b["restore"].(map[string]any)["n_vis"] != 64.0 ||
		b["messages"].([]any)[0].(map[string]any)["content"] != "What?" {
		t.Errorf("%v", b)
	}
}

// Ensure that a permanent refusal is not tried again, and that a server that ignores the reduction
// is detected.
func TestServerRefuses(t *testing.T) {
	status, reply, n := http.StatusBadRequest, `{"error":{"message":"no such model"}}`, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n++
		w.WriteHeader(status)
		io.WriteString(w, reply)
	}))
	defer server.Close()
	s := &Server{URL: server.URL, Reduction: json.RawMessage(`{}`)}
	ask := func() error {
		return s.Answer(t.Context(), []*Question{{ID: 4, Text: "What?", MaxTokens: 16}},
			func(int, Answer) error { return nil })
	}
	if err := ask(); err == nil ||
		!strings.Contains(err.Error(),
			"question 4: "+server.URL+": status 400 Bad Request: no such model") ||
		n != 1 {
		t.Errorf("%v, %d requests", err, n)
	}
	for code, picture := range map[string]bool{
		`"image_parse_error"`: true, `"invalid_value"`: false, `400`: false, `null`: false,
	} {
		reply = `{"error":{"message":"cut short","code":` + code + `}}`
		err := s.Answer(t.Context(), []*Question{question("What?")}, nil)
		var damaged *errs.PictureError
		if errors.As(err, &damaged) != picture || !strings.Contains(err.Error(), "cut short") ||
			picture && !strings.HasPrefix(err.Error(), "a: ") {
			t.Errorf("code %s: %v", code, err)
		}
	}
	status = http.StatusOK
	for want, text := range map[string]string{
		"a reply without a reduction": `{"choices":[{"message":{"content":"x"}}]}`,
		"a reply without an answer":   `{}`,
		"want a chat completion":      `<html>`,
	} {
		reply = text
		if err := ask(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	s.URL = "ftp://x"
	if err := ask(); err == nil || !strings.Contains(err.Error(), "want an http or https address") {
		t.Error(err)
	}
}
