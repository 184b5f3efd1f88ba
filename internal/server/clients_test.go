package server_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/server"
)

// Ensure that the requests of programs which people already use are answered as they are sent:
// `ollama run` (its types for JSON), Home Assistant and Open WebUI (their sources), and Anthropic's
// SDK for Python, instructor, LangChain, LiteLLM and Vercel's AI SDK (recorded). ignored lists the
// fields that the reply names as unused; all others have their effect.
func TestClientsRequests(t *testing.T) {
	h := start(t, nil)
	file, err := os.Open("testdata/clients.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	placeholder := base64.StdEncoding.EncodeToString([]byte("PICTURE"))
	picture := base64.StdEncoding.EncodeToString(scene(t))
	n := 0
	for lines := bufio.NewScanner(file); lines.Scan(); n++ {
		var r struct {
			Client, What, Method, Path string
			Body                       json.RawMessage
			Ignored                    []string
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		t.Run(r.Client+"/"+r.What, func(t *testing.T) {
			body := strings.ReplaceAll(string(r.Body), placeholder, picture)
			q, err := http.NewRequest(r.Method, h.url+r.Path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != 200 || strings.Contains(string(raw), `"error"`) &&
				!strings.Contains(string(raw), `"error":null`) {
				t.Fatalf("got %d %s", resp.StatusCode, raw)
			}
			server.CheckReply(t, h.url, r.Method, r.Path, resp, string(raw))
			if got := ignoredOf(string(raw)); !slices.Equal(got, r.Ignored) {
				t.Errorf("ignored fields: got %v, want %v", got, r.Ignored)
			}
			if text, whole := streamed(string(raw)); strings.Contains(body, picture) &&
				(text == "" || !whole) {
				t.Errorf("got %q, complete %t: %s", text, whole, raw)
			} else if strings.Contains(body, `"required"`) && !json.Valid([]byte(text)) {
				t.Errorf("got %s, want JSON", text)
			}
		})
	}
	if n < 20 {
		t.Errorf("got %d requests, want at least 20", n)
	}
}

// ignoredOf returns the ignored fields that the last line of a reply names.
func ignoredOf(raw string) (fields []string) {
	_, after, ok := strings.Cut(raw, `"ignored_fields":`)
	if ok {
		_ = json.NewDecoder(strings.NewReader(after)).Decode(&fields)
	}
	return fields
}

// streamed joins the text of a reply, whole or in pieces, and reports whether it is complete.
func streamed(raw string) (text string, whole bool) {
	for line := range strings.SplitSeq(raw, "\n") {
		var c struct {
			Response string
			Message  struct{ Content any }
			Content  []struct {
				Text  string
				Input json.RawMessage
			}
			Delta struct {
				Text string
				JSON string `json:"partial_json"`
			}
			Type    string
			Done    bool
			Choices []struct {
				Delta, Message struct{ Content string }
				Finish         *string `json:"finish_reason"`
			}
		}
		line = strings.TrimPrefix(line, "data: ")
		if json.Unmarshal([]byte(line), &c) != nil {
			continue
		}
		text += c.Response + c.Delta.Text + c.Delta.JSON
		if s, ok := c.Message.Content.(string); ok {
			text += s
		}
		for _, one := range c.Content {
			text += one.Text + string(one.Input)
		}
		whole = whole || c.Done || c.Type == "message" || c.Type == "message_stop"
		for _, one := range c.Choices {
			text += one.Delta.Content + one.Message.Content
			whole = whole || one.Finish != nil
		}
	}
	return text, whole
}
