package batch

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Request is one line of the input.
type Request struct {
	Line     int    // from 0
	CustomID string // as in the line
	Method   string
	URL      string
	Body     json.RawMessage
	Pictures [sha256.Size]byte // hash of its pictures' URLs, in order; zero without pictures
}

// Response is the answer of a backend.
type Response struct {
	Status    int             `json:"status_code"`
	RequestID string          `json:"request_id"`
	Body      json.RawMessage `json:"body"`
}

// Error says why a line has no response.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Result is one line of the output.
type Result struct {
	ID       string    `json:"id"`
	CustomID *string   `json:"custom_id"` // nil for a line that cannot be read
	Response *Response `json:"response"`
	Error    *Error    `json:"error"`
}

// lineError describes a line that cannot be read.
type lineError struct {
	line    int // from 0
	code    string
	message string
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %s", e.line+1, e.message) }

// lines reads an input line by line.
type lines struct {
	r    *bufio.Reader
	most int // largest line in bytes
	at   int // number of the next line
	buf  []byte
}

func newLines(r io.Reader, most int) *lines {
	return &lines{r: bufio.NewReaderSize(r, 1<<16), most: most}
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// next returns the next line without its line break, valid until the next call, and whether it was
// too long to be kept. It returns io.EOF after the last line. Text after the last line break is a
// line only if it is not empty.
func (l *lines) next() (line []byte, long bool, err error) {
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		if len(l.buf)+len(part) > l.most+2 {
			long = true
		}
		if !long {
			l.buf = append(l.buf, part...)
		}
		switch {
		case err == nil:
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			if len(part) == 0 && len(l.buf) == 0 && !long {
				return nil, false, io.EOF
			}
		default:
			return nil, false, err
		}
		break
	}
	line = bytes.TrimSuffix(bytes.TrimSuffix(l.buf, []byte("\n")), []byte("\r"))
	if l.at == 0 {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	l.at++
	return line, long || len(line) > l.most, nil
}

// parse reads line number n. It keeps no part of line.
func parse(line []byte, n int) (*Request, error) {
	bad := func(code, format string, a ...any) error {
		return &lineError{n, code, fmt.Sprintf(format, a...)}
	}
	if len(bytes.TrimSpace(line)) == 0 {
		return nil, bad("invalid_json", "empty, want a JSON object")
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, bad("invalid_json", "invalid JSON at byte %d: %v", syntax.Offset, err)
		}
		return nil, bad("invalid_type",
			"got JSON that is no object, want one with custom_id, method, url and body")
	}
	r := &Request{Line: n, Method: "POST"}
	for _, f := range []struct {
		name string
		to   *string
		need bool
	}{{"custom_id", &r.CustomID, true}, {"method", &r.Method, false}, {"url", &r.URL, true}} {
		raw, ok := fields[f.name]
		if !ok || string(raw) == "null" {
			if f.need {
				return nil, bad("missing_required_parameter", "%s: missing, want a string", f.name)
			}
			continue
		}
		if err := json.Unmarshal(raw, f.to); err != nil {
			return nil, bad("invalid_type", "%s: got %s, want a string", f.name, short(raw))
		}
	}
	body := bytes.TrimSpace(fields["body"])
	if len(body) == 0 || body[0] != '{' {
		return nil, bad("invalid_type", "body: got %s, want an object", short(body))
	}
	r.Body = bytes.Clone(body)
	r.Pictures = pictures(body)
	return r, nil
}

// short returns at most 40 bytes of raw, for a message.
func short(raw []byte) string {
	switch {
	case len(raw) == 0:
		return "nothing"
	case len(raw) > 40:
		return string(bytes.ToValidUTF8(raw[:40], nil)) + "…"
	}
	return string(raw)
}

// pictures hashes the URLs of all pictures in a body, in order, for every route. It returns zero
// without pictures. Requests with the same hash are about the same pictures.
func pictures(body []byte) (key [sha256.Size]byte) {
	var tree any
	if json.Unmarshal(body, &tree) != nil {
		return key
	}
	h := sha256.New()
	found := false
	add := func(v any) {
		if s, ok := v.(string); ok {
			found = true
			binary.Write(h, binary.LittleEndian, uint64(len(s)))
			io.WriteString(h, s)
		}
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			if u, ok := v["image_url"]; ok {
				if o, ok := u.(map[string]any); ok {
					u = o["url"]
				}
				add(u)
				return
			}
			// the fields that hold pictures, over all routes
			for _, name := range []string{"messages", "input", "content"} {
				walk(v[name])
			}
		}
	}
	walk(tree)
	if found {
		h.Sum(key[:0])
	}
	return key
}
