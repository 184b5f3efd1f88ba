package tokenizer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// PieceKind is the kind of a piece of a SentencePiece vocabulary.
type PieceKind uint8

// The kinds, with their numbers in files.
const (
	NormalPiece  PieceKind = 1
	UnknownPiece PieceKind = 2 // stands for text that no other piece matches
	ControlPiece PieceKind = 3 // never matches text: <s>
	UserPiece    PieceKind = 4 // always matched as a whole
	UnusedPiece  PieceKind = 5 // takes part in merges, but is split again at the end
	BytePiece    PieceKind = 6 // <0x00> to <0xFF>
)

// Piece is one entry of a SentencePiece vocabulary. Its index is its id.
type Piece struct {
	Text  string
	Score float32 // of two merges, the one with the higher score comes first
	Kind  PieceKind
}

// SentencePiece is a byte pair encoding with scores instead of merges: the content of a
// tokenizer.model.
type SentencePiece struct {
	Pieces       []Piece
	ByteFallback bool // an unknown character becomes its bytes' pieces
	DummyPrefix  bool // a space is put before the text
	TrimSpaces   bool // spaces at both ends are removed, and runs of them become one
}

// MaxPieces is the most pieces of a vocabulary, and maxPieceLen the most bytes of a piece.
const (
	MaxPieces   = maxID + 1
	maxPieceLen = 4096
)

// The wire types of protocol buffers, and the fields that are read.
const (
	wireVarint, wireFixed64, wireBytes, wireFixed32 = 0, 1, 2, 5

	modelPieces, modelTrainer, modelNormalizer        = 1, 2, 3
	pieceText, pieceScore, pieceKind                  = 1, 2, 3
	trainerType, trainerSuffix, trainerByteFallback   = 3, 24, 35
	normalizerRules, normalizerPrefix, normalizerTrim = 2, 3, 4
	normalizerEscape                                  = 5
	typeUnigram, typeBPE                              = 1, 2
)

// field is one field of a protocol buffer's message.
type field struct {
	number int
	wire   int
	value  uint64 // of a varint, or the bits of a fixed number
	bytes  []byte
}

// fields calls f for each field of a message.
func fields(b []byte, f func(field) error) error {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 || key>>3 == 0 || key>>3 > 1<<29 {
			return errors.New("damaged: a field without a number")
		}
		b = b[n:]
		x := field{number: int(key >> 3), wire: int(key & 7)}
		size := uint64(0)
		switch x.wire {
		case wireVarint:
			if x.value, n = binary.Uvarint(b); n <= 0 {
				return fmt.Errorf("damaged: field %d is cut short", x.number)
			}
			size = uint64(n)
		case wireFixed64:
			size = 8
		case wireFixed32:
			size = 4
		case wireBytes:
			length, n := binary.Uvarint(b)
			if n <= 0 {
				return fmt.Errorf("damaged: field %d is cut short", x.number)
			}
			b, size = b[n:], length
		default:
			return fmt.Errorf("damaged: field %d is of the wire type %d", x.number, x.wire)
		}
		if size > uint64(len(b)) {
			return fmt.Errorf("damaged: field %d has %d bytes, want at most the %d that are left",
				x.number, size, len(b))
		}
		switch x.bytes = b[:size]; x.wire {
		case wireFixed64:
			x.value = binary.LittleEndian.Uint64(x.bytes)
		case wireFixed32:
			x.value = uint64(binary.LittleEndian.Uint32(x.bytes))
		}
		b = b[size:]
		if err := f(x); err != nil {
			return err
		}
	}
	return nil
}

// ReadSentencePiece reads a tokenizer.model. It returns an error for models other than byte pair
// encoding, and for models that normalise characters.
func ReadSentencePiece(model []byte) (*SentencePiece, error) {
	if len(model) > maxFile {
		return nil, fmt.Errorf("tokenizer: sentencepiece: %d bytes, limit is %d", len(model),
			maxFile)
	}
	s := &SentencePiece{DummyPrefix: true, TrimSpaces: true}
	kind, suffix, escape, rules := uint64(typeUnigram), uint64(0), uint64(1), 0
	err := fields(model, func(f field) error {
		if f.wire != wireBytes {
			return fmt.Errorf("damaged: field %d is not a message", f.number)
		}
		switch f.number {
		case modelPieces:
			p, err := readPiece(f.bytes)
			if err == nil && len(s.Pieces) >= MaxPieces {
				err = fmt.Errorf("more than %d pieces", MaxPieces)
			}
			s.Pieces = append(s.Pieces, p)
			return err
		case modelTrainer:
			return fields(f.bytes, func(f field) error {
				switch f.number {
				case trainerType:
					kind = f.value
				case trainerSuffix:
					suffix = f.value
				case trainerByteFallback:
					s.ByteFallback = f.value != 0
				}
				return nil
			})
		case modelNormalizer:
			return fields(f.bytes, func(f field) error {
				switch f.number {
				case normalizerRules:
					rules = len(f.bytes)
				case normalizerPrefix:
					s.DummyPrefix = f.value != 0
				case normalizerTrim:
					s.TrimSpaces = f.value != 0
				case normalizerEscape:
					escape = f.value
				}
				return nil
			})
		}
		return nil
	})
	switch {
	case err != nil:
	case kind != typeBPE:
		names := map[uint64]string{typeUnigram: "unigram", 3: "word", 4: "char"}
		err = fmt.Errorf("model type: got %q (%d), want bpe", names[kind], kind)
	case suffix != 0:
		err = errors.New("treat_whitespace_as_suffix: got true, want false")
	case escape == 0:
		err = errors.New("escape_whitespaces: got false, want true")
	case rules > 0:
		err = fmt.Errorf(
			"precompiled_charsmap: got rules of %d bytes that change characters, want none "+
				"(identity)", rules)
	default:
		err = s.check()
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: sentencepiece: %w", err)
	}
	return s, nil
}

func readPiece(b []byte) (Piece, error) {
	p := Piece{Kind: NormalPiece}
	err := fields(b, func(f field) error {
		switch {
		case f.number == pieceText && f.wire == wireBytes:
			p.Text = string(f.bytes)
		case f.number == pieceScore && f.wire == wireFixed32:
			p.Score = math.Float32frombits(uint32(f.value))
		case f.number == pieceKind && f.wire == wireVarint:
			p.Kind = PieceKind(min(f.value, 255))
		}
		return nil
	})
	return p, err
}

// check returns an error for an ambiguous vocabulary.
func (s *SentencePiece) check() error {
	if len(s.Pieces) == 0 || len(s.Pieces) > MaxPieces {
		return fmt.Errorf("got %d pieces, want 1 to %d", len(s.Pieces), MaxPieces)
	}
	seen := make(map[string]bool, len(s.Pieces))
	unknown, bytes := 0, 0
	for id, p := range s.Pieces {
		switch {
		case p.Text == "" || len(p.Text) > maxPieceLen || !utf8.ValidString(p.Text):
			return fmt.Errorf("piece %d: got %.40q, want text of 1 to %d bytes in UTF-8", id,
				p.Text, maxPieceLen)
		case seen[p.Text]:
			return fmt.Errorf("piece %d: %.40q occurs twice", id, p.Text)
		case p.Score != p.Score:
			return fmt.Errorf("piece %d: %.40q has no number as its score", id, p.Text)
		case p.Kind < NormalPiece || p.Kind > BytePiece:
			return fmt.Errorf("piece %d: %.40q is of the kind %d, want 1 to 6", id, p.Text, p.Kind)
		}
		seen[p.Text] = true
		switch p.Kind {
		case UnknownPiece:
			unknown++
		case BytePiece:
			if _, ok := byteToken(p.Text); !ok {
				return fmt.Errorf("piece %d: got %.40q for a byte, want <0x00> to <0xFF>", id,
					p.Text)
			}
			bytes++
		}
	}
	if unknown != 1 {
		return fmt.Errorf("got %d pieces for the unknown, want one", unknown)
	}
	if s.ByteFallback && bytes != 256 {
		return fmt.Errorf("got %d pieces for bytes, want 256 (byte_fallback is true)", bytes)
	}
	return nil
}

// Marshal returns a tokenizer.model from which ReadSentencePiece reads s.
func (s *SentencePiece) Marshal() []byte {
	key := func(b []byte, number, wire int) []byte {
		return binary.AppendUvarint(b, uint64(number<<3|wire))
	}
	message := func(b []byte, number int, m []byte) []byte {
		return append(binary.AppendUvarint(key(b, number, wireBytes), uint64(len(m))), m...)
	}
	number := func(b []byte, field int, v uint64) []byte {
		return binary.AppendUvarint(key(b, field, wireVarint), v)
	}
	flag := func(b []byte, field int, v bool) []byte {
		if v {
			return number(b, field, 1)
		}
		return number(b, field, 0)
	}
	var out []byte
	for _, p := range s.Pieces {
		m := message(nil, pieceText, []byte(p.Text))
		m = binary.LittleEndian.AppendUint32(key(m, pieceScore, wireFixed32),
			math.Float32bits(p.Score))
		if p.Kind != NormalPiece {
			m = number(m, pieceKind, uint64(p.Kind))
		}
		out = message(out, modelPieces, m)
	}
	trainer := number(nil, trainerType, typeBPE)
	trainer = number(trainer, 4, uint64(len(s.Pieces))) // vocab_size
	out = message(out, modelTrainer, flag(trainer, trainerByteFallback, s.ByteFallback))
	rules := message(nil, 1, []byte("identity")) // name
	rules = flag(flag(rules, normalizerPrefix, s.DummyPrefix), normalizerTrim, s.TrimSpaces)
	return message(out, modelNormalizer, flag(rules, normalizerEscape, true))
}
