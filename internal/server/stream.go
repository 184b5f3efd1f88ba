package server

import (
	"bytes"
	"net/http"
	"sync"
	"time"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// stream writes a reply piece by piece.
type stream struct {
	x    *exchange
	call *api.Call

	mu      sync.Mutex   // of the fields below, and of writing
	pending bytes.Buffer // not yet sent
	wrote   time.Time    // the last write
	err     error        // the first failed write
	begun   bool
}

func (x *exchange) stream(c *api.Call) *stream {
	return &stream{x: x, call: c, wrote: time.Now()}
}

// breakSilence sends a comment when nothing was written for some time, until stop is called. If the
// client no longer reads, it calls leave.
func (s *stream) breakSilence(silence time.Duration, leave func()) (stop func()) {
	over := false
	var timer *time.Timer
	s.mu.Lock() // until timer is set
	defer s.mu.Unlock()
	timer = time.AfterFunc(silence, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if over {
			return
		}
		if time.Since(s.wrote) >= silence/2 {
			s.begin()
			s.pending.WriteString(": ping\n\n")
			s.send()
		}
		if s.err != nil {
			leave()
			return
		}
		timer.Reset(silence)
	})
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		over = true
		timer.Stop()
	}
}

// sendBytes is how much a stream collects at most while pieces wait that were generated meanwhile.
const sendBytes = 2048

// piece writes a piece of the answer, which has neither text nor tokens if the text is not complete
// yet. If ready says that the next piece is there, they may share a write. It returns false if the
// client no longer reads.
func (s *stream) piece(p *restore.Piece, ready func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Text != "" || p.Tokens != nil {
		s.begin()
		s.add(s.call.Events.Piece(p))
	}
	if s.pending.Len() > 0 && (s.pending.Len() >= sendBytes || !ready()) {
		s.send()
	}
	return s.err == nil
}

// begin begins the reply, unless it has begun. The connection ends with the reply: a failed stream
// must end with its connection, and a client that learned of this only at the end could already
// have sent its next request.
func (s *stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	h := s.x.w.Header()
	h.Set("Content-Type", s.x.api.Stream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	h.Set("Connection", "close")
	s.x.w.WriteHeader(http.StatusOK)
	s.add(s.call.Events.Begin())
}

// send sends the pending bytes at once.
func (s *stream) send() {
	if s.write(); s.err == nil {
		s.err = s.x.w.flush()
	}
}

// write writes the pending bytes. At the end of a reply the connection sends it, in one packet with
// the end.
func (s *stream) write() {
	if s.err == nil {
		_, s.err = s.x.w.Write(s.pending.Bytes())
	}
	s.pending.Reset()
	s.wrote = time.Now()
}

// add adds messages: as server-sent events, or as lines of JSON.
func (s *stream) add(messages []api.Message) {
	events := s.x.api.Stream == api.EventStream
	for _, m := range messages {
		if m.Event != "" {
			s.pending.WriteString("event: " + m.Event + "\n")
		}
		if events {
			s.pending.WriteString("data: ")
		}
		if m.Data == nil {
			s.pending.WriteString(m.Text)
		} else {
			s.json(m.Data)
		}
		if s.pending.WriteByte('\n'); events {
			s.pending.WriteByte('\n')
		}
	}
}

// json adds a value as JSON.
func (s *stream) json(v any) {
	b, err := wire.Marshal(v)
	if err != nil && s.err == nil {
		s.err = err
	}
	s.pending.Write(b)
}
