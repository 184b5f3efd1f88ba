package openai

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/wire"
)

// Meta has the fields that all chunks of a reply share.
type Meta struct {
	ID          string
	Created     int64 // Unix seconds
	Model       string
	Fingerprint string
}

// Message is one event of a stream.
type Message struct {
	Event string // type of the event; "" for none
	Data  any    // as JSON; nil with Text
	Text  string // instead of Data
}

// Done ends a complete stream.
var Done = Message{Text: "[DONE]"}

// Stream converts an answer to messages, piece by piece.
type Stream interface {
	Begin() []Message
	Piece(e *ask.Event) []Message
	End(a *ask.Answer) []Message
	Fail(e *wire.Error) []Message
}

// usageFields counts the tokens of a reply.
type usageFields struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
		Image  int `json:"image_tokens"`
		Text   int `json:"text_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

func usage(a *ask.Answer) json.RawMessage {
	u := usageFields{Prompt: a.Prompt, Completion: a.Completion, Total: a.Prompt + a.Completion}
	u.Details.Cached, u.Details.Image, u.Details.Text = a.Cached, a.Image, a.Prompt-a.Image
	return json.RawMessage(wire.String(u))
}

// visible converts bytes to text, with U+FFFD for invalid UTF-8.
func visible(b []byte) string { return strings.ToValidUTF8(string(b), string(utf8.RuneError)) }

// tokenLogprob is a token's log probability in a chat reply.
type tokenLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

type contentLogprob struct {
	tokenLogprob
	Top []tokenLogprob `json:"top_logprobs"`
}

type logprobs struct {
	Content []contentLogprob `json:"content"`
	Refusal *string          `json:"refusal"`
}

func newTokenLogprob(t *ask.Token) tokenLogprob {
	out := tokenLogprob{
		Token:   visible(t.Bytes),
		Logprob: t.Logprob,
		Bytes:   make([]int, len(t.Bytes)),
	}
	for i, b := range t.Bytes {
		out.Bytes[i] = int(b)
	}
	return out
}

func contentLogprobs(tokens []ask.Token) []contentLogprob {
	out := make([]contentLogprob, len(tokens))
	for i := range tokens {
		out[i] = contentLogprob{newTokenLogprob(&tokens[i]), []tokenLogprob{}}
		for j := range tokens[i].Top {
			out[i].Top = append(out[i].Top, newTokenLogprob(&tokens[i].Top[j]))
		}
	}
	return out
}

type chatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

type chatChoice struct {
	Index    int         `json:"index"`
	Message  chatMessage `json:"message"`
	Logprobs *logprobs   `json:"logprobs"`
	Finish   ask.Finish  `json:"finish_reason"`
}

// Chat is the whole reply of /v1/chat/completions.
func Chat(m *Meta, r *ask.Request, a *ask.Answer) any {
	choice := chatChoice{Message: chatMessage{Role: "assistant", Content: a.Text}, Finish: a.Finish}
	if r.Logprobs {
		choice.Logprobs = &logprobs{Content: contentLogprobs(a.Tokens)}
	}
	return struct {
		ID          string            `json:"id"`
		Object      string            `json:"object"`
		Created     int64             `json:"created"`
		Model       string            `json:"model"`
		Fingerprint string            `json:"system_fingerprint"`
		Choices     []chatChoice      `json:"choices"`
		Usage       json.RawMessage   `json:"usage"`
		Timings     *ask.TimingFields `json:"timings"`
		Restore     *ask.Extension    `json:"restore"`
	}{
		m.ID, "chat.completion", m.Created, m.Model, m.Fingerprint, []chatChoice{choice}, usage(a),
		a.TimingFields(), a.Extension(r),
	}
}

// delta is the part of a message in one chunk.
type delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chunkChoice struct {
	Index    int         `json:"index"`
	Delta    delta       `json:"delta"`
	Logprobs *logprobs   `json:"logprobs"`
	Finish   *ask.Finish `json:"finish_reason"`
}

// reply is a chunk, or a whole reply of /v1/completions.
type reply[Choice any] struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"`
	Model       string            `json:"model"`
	Fingerprint string            `json:"system_fingerprint"`
	Choices     []Choice          `json:"choices"`
	Usage       json.RawMessage   `json:"usage,omitempty"`
	Timings     *ask.TimingFields `json:"timings,omitempty"`
	Restore     *ask.Extension    `json:"restore,omitempty"`
}

type chunk = reply[chunkChoice]

// chunks is the shared state of the streams of chats and completions.
type chunks struct {
	m *Meta
	q *Request
}

// noUsage is the usage in every chunk before the last: null if the last one has a usage.
func (c *chunks) noUsage() json.RawMessage {
	if c.q.IncludeUsage {
		return json.RawMessage("null")
	}
	return nil
}

// Fail reports a failure without [DONE], so that the answer does not look complete.
func (c *chunks) Fail(e *wire.Error) []Message { return []Message{{Data: e.JSON()}} }

// chatChunks makes the stream of /v1/chat/completions.
type chatChunks struct {
	chunks
	frame wire.Frame // of a piece without log probabilities
}

// ChatChunks makes the stream of /v1/chat/completions.
func ChatChunks(m *Meta, q *Request) Stream {
	c := &chatChunks{chunks: chunks{m: m, q: q}}
	c.frame = wire.NewFrame(c.chunk(chunkChoice{Delta: delta{Content: new(wire.Gap)}}), wire.Gap)
	return c
}

func (c *chatChunks) chunk(choices ...chunkChoice) chunk {
	return chunk{
		ID:          c.m.ID,
		Object:      "chat.completion.chunk",
		Created:     c.m.Created,
		Model:       c.m.Model,
		Fingerprint: c.m.Fingerprint,
		Choices:     choices,
		Usage:       c.noUsage(),
	}
}

func (c *chatChunks) Begin() []Message {
	return []Message{
		{Data: c.chunk(chunkChoice{Delta: delta{Role: "assistant", Content: new("")}})},
	}
}

func (c *chatChunks) Piece(e *ask.Event) []Message {
	if !c.q.Ask.Logprobs {
		return []Message{{Text: c.frame.Fill(wire.Text(e.Text))}}
	}
	return []Message{{Data: c.chunk(chunkChoice{
		Delta: delta{Content: &e.Text}, Logprobs: &logprobs{Content: contentLogprobs(e.Tokens)},
	})}}
}

func (c *chatChunks) End(a *ask.Answer) []Message {
	finish := c.chunk(chunkChoice{Finish: &a.Finish})
	if !c.q.IncludeUsage {
		finish.Timings, finish.Restore = a.TimingFields(), a.Extension(c.q.Ask)
		return []Message{{Data: finish}, Done}
	}
	last := c.chunk()
	last.Choices = []chunkChoice{}
	last.Usage, last.Timings, last.Restore = usage(a), a.TimingFields(), a.Extension(c.q.Ask)
	return []Message{{Data: finish}, {Data: last}, Done}
}
