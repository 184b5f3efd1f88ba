package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Tokenizer is a parsed tokenizer.json or tokenizer.model. It is immutable and safe for concurrent
// use.
type Tokenizer struct {
	tokens      []vocabEntry
	display     map[int32]string // added tokens that normalisation changes, for decoders
	addedIDs    map[string]int32 // added tokens that are not in the model
	rawAdded    matcher          // added tokens compared with the raw text
	normalAdded matcher          // added tokens compared with the normalised text

	normalizers   []normalizer
	preTokenizers []preTokenizer
	model         bpe
	processors    []processor
	around        template // what AddSpecial adds
	decoder       decoder

	pieces *pieces // SentencePiece's, used instead of model; nil for a tokenizer.json
	// every run of text between added tokens begins with a space, not only the first
	everyRun bool
	named    map[int32]bool // tokens that the settings name: bos_token, eos_token, …

	place     matcher // a picture's place, if the vocabulary has no token for it
	placeID   int32
	placeText string
}

// vocabEntry is the token of an id.
type vocabEntry struct {
	text    string
	known   bool
	special bool
	leans   bool // the text next to it is a part of it, or decides on it
}

// Encoding is the result of Encode. Both lists have the same length and are never nil.
type Encoding struct {
	IDs []int32
	// Offsets has for each id the half-open range of the text that it stands for, in UTF-8 bytes.
	// Ids that are parts of one character all have the range of the whole character; special tokens
	// added by the post-processor have 0, 0.
	Offsets [][2]int
}

// EncodeOptions are the options of one call. The zero value recognises special tokens in the text
// and adds none.
type EncodeOptions struct {
	// AddSpecial runs the post-processor's template, which puts <s> in front for LLaMA.
	AddSpecial bool
	// SpecialsAsText treats special tokens in the text as ordinary text: use it for text from
	// users. Added tokens that are not special are still recognised.
	SpecialsAsText bool
}

// Segment is a part of a prompt, by its author.
type Segment struct {
	Text string
	// User marks text from outside, in which special tokens are ordinary text.
	User bool
}

// Encode turns text, which must be valid UTF-8 of at most 16 MiB, into ids. Time is O(n log n). The
// empty text has no ids, except those that AddSpecial adds.
func (t *Tokenizer) Encode(text string, o EncodeOptions) (Encoding, error) {
	return t.encode(text, o.AddSpecial, &guard{specialsAsText: o.SpecialsAsText})
}

// EncodeSegments encodes the concatenation of segs as one text, so words and characters may cross
// borders between segments, but it recognises a special token only if no part of it was written by
// a user. Without user segments, it equals Encode of the concatenation; with only user segments, it
// equals Encode with SpecialsAsText. A user's text cannot keep a special token of the template from
// being recognised, except by the token's own single_word flag.
func (t *Tokenizer) EncodeSegments(segs []Segment, o EncodeOptions) ([]int32, error) {
	g := guard{specialsAsText: o.SpecialsAsText}
	var text strings.Builder
	for _, s := range segs {
		start := text.Len()
		if start+len(s.Text) > maxText {
			return nil, fmt.Errorf("tokenizer: text: longer than %d bytes", maxText)
		}
		text.WriteString(s.Text)
		if !s.User || s.Text == "" {
			continue
		}
		u := span{int32(start), int32(text.Len())}
		if n := len(g.user); n > 0 && g.user[n-1].end == u.start {
			g.user[n-1].end = u.end
		} else {
			g.user = append(g.user, u)
		}
	}
	e, err := t.encode(text.String(), o.AddSpecial, &g)
	return e.IDs, err
}

func (t *Tokenizer) encode(text string, addSpecial bool, g *guard) (Encoding, error) {
	if len(text) > maxText {
		return Encoding{}, fmt.Errorf("tokenizer: text: %d bytes, limit is %d", len(text), maxText)
	}
	if !utf8.ValidString(text) {
		return Encoding{}, fmt.Errorf("tokenizer: text: not valid UTF-8 at byte %d",
			firstInvalid(text))
	}
	pieces, err := t.split(text, g)
	if err != nil {
		return Encoding{}, err
	}
	e := encoded{
		Encoding: Encoding{IDs: []int32{}, Offsets: [][2]int{}},
		text:     text,
		tokens:   func(id int32) string { return t.tokens[id].text },
	}
	var w workspace
	var word []token
	for i := range pieces {
		p := &pieces[i]
		if p.id != noToken {
			e.append(p.id, p.spanOf(0, len(p.text)), true)
			continue
		}
		if t.pieces != nil {
			word = t.pieces.encode(&w, p.text, word[:0])
		} else if word, err = t.model.encode(&w, p.text, word[:0]); err != nil {
			return Encoding{}, err
		}
		at := 0
		for _, k := range word {
			// An affix that falls back to bytes has more tokens than the text has bytes.
			start := min(at, len(p.text)-1)
			at += int(k.length)
			e.append(k.id, p.spanOf(start, min(at, len(p.text))), false)
		}
	}
	for _, process := range t.processors {
		process(&e)
	}
	if addSpecial && t.around != nil {
		return t.around.add(e.Encoding), nil
	}
	return e.Encoding, nil
}

func (e *encoded) append(id int32, s span, added bool) {
	e.IDs = append(e.IDs, id)
	e.Offsets = append(e.Offsets, [2]int{int(s.start), int(s.end)})
	e.added = append(e.added, added)
}

// split splits text into words, added tokens and places of pictures.
func (t *Tokenizer) split(text string, g *guard) ([]piece, error) {
	var pieces []piece
	for _, p := range t.place.split(piece{text: text, id: noToken}, g, nil) {
		if p.id != noToken {
			pieces = append(pieces, p)
			continue
		}
		var err error
		if t.pieces != nil {
			pieces, err = t.whole(p, g, pieces)
		} else {
			pieces, err = t.words(p, g, pieces)
		}
		if err != nil {
			return nil, err
		}
	}
	return pieces, nil
}

// whole splits p into added tokens and the texts between them, which SentencePiece does not split
// further, and appends them to done.
func (t *Tokenizer) whole(p piece, g *guard, done []piece) ([]piece, error) {
	var pieces []piece
	for i, p := range t.rawAdded.split(p, g, nil) {
		prefix := t.pieces.DummyPrefix && (i == 0 || t.everyRun)
		switch {
		case p.id == noToken:
			if err := t.pieces.normalize(&p, prefix, t.everyRun); err != nil {
				return nil, err
			}
		case prefix && !t.everyRun: // a text begins with a space even before a token
			pieces = append(pieces, piece{
				text: blank, align: slices.Repeat([]span{{p.base, p.base}}, len(blank)),
				base: p.base, id: noToken,
			})
		}
		if p.id != noToken || p.text != "" {
			pieces = append(pieces, p)
		}
	}
	// But a lone space before a token that the settings name is dropped.
	if len(pieces) > 1 && !t.everyRun && pieces[0].id == noToken && pieces[0].text == blank &&
		t.named[pieces[1].id] {
		pieces = pieces[1:]
	}
	return append(done, pieces...), nil
}

// words splits p into words and added tokens and appends them to done.
func (t *Tokenizer) words(p piece, g *guard, done []piece) ([]piece, error) {
	raw := t.rawAdded.split(p, g, nil)
	pieces := make([]piece, 0, len(raw))
	for _, p := range raw {
		if p.id != noToken {
			pieces = append(pieces, p)
			continue
		}
		if err := t.normalize(&p); err != nil {
			return nil, err
		}
		pieces = t.normalAdded.split(p.slice(0, len(p.text)), g, pieces)
	}
	for _, pre := range t.preTokenizers {
		next := make([]piece, 0, len(pieces))
		for _, p := range pieces {
			if p.id != noToken {
				next = append(next, p)
				continue
			}
			var err error
			if next, err = pre(p, next); err != nil {
				return nil, err
			}
		}
		pieces = next
	}
	return append(done, pieces...), nil
}

func (t *Tokenizer) normalize(p *piece) error {
	for _, n := range t.normalizers {
		if err := n(p); err != nil {
			return err
		}
	}
	return nil
}

func firstInvalid(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return len(s)
}

// Decode turns ids into text. Ids outside the vocabulary are left out, and so are special tokens
// with skipSpecial. Bytes that are not valid UTF-8 become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		if t.has(id) && !(skipSpecial && t.tokens[id].special) {
			tokens = append(tokens, t.shown(id))
		}
	}
	return t.decoder.decode(tokens)
}

// shown returns the form of a token on which decoders work; the id must be valid.
func (t *Tokenizer) shown(id int32) string {
	if s, ok := t.display[id]; ok {
		return s
	}
	return t.tokens[id].text
}

// VocabSize returns the largest id plus one.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

// TokenID returns the id of the token with the text content, as in the file.
func (t *Tokenizer) TokenID(content string) (int32, bool) {
	if id, ok := t.addedIDs[content]; ok {
		return id, true
	}
	id, ok := t.model.vocab[content]
	return id, ok
}

// Token returns the text of the token with the id, as in the file.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if t.placeText != "" && id == t.placeID {
		return t.placeText, true
	}
	if !t.has(id) {
		return "", false
	}
	return t.tokens[id].text, true
}

// IsSpecial reports whether the id is an added token marked special.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.has(id) && t.tokens[id].special }

// StandsAlone reports whether the text next to a token has no part in it and does not decide
// whether it is recognised, as with the flags lstrip, rstrip and single_word.
func (t *Tokenizer) StandsAlone(id int32) bool { return !t.has(id) || !t.tokens[id].leans }

func (t *Tokenizer) has(id int32) bool {
	return id >= 0 && int(id) < len(t.tokens) && t.tokens[id].known
}

func (t *Tokenizer) setToken(id int32, text string) {
	for int(id) >= len(t.tokens) {
		t.tokens = append(t.tokens, vocabEntry{})
	}
	t.tokens[id] = vocabEntry{text: text, known: true}
}
