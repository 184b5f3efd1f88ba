package openai

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// meta has the fields that all chunks of a reply share.
type meta struct {
	ID          string
	Created     int64 // Unix seconds
	Model       string
	Fingerprint string
}

func newMeta(f *api.Front, prefix string) *meta {
	return &meta{ID: api.NewID(prefix), Created: api.Now(), Model: f.About.ID,
		Fingerprint: f.About.Fingerprint}
}

// done ends a complete stream.
var done = api.Message{Text: "[DONE]"}

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

func usage(a *restore.Answer) json.RawMessage {
	n := &a.Usage
	u := usageFields{Prompt: n.Prompt, Completion: n.Generated, Total: n.Prompt + n.Generated}
	u.Details.Cached, u.Details.Image, u.Details.Text = n.Cached, n.Image, n.Prompt-n.Image
	return json.RawMessage(wire.String(u))
}

// contentLogprob is a token's log probability, and what other tokens have in its place.
type contentLogprob struct {
	api.TokenLogprob
	Top []api.TokenLogprob `json:"top_logprobs"`
}

type logprobs struct {
	Content []contentLogprob `json:"content"`
	Refusal *string          `json:"refusal"`
}

func contentLogprobs(tokens []restore.Token) []contentLogprob {
	out := make([]contentLogprob, len(tokens))
	for i := range tokens {
		out[i] = contentLogprob{api.NewTokenLogprob(&tokens[i]), []api.TokenLogprob{}}
		for j := range tokens[i].Top {
			out[i].Top = append(out[i].Top, api.NewTokenLogprob(&tokens[i].Top[j]))
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
	Index    int            `json:"index"`
	Message  chatMessage    `json:"message"`
	Logprobs *logprobs      `json:"logprobs"`
	Finish   restore.Finish `json:"finish_reason"`
}

// chatReply is the whole reply of /v1/chat/completions.
func chatReply(m *meta, r *api.Call, a *restore.Answer) any {
	var list []chatChoice
	for i, a := range r.EachAnswer(a) {
		choice := chatChoice{
			Index: i, Message: chatMessage{Role: "assistant", Content: a.Text}, Finish: a.Finish,
		}
		if r.Logprobs {
			choice.Logprobs = &logprobs{Content: contentLogprobs(a.Logprobs)}
		}
		list = append(list, choice)
	}
	return wholeReply(m, "chat.completion", list, r, a)
}

// delta is the part of a message in one chunk.
type delta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chunkChoice struct {
	Index    int             `json:"index"`
	Delta    delta           `json:"delta"`
	Logprobs *logprobs       `json:"logprobs"`
	Finish   *restore.Finish `json:"finish_reason"`
}

// reply is a whole reply, or a chunk of a stream.
type reply[Choice any] struct {
	ID          string          `json:"id"`
	Object      string          `json:"object"`
	Created     int64           `json:"created"`
	Model       string          `json:"model"`
	Fingerprint string          `json:"system_fingerprint"`
	Choices     []Choice        `json:"choices"`
	Usage       json.RawMessage `json:"usage,omitempty"`
	Timings     *api.Timings    `json:"timings,omitempty"`
	Restore     *api.Extension  `json:"restore,omitempty"`
}

func newReply[Choice any](m *meta, object string, choices []Choice) *reply[Choice] {
	return &reply[Choice]{ID: m.ID, Object: object, Created: m.Created, Model: m.Model,
		Fingerprint: m.Fingerprint, Choices: choices}
}

func wholeReply[Choice any](
	m *meta, object string, list []Choice, r *api.Call, a *restore.Answer,
) any {
	out := newReply(m, object, list)
	out.Usage, out.Timings, out.Restore = usage(a), api.NewTimings(a), r.Extend(a)
	return out
}

// chunks makes the chunks of a stream of chats or completions.
type chunks[Choice any] struct {
	m      *meta
	q      *api.Call
	object string
	frame  wire.Frame // of a piece without log probabilities
}

// chunk has no usage, or null if the last chunk has one.
func (c *chunks[Choice]) chunk(choices ...Choice) *reply[Choice] {
	out := newReply(c.m, c.object, choices)
	if c.q.IncludeUsage {
		out.Usage = json.RawMessage("null")
	}
	return out
}

// end returns the last messages: each choice with the reason, and the usage.
func (c *chunks[Choice]) end(
	a *restore.Answer, finish func(choice int, reason *restore.Finish) Choice,
) []api.Message {
	var last *reply[Choice]
	var messages []api.Message
	for i, one := range c.q.EachAnswer(a) {
		last = c.chunk(finish(i, &one.Finish))
		messages = append(messages, api.Message{Data: last})
	}
	if c.q.IncludeUsage {
		last = c.chunk()
		last.Choices, last.Usage = []Choice{}, usage(a)
		messages = append(messages, api.Message{Data: last})
	}
	last.Timings, last.Restore = api.NewTimings(a), c.q.Extend(a)
	return append(messages, done)
}

// Fail reports a failure without [DONE], so that the answer does not look complete.
func (c *chunks[Choice]) Fail(e *wire.Error) []api.Message {
	return []api.Message{{Data: e.JSON()}}
}

// chatChunks makes the stream of /v1/chat/completions.
type chatChunks struct{ chunks[chunkChoice] }

// newChatChunks makes the stream of /v1/chat/completions.
func newChatChunks(m *meta, q *api.Call) api.Stream {
	c := &chatChunks{chunks[chunkChoice]{m: m, q: q, object: "chat.completion.chunk"}}
	c.frame = wire.NewFrame(c.chunk(chunkChoice{
		Index: math.MinInt, Delta: delta{Content: new(wire.Gap)},
	}), math.MinInt, wire.Gap)
	return c
}

func (c *chatChunks) Begin() []api.Message {
	first := delta{Role: "assistant", Content: new("")}
	var messages []api.Message
	for i := range max(1, c.q.N) {
		messages = append(messages, api.Message{Data: c.chunk(chunkChoice{Index: i, Delta: first})})
	}
	return messages
}

func (c *chatChunks) Piece(e *restore.Piece) []api.Message {
	if !c.q.Logprobs {
		return []api.Message{{Text: c.frame.Fill(strconv.Itoa(c.q.Choice), wire.Text(e.Text))}}
	}
	return []api.Message{{Data: c.chunk(chunkChoice{
		Index: c.q.Choice, Delta: delta{Content: &e.Text},
		Logprobs: &logprobs{Content: contentLogprobs(e.Tokens)},
	})}}
}

func (c *chatChunks) End(a *restore.Answer) []api.Message {
	return c.end(a, func(choice int, reason *restore.Finish) chunkChoice {
		return chunkChoice{Index: choice, Finish: reason}
	})
}
