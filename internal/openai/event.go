package openai

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// responseMeta is a reply of /v1/responses except for its answer.
type responseMeta struct {
	ID, MessageID string
	Created       int64 // Unix seconds
	Model         string
}

type outputText struct {
	Type        string           `json:"type"`
	Text        string           `json:"text"`
	Annotations []any            `json:"annotations"`
	Logprobs    []contentLogprob `json:"logprobs"`
}

func newOutputText(text string, tokens []restore.Token) outputText {
	return outputText{"output_text", text, []any{}, contentLogprobs(tokens)}
}

type outputItem struct {
	Type    string       `json:"type"`
	ID      string       `json:"id"`
	Status  string       `json:"status"`
	Role    string       `json:"role"`
	Content []outputText `json:"content"`
}

type responseUsage struct {
	Input        int `json:"input_tokens"`
	InputDetails struct {
		Cached int `json:"cached_tokens"`
		Write  int `json:"cache_write_tokens"`
		Image  int `json:"image_tokens"`
		Text   int `json:"text_tokens"`
	} `json:"input_tokens_details"`
	Output        int `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

type responseError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incompleteDetails struct {
	Reason string `json:"reason"`
}

type responseText struct {
	Format json.RawMessage `json:"format"`
}

// response has every field that Open Responses requires.
type response struct {
	ID                 string             `json:"id"`
	Object             string             `json:"object"`
	CreatedAt          int64              `json:"created_at"`
	CompletedAt        *int64             `json:"completed_at"`
	Status             string             `json:"status"`
	Incomplete         *incompleteDetails `json:"incomplete_details"`
	Model              string             `json:"model"`
	PreviousResponseID *string            `json:"previous_response_id"`
	Instructions       json.RawMessage    `json:"instructions"`
	Output             []outputItem       `json:"output"`
	Error              *responseError     `json:"error"`
	Tools              []any              `json:"tools"`
	ToolChoice         string             `json:"tool_choice"`
	Truncation         string             `json:"truncation"`
	ParallelToolCalls  bool               `json:"parallel_tool_calls"`
	Text               responseText       `json:"text"`
	TopP               float64            `json:"top_p"`
	PresencePenalty    float64            `json:"presence_penalty"`
	FrequencyPenalty   float64            `json:"frequency_penalty"`
	TopLogprobs        int                `json:"top_logprobs"`
	Temperature        float64            `json:"temperature"`
	Reasoning          *string            `json:"reasoning"`
	User               json.RawMessage    `json:"user"`
	Usage              *responseUsage     `json:"usage"`
	MaxOutputTokens    *int               `json:"max_output_tokens"`
	MaxToolCalls       *int               `json:"max_tool_calls"`
	Store              bool               `json:"store"`
	Background         bool               `json:"background"`
	ServiceTier        string             `json:"service_tier"`
	Metadata           json.RawMessage    `json:"metadata"`
	SafetyIdentifier   json.RawMessage    `json:"safety_identifier"`
	PromptCacheKey     json.RawMessage    `json:"prompt_cache_key"`
	Timings            *api.Timings       `json:"timings,omitempty"`
	Restore            *api.Extension     `json:"restore,omitempty"`
}

// response returns the reply before any output.
func (q *responseCall) response(m *responseMeta) response {
	return response{
		ID: m.ID, Object: "response", CreatedAt: m.Created, Status: "in_progress", Model: m.Model,
		Output: []outputItem{},
		Instructions: rawOr(q.instructions,
			"null"), Tools: []any{}, ToolChoice: q.toolChoice, Truncation: "disabled",
		ParallelToolCalls: q.parallelTools, Text: responseText{rawOr(q.format, `{"type":"text"}`)},
		PresencePenalty: q.Sampling.Presence, FrequencyPenalty: q.Sampling.Frequency,
		TopP: q.TopP, Temperature: q.Temperature, TopLogprobs: q.Top, MaxOutputTokens: q.limit,
		User: rawOr(q.user, "null"), ServiceTier: "default", Metadata: rawOr(q.metadata, "{}"),
		SafetyIdentifier: rawOr(q.safety, "null"), PromptCacheKey: rawOr(q.cacheKey, "null"),
	}
}

// item returns the message in a reply.
func (m *responseMeta) item(status string, content ...outputText) outputItem {
	if content == nil {
		content = []outputText{}
	}
	return outputItem{"message", m.MessageID, status, "assistant", content}
}

// responseReply is the whole reply of /v1/responses.
func responseReply(m *responseMeta, q *responseCall, a *restore.Answer) any {
	r := q.response(m)
	if a.Finish == restore.FinishLength {
		r.Status, r.Incomplete = "incomplete", &incompleteDetails{"max_output_tokens"}
	} else {
		r.Status, r.CompletedAt = "completed", new(api.Now())
	}
	r.Output = []outputItem{m.item(r.Status, newOutputText(a.Text, a.Logprobs))}
	n := &a.Usage
	u := &responseUsage{Input: n.Prompt, Output: n.Generated, Total: n.Prompt + n.Generated}
	d := &u.InputDetails
	if d.Cached, d.Image, d.Text = n.Cached, n.Image, n.Prompt-n.Image; !q.NoCache {
		d.Write = n.Prompt - n.Cached
	}
	r.Usage, r.Timings, r.Restore = u, api.NewTimings(a), q.Extend(a)
	return r
}

// responseEvents makes the stream of /v1/responses.
type responseEvents struct {
	m      *responseMeta
	q      *responseCall
	number int
	frame  wire.Frame // of a piece without log probabilities
	text   strings.Builder
	tokens []restore.Token
}

// newResponseEvents makes the stream of /v1/responses.
func newResponseEvents(m *responseMeta, q *responseCall) api.Stream {
	s := &responseEvents{m: m, q: q}
	gap := s.delta(math.MinInt, &restore.Piece{Text: wire.Gap})
	s.frame = wire.NewFrame(gap, math.MinInt, wire.Gap)
	return s
}

// head has the first fields of every event.
type head struct {
	Type     string `json:"type"`
	Sequence int    `json:"sequence_number"`
}

func (s *responseEvents) head(kind string) head {
	h := head{kind, s.number}
	s.number++
	return h
}

// whole is an event with the response.
func (s *responseEvents) whole(kind string, r any) api.Message {
	return api.Message{Event: kind, Data: struct {
		head
		Response any `json:"response"`
	}{s.head(kind), r}}
}

// ofItem is an event with the item.
func (s *responseEvents) ofItem(kind string, item outputItem) api.Message {
	return api.Message{Event: kind, Data: struct {
		head
		Output int        `json:"output_index"`
		Item   outputItem `json:"item"`
	}{s.head(kind), 0, item}}
}

// ofPart is an event with the part.
func (s *responseEvents) ofPart(kind string, part outputText) api.Message {
	return api.Message{Event: kind, Data: struct {
		head
		ItemID  string     `json:"item_id"`
		Output  int        `json:"output_index"`
		Content int        `json:"content_index"`
		Part    outputText `json:"part"`
	}{s.head(kind), s.m.MessageID, 0, 0, part}}
}

func (s *responseEvents) Begin() []api.Message {
	return []api.Message{
		s.whole("response.created", s.q.response(s.m)),
		s.whole("response.in_progress", s.q.response(s.m)),
		s.ofItem("response.output_item.added", s.m.item("in_progress")),
		s.ofPart("response.content_part.added", newOutputText("", nil)),
	}
}

// textDelta is the type of the event of a piece.
const textDelta = "response.output_text.delta"

func (s *responseEvents) delta(number int, e *restore.Piece) any {
	return struct {
		head
		ItemID   string           `json:"item_id"`
		Output   int              `json:"output_index"`
		Content  int              `json:"content_index"`
		Delta    string           `json:"delta"`
		Logprobs []contentLogprob `json:"logprobs"`
	}{head{textDelta, number}, s.m.MessageID, 0, 0, e.Text, contentLogprobs(e.Tokens)}
}

func (s *responseEvents) Piece(e *restore.Piece) []api.Message {
	s.text.WriteString(e.Text)
	s.tokens = append(s.tokens, e.Tokens...)
	number := s.head(textDelta).Sequence
	if len(e.Tokens) > 0 {
		return []api.Message{{Event: textDelta, Data: s.delta(number, e)}}
	}
	return []api.Message{{
		Event: textDelta, Text: s.frame.Fill(strconv.Itoa(number), wire.Text(e.Text)),
	}}
}

func (s *responseEvents) End(a *restore.Answer) []api.Message {
	const textDone = "response.output_text.done"
	status := "completed"
	if a.Finish == restore.FinishLength {
		status = "incomplete"
	}
	part := newOutputText(s.text.String(), s.tokens)
	return []api.Message{
		{Event: textDone, Data: struct {
			head
			ItemID   string           `json:"item_id"`
			Output   int              `json:"output_index"`
			Content  int              `json:"content_index"`
			Text     string           `json:"text"`
			Logprobs []contentLogprob `json:"logprobs"`
		}{s.head(textDone), s.m.MessageID, 0, 0, part.Text, part.Logprobs}},
		s.ofPart("response.content_part.done", part),
		s.ofItem("response.output_item.done", s.m.item(status, part)),
		s.whole("response."+status, responseReply(s.m, s.q, a)),
		done,
	}
}

func (s *responseEvents) Fail(e *wire.Error) []api.Message {
	r := s.q.response(s.m)
	r.Status, r.Error = "failed", &responseError{e.Code, e.Message}
	return []api.Message{s.whole("response.failed", r), done}
}
