package openai

import (
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/wire"
)

// completionTokens is OpenAI's default of max_tokens.
const completionTokens = 16

// ParseCompletion reads the body of /v1/completions. The error is a *[wire.Error].
func ParseCompletion(body []byte, f *api.Front) (*api.Call, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	f = f.Named(o.String("model"))
	r := api.NewCall(f, "prompt")
	r.MaxTokens = completionTokens
	common(o, r, f)
	api.Choices(o, r)
	api.Limit(o, r, "max_tokens", "max_completion_tokens")
	if n, ok := o.Int("logprobs", 0, 5); ok {
		r.Logprobs, r.Top = true, int(n)
	}
	o.Refuse("", "suffix")
	if o.Require("prompt", "a string, a list of one string, or a list of token ids") {
		prompt(o, r, f)
	}
	m := newMeta(f, "cmpl-")
	r.Whole = func(a *restore.Answer) any { return completionReply(m, r, a) }
	r.Events = newCompletionChunks(m, r)
	return r, r.End(o, f)
}

// prompt reads one prompt: text or tokens, bare or as the only item of a list.
func prompt(o *wire.Object, r *api.Call, f *api.Front) {
	const want = "a string, a list of one string, or a list of token ids"
	raw := o.Raw("prompt")
	if wire.Kind(raw) == "a string" {
		r.Prompt, r.Raw = o.String("prompt"), true
		return
	}
	if wire.Kind(raw) != "a list" {
		o.Fail("invalid_type", "prompt", "got %s, want %s", wire.Describe(raw), want)
		return
	}
	l := o.List("prompt")
	if l.Len() == 0 {
		o.Fail("invalid_value", "prompt", "got an empty list, want %s", want)
		return
	}
	first := l.First()
	kind := wire.Kind(first.Raw())
	if kind != "a number" && l.Len() > 1 {
		o.Fail("unsupported_value", "prompt", "got %d prompts, want one", l.Len())
		return
	}
	switch kind {
	case "a string":
		r.Prompt, r.Raw = first.Text(), true
	case "a list":
		r.Tokens = Tokens(first.List(), f)
	case "a number":
		r.Tokens = Tokens(l, f)
	default:
		first.Fail("invalid_type", "got %s, want %s", wire.Describe(first.Raw()), want)
	}
}

// Tokens reads token ids of the vocabulary.
func Tokens(l *wire.List, f *api.Front) []int32 {
	ids := make([]int32, 0, l.Len())
	for item := range l.Items() {
		ids = append(ids, int32(item.Int(0, int64(min(f.About.Vocab-1, math.MaxInt32)))))
	}
	return ids
}

// completionLogprobs are the log probabilities of /v1/completions.
type completionLogprobs struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []float64            `json:"token_logprobs"`
	Top      []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"`
}

// newCompletionLogprobs converts tokens. characters is the number of characters before them, of
// which they may complete the last; theirs are added to it. A token has the offset of the character
// in which it begins.
func newCompletionLogprobs(tokens []restore.Token, characters *int) *completionLogprobs {
	l := &completionLogprobs{
		Tokens:   []string{},
		Logprobs: []float64{},
		Top:      []map[string]float64{},
		Offsets:  []int{},
	}
	for _, t := range tokens {
		top := map[string]float64{}
		for _, a := range t.Top {
			name := api.Visible(a.Bytes)
			if _, likelier := top[name]; !likelier {
				top[name] = a.Logprob
			}
		}
		l.Tokens = append(l.Tokens, api.Visible(t.Bytes))
		l.Logprobs = append(l.Logprobs, t.Logprob)
		l.Top = append(l.Top, top)
		offset := *characters
		if len(t.Bytes) > 0 && !utf8.RuneStart(t.Bytes[0]) {
			offset--
		}
		l.Offsets = append(l.Offsets, offset)
		for _, b := range t.Bytes {
			if utf8.RuneStart(b) {
				*characters++
			}
		}
	}
	return l
}

// completionChoice is the choice in a reply of /v1/completions.
type completionChoice struct {
	Index    int                 `json:"index"`
	Text     string              `json:"text"`
	Logprobs *completionLogprobs `json:"logprobs"`
	Finish   *restore.Finish     `json:"finish_reason"`
}

const completionObject = "text_completion"

// completionReply is the whole reply of /v1/completions.
func completionReply(m *meta, r *api.Call, a *restore.Answer) any {
	var list []completionChoice
	for i, a := range r.EachAnswer(a) {
		choice := completionChoice{Index: i, Text: a.Text, Finish: &a.Finish}
		if r.Logprobs {
			choice.Logprobs = newCompletionLogprobs(a.Logprobs, new(int))
		}
		list = append(list, choice)
	}
	return wholeReply(m, completionObject, list, r, a)
}

// completionChunks makes the stream of /v1/completions.
type completionChunks struct {
	chunks[completionChoice]
	characters []int // of the tokens so far, by choice
}

// newCompletionChunks makes the stream of /v1/completions.
func newCompletionChunks(m *meta, q *api.Call) api.Stream {
	c := &completionChunks{
		chunks[completionChoice]{m: m, q: q, object: completionObject}, make([]int, max(1, q.N)),
	}
	c.frame = wire.NewFrame(
		c.chunk(completionChoice{Index: math.MinInt, Text: wire.Gap}), math.MinInt, wire.Gap)
	return c
}

func (c *completionChunks) Begin() []api.Message { return nil }

func (c *completionChunks) Piece(e *restore.Piece) []api.Message {
	if !c.q.Logprobs {
		return []api.Message{{Text: c.frame.Fill(strconv.Itoa(c.q.Choice), wire.Text(e.Text))}}
	}
	choice := completionChoice{Index: c.q.Choice, Text: e.Text,
		Logprobs: newCompletionLogprobs(e.Tokens, &c.characters[c.q.Choice])}
	return []api.Message{{Data: c.chunk(choice)}}
}

func (c *completionChunks) End(a *restore.Answer) []api.Message {
	return c.end(a, func(choice int, reason *restore.Finish) completionChoice {
		return completionChoice{Index: choice, Finish: reason}
	})
}
