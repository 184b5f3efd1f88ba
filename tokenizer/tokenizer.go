package tokenizer

import "errors"

// Tokenizer is a parsed tokenizer.json. It is immutable and safe for concurrent use.
type Tokenizer struct{}

// Encoding is the result of Encode.
type Encoding struct {
	IDs []int32
	// Offsets holds, for each id, the half-open range of UTF-8 bytes of the text that it stands for.
	Offsets [][2]int
}

// EncodeOptions are the choices of one call.
type EncodeOptions struct {
	AddSpecial     bool
	SpecialsAsText bool
}

// Segment is a run of a prompt.
type Segment struct {
	Text string
	User bool
}

// Inspection is everything that the tokenizer does with one string.
type Inspection struct {
	IDs            []int32  `json:"ids"`
	IDsWithSpecial []int32  `json:"ids_with_special"`
	Offsets        [][2]int `json:"offsets"`
	Decoded        string   `json:"decoded"`
	DecodedSkip    string   `json:"decoded_skip"`
	Stream         []string `json:"stream"`
	StreamFlush    string   `json:"stream_flush"`
}

// Stream turns ids into text as they arrive.
type Stream struct{}

var errUnbuilt = errors.New("tokenizer: not built yet")

func Parse(tokenizerJSON []byte) (*Tokenizer, error) { return nil, errUnbuilt }
func (t *Tokenizer) Encode(text string, o EncodeOptions) (Encoding, error) {
	return Encoding{}, errUnbuilt
}
func (t *Tokenizer) EncodeSegments(segs []Segment, o EncodeOptions) ([]int32, error) {
	return nil, errUnbuilt
}
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string   { return "" }
func (t *Tokenizer) NewStream() *Stream                            { return &Stream{} }
func (s *Stream) Push(id int32) string                             { return "" }
func (s *Stream) Flush() string                                    { return "" }
func (t *Tokenizer) VocabSize() int                                { return 0 }
func (t *Tokenizer) TokenID(content string) (int32, bool)          { return 0, false }
func (t *Tokenizer) Token(id int32) (string, bool)                 { return "", false }
func (t *Tokenizer) IsSpecial(id int32) bool                       { return false }
func Inspect(t *Tokenizer, strings []string) ([]Inspection, error) { return nil, errUnbuilt }
