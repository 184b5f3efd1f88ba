package api

import (
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore"
)

// TokenLogprob is a token's log probability in a reply.
type TokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// NewTokenLogprob converts a token.
func NewTokenLogprob(t *restore.Token) TokenLogprob {
	out := TokenLogprob{Visible(t.Bytes), t.Logprob, make([]int, len(t.Bytes))}
	for i, b := range t.Bytes {
		out.Bytes[i] = int(b)
	}
	return out
}

// Visible converts bytes to text, with U+FFFD for invalid UTF-8.
func Visible(b []byte) string { return strings.ToValidUTF8(string(b), string(utf8.RuneError)) }
