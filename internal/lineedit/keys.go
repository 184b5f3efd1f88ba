package lineedit

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// key is what a person did at the keyboard.
type key int

const (
	noKey key = iota // a key without a meaning here
	typed            // text, perhaps of several keys or pasted
	enter
	interrupt // Ctrl-C
	endInput  // Ctrl-D
	tab
	left
	right
	up
	down
	home
	end
	wordLeft
	wordRight
	backspace
	deleteRight
	eraseWordLeft
	eraseWordRight
	eraseLeft
	eraseRight
	yank
	search
	clearScreen
	suspend
	pasteBegin
)

// controls are the meanings of control characters.
var controls = map[byte]key{
	'A' - '@': home, 'B' - '@': left, 'C' - '@': interrupt, 'D' - '@': endInput, 'E' - '@': end,
	'F' - '@': right, 'H' - '@': backspace, 'I' - '@': tab, 'J' - '@': enter,
	'K' - '@': eraseRight, 'L' - '@': clearScreen, 'M' - '@': enter, 'N' - '@': down,
	'P' - '@': up, 'R' - '@': search, 'U' - '@': eraseLeft, 'W' - '@': eraseWordLeft,
	'Y' - '@': yank, 'Z' - '@': suspend, del: backspace,
}

// alts are the meanings of keys that are pressed with Alt, or after Escape at once.
var alts = map[byte]key{
	'b': wordLeft, 'f': wordRight, 'd': eraseWordRight, del: eraseWordLeft, '\b': eraseWordLeft,
}

// finals are the meanings of sequences by their last character, tildes by their number.
var (
	finals = map[byte]key{
		'A': up, 'B': down, 'C': right, 'D': left, 'H': home, 'F': end,
		'c': wordRight, 'd': wordLeft, // rxvt, with Ctrl
	}
	tildes = map[string]key{
		"1": home, "7": home, "4": end, "8": end, "3": deleteRight, "200": pasteBegin,
	}
	withModifier = map[key]key{left: wordLeft, right: wordRight, deleteRight: eraseWordRight}
)

const (
	esc = 0x1b
	del = 0x7f
)

// pasteEnd is what a terminal sends after a pasted text.
var pasteEnd = []byte("\x1b[201~")

// keys decodes what a terminal sends.
type keys struct {
	buf     []byte // received, but not yet decoded
	pasting bool
	broke   bool // the last pasted character was a return, which a line feed may follow
}

// next decodes the next key. It returns false if more bytes are needed. idle says that nothing
// followed for a while: what may be the beginning of a sequence is none.
func (k *keys) next(idle bool) (do key, text string, ok bool) {
	switch {
	case len(k.buf) == 0:
		return noKey, "", false
	case k.pasting:
		return k.pasted()
	case k.buf[0] == esc:
		return k.sequence(idle)
	case k.buf[0] < ' ' || k.buf[0] == del:
		do = controls[k.take(1)[0]]
		return do, "", true
	}
	n := bytes.IndexFunc(k.buf, func(r rune) bool { return r < ' ' || r == del })
	if n < 0 {
		n = whole(k.buf)
	}
	return typed, string(k.take(n)), n > 0
}

// take removes the first n bytes.
func (k *keys) take(n int) []byte {
	b := k.buf[:n]
	k.buf = k.buf[n:]
	return b
}

// whole is the length of b without a character at its end that is not complete.
func whole(b []byte) int {
	for i := max(0, len(b)-utf8.UTFMax); i < len(b); i++ {
		if utf8.RuneStart(b[i]) && !utf8.FullRune(b[i:]) {
			return i
		}
	}
	return len(b)
}

// pasted returns pasted text, with line breaks as \n. Ctrl-C ends a paste whose end was lost; the
// text before it comes first.
func (k *keys) pasted() (key, string, bool) {
	n, after := bytes.Index(k.buf, pasteEnd), 0
	if n >= 0 {
		after = len(pasteEnd)
	} else {
		n = len(k.buf)
		for i := min(n, len(pasteEnd)-1); i > 0; i-- {
			if bytes.HasSuffix(k.buf, pasteEnd[:i]) {
				n -= i
				break
			}
		}
		n = whole(k.buf[:n])
	}
	switch at := bytes.IndexByte(k.buf[:n], 'C'-'@'); {
	case at == 0:
		k.take(1)
		k.pasting, k.broke = false, false
		return interrupt, "", true
	case at > 0:
		n, after = at, 0
	}
	if n+after == 0 {
		return noKey, "", false
	}
	text := string(k.take(n))
	if text != "" {
		if k.broke {
			text = strings.TrimPrefix(text, "\n")
		}
		k.broke = strings.HasSuffix(text, "\r")
		text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	}
	if after > 0 {
		k.take(after)
		k.pasting, k.broke = false, false
	}
	return typed, text, true
}

// sequence decodes what begins with Escape. Escape alone has no meaning, and takes no key with it.
func (k *keys) sequence(idle bool) (do key, text string, ok bool) {
	n, do, ok := decode(k.buf)
	if !ok && !idle {
		return noKey, "", false
	}
	if !ok {
		n = len(k.buf)
	}
	if n == 2 && k.buf[1] == '\r' { // Alt-Enter, and what some terminals send for Shift-Enter
		do, text = typed, "\n"
	}
	k.take(n)
	if do == pasteBegin {
		do, k.pasting = noKey, true
	}
	return do, text, true
}

// decode returns the length and meaning of the sequence at the beginning of b; false if it is not
// complete.
func decode(b []byte) (n int, do key, ok bool) {
	if len(b) < 2 {
		return 0, noKey, false
	}
	switch c := b[1]; c {
	case '[', 'O':
		return control(b)
	case ']', 'P', 'X', '^', '_': // a reply of the terminal
		for i := 2; i < len(b); i++ {
			switch {
			case b[i] == '\a':
				return i + 1, noKey, true
			case b[i] == esc:
				if i+1 == len(b) {
					return 0, noKey, false
				}
				return i + 2, noKey, true
			}
		}
		return 0, noKey, false
	case '\r':
		return 2, noKey, true
	default:
		if do, ok = alts[c]; ok {
			return 2, do, true
		}
		return 1, noKey, true
	}
}

// control decodes ESC [ and ESC O, parameters, and a last character.
func control(b []byte) (n int, do key, ok bool) {
	if len(b) > 2 && b[1] == '[' && b[2] == '[' { // a function key of Linux's console
		return min(4, len(b)), noKey, len(b) >= 4
	}
	at := 2
	for at < len(b) && b[at] >= ' ' && b[at] < '@' {
		at++
	}
	if at == len(b) {
		return 0, noKey, false
	}
	last := b[at]
	if last < ' ' || last >= del { // no sequence after all: the key that follows is none of it
		return at, noKey, true
	}
	number, modifier, _ := strings.Cut(string(b[2:at]), ";")
	do = finals[last]
	switch {
	case last == '~':
		do = tildes[number]
	case last == '^' && number == "3": // rxvt, with Ctrl
		do = eraseWordRight
	case modifier == "" && number != "1":
		modifier = number // as older terminals send it
	}
	if with, ok := withModifier[do]; ok && modifier > "2" {
		do = with
	}
	return at + 1, do, true
}
