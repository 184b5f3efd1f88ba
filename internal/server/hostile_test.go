package server_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/server"
)

// wide is a schema of an object with n properties and as many alternatives.
func wide(n, alternatives int) json.RawMessage {
	var properties, required []string
	for i := range n {
		properties = append(properties, fmt.Sprintf(`"%x":{}`, i))
	}
	for i := range alternatives {
		required = append(required, fmt.Sprintf(`{"required":["%x"]}`, i))
	}
	return json.RawMessage(`{"type":"object","properties":{` + strings.Join(properties, ",") +
		`},"anyOf":[` + strings.Join(required, ",") + `]}`)
}

func jsonSchema(schema json.RawMessage) map[string]any {
	return map[string]any{"response_format": map[string]any{
		"type": "json_schema", "json_schema": map[string]any{"name": "x", "schema": schema},
	}, "max_tokens": 4}
}

// mostForRequest limits what one refused request may allocate in all, garbage included: several
// times the limits of its parts or the bytes of its body, and far less than what its values would
// take.
const mostForRequest = 96 << 20

// allocates returns the bytes that f allocates, garbage included.
func allocates(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Ensure that a schema of 47 kB that would take gigabytes is refused with its path and in little
// memory, streamed or not, and that large ones of real use are not.
func TestHostileSchema(t *testing.T) {
	h := start(t, nil)
	h.chat(t, body("What?", jsonSchema(wide(100, 100))))
	for _, stream := range []bool{false, true} {
		more := jsonSchema(wide(3000, 999))
		more["stream"] = stream
		var r *reply
		total := allocates(func() { r = h.post(t, "/v1/chat/completions", body("What?", more)) })
		if r.status != 400 || r.Error == nil || r.Error.Code != "invalid_json_schema" ||
			r.Error.Param != "response_format.json_schema.schema" ||
			!strings.Contains(r.Error.Message, "too complex") || total > mostForRequest {
			t.Errorf("stream %t: allocated %d bytes, got %d %s", stream, total, r.status, r.raw)
		}
	}
	h.chat(t, body("What?", jsonSchema(json.RawMessage(`{"type":"integer"}`))))
}

// Ensure that a schema is compiled only for a request that has a place in the queue.
func TestSchemaWaitsForPlace(t *testing.T) {
	h := start(t, func(eo *restore.Options, lo *api.Settings, _ *server.Options) {
		eo.Parallel, eo.Queue = 1, -1
	})
	data, err := json.Marshal(body("What?", map[string]any{"ignore_eos": true, "stream": true}))
	if err != nil {
		t.Fatal(err)
	}
	running, err := http.Post(h.url+"/v1/chat/completions", "", bytes.NewReader(data))
	if err != nil { // its head arrives with the first token
		t.Fatal(err)
	}
	defer running.Body.Close()
	impossible := jsonSchema(json.RawMessage(`{"type":"object","properties":{},"required":["a"]}`))
	r := h.post(t, "/v1/chat/completions", body("What?", impossible))
	if r.status != 429 || r.Error == nil || r.Error.Code != "queue_full" {
		t.Errorf("a full queue: got %d %s", r.status, r.raw)
	}
	unknown := jsonSchema(json.RawMessage(`{"not":"a"}`))
	r = h.post(t, "/v1/chat/completions", body("What?", unknown))
	if r.status != 400 || r.Error == nil || r.Error.Code != "invalid_json_schema" {
		t.Errorf("an unknown keyword: got %d %s, want it refused before the queue", r.status, r.raw)
	}
}

// zipped posts a body in gzip and returns the status and the reply.
func (h *host) zipped(tb testing.TB, path string, body []byte) *reply {
	tb.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(body); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return h.send(tb, path, z.Bytes(), "Content-Encoding: gzip")
}

// Ensure that bodies that are small when sent, and whose content is far larger than its bytes, are
// refused in little memory and with the field's name.
func TestHostileBodies(t *testing.T) {
	h := start(t, nil)
	chat := "/v1/chat/completions"
	fill := func(before, item, after string, n int) []byte {
		return []byte(before + strings.Repeat(item+",", n) + item + after)
	}
	fields := func(before, after string, n int) []byte {
		var b strings.Builder
		b.WriteString(before)
		for i := range n {
			fmt.Fprintf(&b, `"%x":0,`, i)
		}
		return []byte(b.String() + `"z":0` + after)
	}
	user := `{"messages":[{"role":"user","content":"a"}],`
	for name, c := range map[string]struct {
		path              string
		body              []byte
		code, param, text string
	}{
		"a list of 5 million values": {chat, fill(`{"messages":[`, "0", `]}`, 5e6),
			"invalid_value", "", "more than 1048576 values"},
		"a list of a million": {chat, fill(`{"messages":[`, "{}", `]}`, 1e6),
			"invalid_value", "messages", "got 1000001 messages, want 1 to 1024"},
		"lists in lists": {chat, fill(`{"messages":`+strings.Repeat("[", 900), "[]",
			strings.Repeat("]", 900)+`}`, 1e6), "invalid_type", "messages[0]", "want an object"},
		"many fields": {chat, fields(`{`, `}`, 5e5), "invalid_value", "", "1024 fields"},
		"many fields of a message": {chat, fields(`{"messages":[{`, `}]}`, 5e5),
			"invalid_value", "messages[0]", "1024 fields"},
		"unknown fields": {chat, fill(`{"messages":[`, `{"role":"user","content":"a","b":0,"c":0,`+
			`"d":0,"e":0}`, `]}`, 1000), "invalid_value", "messages[256].b", "1024 unknown fields"},
		"parts": {chat, fill(`{"messages":[{"role":"user","content":[`,
			`{"type":"text","text":"a"}`, `]}]}`, 3e5), "invalid_value", "messages[0].content",
			"got more than 4112 parts in all messages"},
		"a list of tools": {chat, fill(user+`"tools":[`, "0", `]}`, 1e6), "unsupported_parameter",
			"tools", "does not support tools"},
		"a long number": {chat, fill(user+`"temperature":"`, "xxxxxxxxx", `"}`, 7e5),
			"invalid_type", "temperature", `got "xxx`},
		"a long name": {chat, fill(user+`"restore":{"`, "xxxxxxxxx", `":1}}`, 7e5),
			"unknown_parameter", "", "unknown field"},
		"a long parameter": {chat, fill(user+`"restore":{"base":"`, "xxxxxxxxx", `"}}`, 7e5),
			"invalid_value", "restore", "want at most 16384"},
		"a long text": {chat, fill(`{"messages":[{"role":"user","content":"`, "word",
			`"}]}`, 4e5), "context_length_exceeded", "messages",
			"got 2000004 bytes of text, want at most 262144"},
		"a longer text": {chat, fill(`{"messages":[{"role":"user","content":"`, "word",
			`"}]}`, 43e5), "context_length_exceeded", "messages", "want at most 262144"},
		"a long prompt": {"/v1/completions", fill(`{"prompt":"`, "word", `"}`, 4e5),
			"context_length_exceeded", "prompt", "want at most 262144"},
		"a list of prompts": {"/v1/completions", fill(`{"prompt":[`, `"a"`, `]}`, 1e6),
			"unsupported_value", "prompt", "got 1000001 prompts"},
		"an echo": {"/v1/responses", fill(`{"input":"a","metadata":{"a":"`, "word", `"}}`, 4e5),
			"invalid_value", "metadata", "want at most 65536"},
		"tokens": {"/detokenize", fill(`{"tokens":[`, "5", `]}`, 1e6), "invalid_value", "tokens",
			"got 1000001 tokens, want at most 65536"},
		"a text for tokens": {"/tokenize", fill(`{"content":"`, "word", `"}`, 4e5),
			"context_length_exceeded", "content", "want at most 262144"},
	} {
		var r *reply
		total := allocates(func() { r = h.zipped(t, c.path, c.body) })
		if r.status != 400 || r.Error == nil || r.Error.Code != c.code ||
			c.param != "" && r.Error.Param != c.param ||
			!strings.Contains(r.Error.Message, c.text) {
			t.Errorf("%s: got %d %.300s, want %s %s %q", name, r.status, r.raw, c.code, c.param,
				c.text)
		}
		if total > mostForRequest || len(r.raw) > 1<<12 {
			t.Errorf("%s: allocated %d bytes for a body of %d, and replied with %d", name, total,
				len(c.body), len(r.raw))
		}
	}
}

// Ensure that a byte-order mark before the body is taken, and that errors count it.
func TestByteOrderMark(t *testing.T) {
	h := start(t, nil)
	hello := `{"messages":[{"role":"user","content":"Hello"}],"max_tokens":2}`
	if r := h.send(t, "/v1/chat/completions", []byte("\uFEFF"+hello)); r.status != 200 {
		t.Errorf("got %d %s", r.status, r.raw)
	}
	r := h.send(t, "/v1/chat/completions", []byte("\uFEFF{x"))
	if r.status != 400 || r.Error == nil || !strings.Contains(r.Error.Message, "at byte 5") {
		t.Errorf("got %d %s", r.status, r.raw)
	}
}

// Ensure that a dialogue that the model's template refuses is a fault of the messages.
func TestTemplateRefuses(t *testing.T) {
	dir := t.TempDir()
	files, err := filepath.Glob("../builtin/checkpoint/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err == nil && filepath.Base(name) == "chat_template.json" {
			data, err = json.Marshal(map[string]string{"chat_template": `{% for m in messages %}` +
				`{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}` +
				`{{ raise_exception('Roles must alternate') }}{% endif %}` +
				`{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}`})
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h := serve(t, dir, nil)
	user := map[string]any{"role": "user", "content": "Hello"}
	r := h.post(t, "/v1/chat/completions", map[string]any{"messages": []any{user, user}})
	if r.status != 400 || r.Error == nil || r.Error.Code != "invalid_value" ||
		r.Error.Param != "messages" || !strings.Contains(r.Error.Message, "Roles must alternate") {
		t.Errorf("got %d %s", r.status, r.raw)
	}
}
