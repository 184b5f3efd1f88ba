package tokenizer

import "fmt"

// Inspection is all results of a tokenizer for one string. Lists are never nil.
type Inspection struct {
	// IDs and Offsets are the encoding without the post-processor's special tokens; special tokens
	// in the text are recognised. Offsets are UTF-8 bytes of the string.
	IDs     []int32  `json:"ids"`
	Offsets [][2]int `json:"offsets"`
	// IDsWithSpecial is the encoding with the post-processor's special tokens.
	IDsWithSpecial []int32 `json:"ids_with_special"`
	// Decoded and DecodedSkip are IDs as text, with and without special tokens.
	Decoded     string `json:"decoded"`
	DecodedSkip string `json:"decoded_skip"`
	// Stream is the final text after each of IDs; StreamFlush is the text added at the end.
	Stream      []string `json:"stream"`
	StreamFlush string   `json:"stream_flush"`
}

// Inspect runs t over strings. An error names the string by its index.
func Inspect(t *Tokenizer, strings []string) ([]Inspection, error) {
	out := make([]Inspection, len(strings))
	for i, text := range strings {
		plain, err := t.Encode(text, EncodeOptions{})
		if err != nil {
			return nil, fmt.Errorf("string %d: %w", i, err)
		}
		special, err := t.Encode(text, EncodeOptions{AddSpecial: true})
		if err != nil {
			return nil, fmt.Errorf("string %d: %w", i, err)
		}
		stream := t.NewStream()
		texts := make([]string, 0, len(plain.IDs))
		for _, id := range plain.IDs {
			texts = append(texts, stream.Push(id))
		}
		out[i] = Inspection{
			IDs: plain.IDs, Offsets: plain.Offsets, IDsWithSpecial: special.IDs,
			Decoded: t.Decode(plain.IDs, false), DecodedSkip: t.Decode(plain.IDs, true),
			Stream: texts, StreamFlush: stream.Flush(),
		}
	}
	return out, nil
}
