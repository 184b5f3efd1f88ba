package server

import (
	"bytes"
	"net/http"
	"time"

	"github.com/restore-vlm/restore/internal/openai"
	"github.com/restore-vlm/restore/internal/wire"
)

// writeTimeout is the time in which a client must read one write.
const writeTimeout = 30 * time.Second

// stream writes a reply piece by piece.
type stream struct {
	x       *exchange
	kind    string // Content-Type
	control *http.ResponseController
	pending bytes.Buffer // not yet sent
	err     error        // the first failed write
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

// send sends the pending bytes at once.
func (s *stream) send() {
	if s.write(); s.err == nil {
		s.err = s.control.Flush()
	}
}

// write writes the pending bytes. At the end of a reply the connection sends it, in one packet with
// the end.
func (s *stream) write() {
	if s.err == nil {
		s.err = s.control.SetWriteDeadline(time.Now().Add(writeTimeout))
	}
	if s.err == nil {
		_, s.err = s.x.w.Write(s.pending.Bytes())
	}
	s.pending.Reset()
}

// events adds messages as server-sent events.
func (s *stream) events(messages []openai.Message) {
	for _, m := range messages {
		if m.Event != "" {
			s.pending.WriteString("event: " + m.Event + "\n")
		}
		s.pending.WriteString("data: ")
		if m.Data == nil {
			s.pending.WriteString(m.Text)
		} else {
			s.add(m.Data)
		}
		s.pending.WriteString("\n\n")
	}
}

// line adds a value as one line of JSON.
func (s *stream) line(v any) {
	s.add(v)
	s.pending.WriteByte('\n')
}

// add adds a value as JSON.
func (s *stream) add(v any) {
	b, err := wire.Marshal(v)
	if err != nil && s.err == nil {
		s.err = err
	}
	s.pending.Write(b)
}
