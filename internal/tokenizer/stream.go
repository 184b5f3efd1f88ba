package tokenizer

// Stream turns ids into text as they arrive and never splits a character. Special tokens produce
// nothing. It never revises text that it has returned. So it differs from Decode(ids, true) for
// byte tokens that are not valid UTF-8, where Decode waits for a whole run, and for decoders that
// depend on the end of the text.
type Stream struct {
	t *Tokenizer
	// pending are the bytes of an incomplete character, at most three.
	pending []byte
	started bool // a token that is not special has been pushed
	strip   int  // how many of the decoder's Strip characters may still be removed at the start
	buf     []byte
}

// NewStream begins a text.
func (t *Tokenizer) NewStream() *Stream {
	s := &Stream{t: t}
	if step := t.decoder.leadingStrip(); step != nil {
		s.strip = step.start
	}
	return s
}

// leadingStrip returns the Strip step that acts on the joined text, or nil.
func (d decoder) leadingStrip() *decodeStep {
	joined := false
	for i := range d {
		switch d[i].kind {
		case decodeFuse, decodeByteLevel:
			joined = true
		case decodeStrip:
			if joined {
				return &d[i]
			}
		}
	}
	return nil
}

// Push takes the next id and returns the text that is now final: complete characters, and U+FFFD
// for each maximal part that cannot become one. An id outside the vocabulary produces nothing.
func (s *Stream) Push(id int32) string {
	s.pending = append(s.pending, s.raw(id)...)
	text, rest := decided(s.buf[:0], s.pending)
	s.buf = text
	s.pending = s.pending[:copy(s.pending, rest)]
	return string(text)
}

// PushRuns is Push with more results. raw is the bytes that id adds, valid until the next call.
// runs has, for each character of the text, how many of the bytes pushed so far it stands for: its
// own length, or the number of bytes that U+FFFD replaces.
func (s *Stream) PushRuns(id int32) (raw []byte, text string, runs []int) {
	raw = s.raw(id)
	s.pending = append(s.pending, raw...)
	b, runs, rest := decidedRuns(s.buf[:0], nil, s.pending)
	s.buf = b
	s.pending = s.pending[:copy(s.pending, rest)]
	return raw, string(b), runs
}

// Piece returns the bytes that the id adds to a text, as the first id of a Stream or as a later
// one. They may be incomplete characters. Special tokens and ids outside the vocabulary add none.
func (t *Tokenizer) Piece(id int32, first bool) []byte {
	s := t.NewStream()
	if !first {
		s.started, s.strip = true, 0
	}
	return s.raw(id)
}

// raw returns the bytes that the next id adds.
func (s *Stream) raw(id int32) []byte {
	if !s.t.has(id) || s.t.IsSpecial(id) {
		return nil
	}
	b := s.bytes(s.t.shown(id))
	s.started = true
	if s.strip > 0 && len(b) > 0 {
		content := s.t.decoder.leadingStrip().content
		for s.strip > 0 && len(b) >= len(content) && string(b[:len(content)]) == content {
			b = b[len(content):]
			s.strip--
		}
		if len(b) > 0 {
			s.strip = 0
		}
	}
	return b
}

// bytes returns the bytes that a token adds.
func (s *Stream) bytes(token string) []byte {
	d := s.t.decoder
	if d == nil && s.started {
		return []byte(" " + token)
	}
	joined := false
	for i := range d {
		switch d[i].kind {
		case decodeByteFallback:
			if b, ok := byteToken(token); ok {
				return []byte{b}
			}
		case decodeByteLevel:
			return byteLevelBytes(nil, token)
		case decodeFuse:
			joined = true
		case decodeStrip:
			if !joined {
				token = d[i].single(token, !s.started)
			}
		default:
			token = d[i].single(token, !s.started)
		}
	}
	return []byte(token)
}

// Flush ends the text: the bytes of an incomplete character become one U+FFFD. The stream can then
// be used for a new text.
func (s *Stream) Flush() string {
	text := cut(s.pending)
	*s = *s.t.NewStream()
	return text
}
