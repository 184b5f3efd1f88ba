package engine

import (
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/tokenizer"
)

// writer turns an answer's tokens into text. It holds back what may be the beginning of a
// stop text, and characters that are not whole.
type writer struct {
	stream *tokenizer.Stream
	stops  []string
	scored bool

	text strings.Builder // text that was sent
	held string          // whole characters that were not
	done bool            // a stop text was found: held ends before it

	// With scored: the tokens whose text was not sent, and of each byte of held, and then
	// of each that is no character yet, the token, counted from the answer's first.
	tokens []Token
	first  int   // of tokens
	owners []int // of held
	raw    []int
}

// push takes the next token. It reports whether a stop text is complete.
func (w *writer) push(id int32, t Token) (stopped bool) {
	if w.stream == nil { // a model without a tokenizer
		return false
	}
	if !w.scored {
		return w.add(w.stream.Push(id))
	}
	raw, text, runs := w.stream.PushRuns(id)
	t.Bytes = []byte{} // of no text: not missing
	w.tokens = append(w.tokens, t)
	for range raw {
		w.raw = append(w.raw, w.first+len(w.tokens)-1)
	}
	w.own(text, runs)
	return w.add(text)
}

// own notes which tokens the characters of text are of. What U+FFFD stands for is of one
// token.
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

// add takes text and looks for a stop text.
func (w *writer) add(text string) bool {
	w.held += text
	at := -1
	for _, stop := range w.stops {
		if i := strings.Index(w.held, stop); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	if at >= 0 {
		w.held, w.done = w.held[:at], true
	}
	return w.done
}

// end takes what became no whole character.
func (w *writer) end() {
	if w.done || w.stream == nil {
		return
	}
	text := w.stream.Flush()
	// the last takes all that is left
	for n := utf8.RuneCountInString(text); w.scored && n > 0; n-- {
		run := 1
		if n == 1 {
			run = len(w.raw)
		}
		w.own("\uFFFD", []int{run})
	}
	w.add(text)
}

// piece releases what can no longer become a stop text, or at the end of all.
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
	// a part of it was sent before
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

// pending is the length of the longest end of held that a stop text begins with.
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
