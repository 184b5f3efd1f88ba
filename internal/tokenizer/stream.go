package tokenizer

// Stream turns ids into text as they arrive, without ever cutting a character in two. Special
// tokens produce nothing. What it has returned so far is never revised; therefore it differs from
// Decode(ids, true) for byte tokens that are not valid UTF-8, where Decode waits for a whole run,
// and for decoders that look at the end of the text.
type Stream struct {
	t *Tokenizer
	// pending are bytes of a character that is not complete yet, at most three.
	pending []byte
	started bool // a token that is not special has been seen
	strip   int  // how many of the decoder's Strip characters may still go from the start
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

// leadingStrip returns the Strip that acts on the joined text, nil if there is none.
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

// Push takes the next id and returns the text that it settles: complete characters, and U+FFFD for
// each maximal part that cannot become one. An id outside the vocabulary produces nothing.
func (s *Stream) Push(id int32) string {
	s.pending = append(s.pending, s.raw(id)...)
	text, rest := decided(s.buf[:0], s.pending)
	s.buf = text
	s.pending = s.pending[:copy(s.pending, rest)]
	return string(text)
}

// PushRuns is Push. raw are the bytes that id adds, valid until the next call, and runs tells for
// each character of the text how many of the bytes that were added and not settled it stands for:
// as many as it has, or those that U+FFFD stands for.
func (s *Stream) PushRuns(id int32) (raw []byte, text string, runs []int) {
	raw = s.raw(id)
	s.pending = append(s.pending, raw...)
	b, runs, rest := decidedRuns(s.buf[:0], nil, s.pending)
	s.buf = b
	s.pending = s.pending[:copy(s.pending, rest)]
	return raw, string(b), runs
}

// Piece returns the bytes that the id adds to a text, as the first of a Stream or as a later one.
// They need not be whole characters. Special tokens and ids outside the vocabulary add none.
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

// Flush ends the text: bytes of a character that never became complete are one U+FFFD. The stream
// is then as new.
func (s *Stream) Flush() string {
	text := cut(s.pending)
	*s = *s.t.NewStream()
	return text
}
