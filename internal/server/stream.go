package server

import (
	"bytes"
	"net/http"
	"time"

	"github.com/restore-vlm/restore/internal/openai"
)

// writeTimeout is the time in which a client must read one write.
const writeTimeout = 30 * time.Second

// stream writes a reply piece by piece.
type stream struct {
	x       *exchange
	kind    string // Content-Type
	control *http.ResponseController
	err     error // the first failed write
	begun   bool
}

func (x *exchange) stream(kind string) *stream {
	return &stream{x: x, kind: kind, control: http.NewResponseController(x.w)}
}

// begin sends the head and closes the connection after this reply. A failed stream must end with
// its connection, and a client that learned of this only at the end could already have sent its
// next request.
func (s *stream) begin() {
	s.begun = true
	h := s.x.w.Header()
	h.Set("Content-Type", s.kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Set("Connection", "close")
	s.x.w.WriteHeader(http.StatusOK)
}

// write sends bytes at once.
func (s *stream) write(b []byte) {
	if s.err != nil {
		return
	}
	if s.err = s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); s.err == nil {
		if _, s.err = s.x.w.Write(b); s.err == nil {
			s.err = s.control.Flush()
		}
	}
}

// events sends messages as server-sent events.
func (s *stream) events(messages []openai.Message) {
	var b bytes.Buffer
	for _, m := range messages {
		if m.Event != "" {
			b.WriteString("event: " + m.Event + "\n")
		}
		text := []byte(m.Text)
		if m.Data != nil {
			var err error
			if text, err = marshal(m.Data); err != nil {
				s.err = err
				return
			}
		}
		b.WriteString("data: ")
		b.Write(text)
		b.WriteString("\n\n")
	}
	if b.Len() > 0 {
		s.write(b.Bytes())
	}
}

// line sends a value as one line of JSON.
func (s *stream) line(v any) {
	b, err := marshal(v)
	if err != nil {
		s.err = err
		return
	}
	s.write(append(b, '\n'))
}
