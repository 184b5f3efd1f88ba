package engine

import (
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/tokenizer"
)

// writer turns an answer's tokens into text. It holds back incomplete characters and text that may
// be the beginning of a stop text.
type writer struct {
	stream *tokenizer.Stream
	stops  []string
	scored bool

	text strings.Builder // text that was sent
	held string          // complete characters that were not sent
	done bool            // a stop text was found: held ends before it
	stop string          // that text

	// With scored: tokens are those not sent yet. owners has the token of each byte of held, raw
	// the token of each following byte that is not a character yet. Both count tokens from the
	// answer's first.
	tokens []Token
	first  int   // index of tokens[0]
	owners []int // of held
	raw    []int
}

// push adds the next token. It reports whether a stop text is complete.
func (w *writer) push(id int32, t Token) (stopped bool) {
	if w.stream == nil { // the model has no tokenizer
		return false
	}
	if !w.scored {
		return w.add(w.stream.Push(id))
	}
	raw, text, runs := w.stream.PushRuns(id)
	t.Bytes = []byte{} // empty, not missing: it may have no text
	w.tokens = append(w.tokens, t)
	for range raw {
		w.raw = append(w.raw, w.first+len(w.tokens)-1)
	}
	w.own(text, runs)
	return w.add(text)
}

// own records which tokens the characters of text come from. Each U+FFFD in place of invalid bytes
// is assigned to one token.
func (w *writer) own(text string, runs []int) {
	for _, n := range runs {
		_, size := utf8.DecodeRuneInString(text)
		text = text[size:]
		for i := range size {
			of := w.raw[0]
			if n == size {
				of = w.raw[i]
			}
			w.owners = append(w.owners, of)
		}
		w.raw = w.raw[n:]
	}
}

// add appends text and looks for a stop text.
func (w *writer) add(text string) bool {
	w.held += text
	at := -1
	for _, stop := range w.stops {
		if i := strings.Index(w.held, stop); i >= 0 && (at < 0 || i < at) {
			at, w.stop = i, stop
		}
	}
	if at >= 0 {
		w.held, w.done = w.held[:at], true
	}
	return w.done
}

// end flushes the bytes that form no complete character.
func (w *writer) end() {
	if w.done || w.stream == nil {
		return
	}
	text := w.stream.Flush()
	// The last U+FFFD takes all remaining bytes.
	for n := utf8.RuneCountInString(text); w.scored && n > 0; n-- {
		run := 1
		if n == 1 {
			run = len(w.raw)
		}
		w.own("\uFFFD", []int{run})
	}
	w.add(text)
}

// piece returns the text that can no longer become part of a stop text, or all of it at the end.
func (w *writer) piece(end bool) Piece {
	n := len(w.held)
	if !end && !w.done {
		n -= w.pending()
	}
	p := Piece{Text: w.held[:n]}
	w.text.WriteString(p.Text)
	w.held = w.held[n:]
	if !w.scored {
		return p
	}
	for i, of := range w.owners[:n] {
		t := &w.tokens[of-w.first]
		t.Bytes = append(t.Bytes, p.Text[i])
	}
	last := w.first + len(w.tokens) // the first token that is not sent
	switch {
	case w.done && n > 0:
		last = w.owners[n-1] + 1
	// part of its text was sent before
	case w.done && len(w.tokens) > 0 && len(w.tokens[0].Bytes) > 0:
		last = w.first + 1
	case w.done:
		last = w.first
	case n < len(w.owners):
		last = w.owners[n]
	case len(w.raw) > 0:
		last = w.raw[0]
	}
	w.owners = w.owners[n:]
	p.Tokens = w.tokens[: last-w.first : last-w.first]
	w.tokens, w.first = w.tokens[last-w.first:], last
	return p
}

// pending returns the length of the longest suffix of held that is a prefix of a stop text.
func (w *writer) pending() int {
	longest := 0
	for _, stop := range w.stops {
		for n := min(len(stop)-1, len(w.held)); n > longest; n-- {
			if strings.HasSuffix(w.held, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}
