package openai

import (
	"math"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/wire"
)

// completionTokens is OpenAI's default of max_tokens.
const completionTokens = 16

// ParseCompletion reads the body of /v1/completions. The error is a *[wire.Error].
func ParseCompletion(body []byte, env *Env) (*Request, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	q := &Request{Ask: &ask.Request{MaxTokens: completionTokens}}
	r := q.Ask
	q.common(o, env)
	limit(o, r, "max_tokens", "max_completion_tokens")
	if n, ok := o.Int("logprobs", 0, 5); ok {
		r.Logprobs, r.Top = true, int(n)
	}
	if raw := o.Raw("suffix"); raw != nil {
		o.Fail("unsupported_parameter", "suffix", "got %s, want nothing: it is not supported",
			wire.Describe(raw))
	}
	if o.Require("prompt", "a string, a list of one string, or a list of token ids") {
		r.Prompt = prompt(o, env)
	}
	Note(r, o)
	return q, o.Err()
}

// prompt reads one prompt: text or tokens, bare or as the only item of a list.
func prompt(o *wire.Object, env *Env) *ask.Prompt {
	const want = "a string, a list of one string, or a list of token ids"
	p := new(ask.Prompt)
	raw := o.Raw("prompt")
	if wire.Kind(raw) == "a string" {
		p.Text = o.String("prompt")
		return p
	}
	if wire.Kind(raw) != "a list" {
		o.Fail("invalid_type", "prompt", "got %s, want %s", wire.Describe(raw), want)
		return p
	}
	l := o.List("prompt")
	if l.Len() == 0 {
		o.Fail("invalid_value", "prompt", "got an empty list, want %s", want)
		return p
	}
	first := l.First()
	kind := wire.Kind(first.Raw())
	if kind != "a number" && l.Len() > 1 {
		o.Fail("unsupported_value", "prompt", "got %d prompts, want one", l.Len())
		return p
	}
	switch kind {
	case "a string":
		p.Text = first.Text()
	case "a list":
		p.Tokens = Tokens(first.List(), env)
	case "a number":
		p.Tokens = Tokens(l, env)
	default:
		first.Fail("invalid_type", "got %s, want %s", wire.Describe(first.Raw()), want)
	}
	return p
}

// Tokens reads token ids of the vocabulary.
func Tokens(l *wire.List, env *Env) []int32 {
	ids := make([]int32, 0, l.Len())
	for item := range l.Items() {
		ids = append(ids, int32(item.Int(0, int64(min(env.Vocab-1, math.MaxInt32)))))
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

// newCompletionLogprobs converts tokens whose text begins at offset, in code points.
func newCompletionLogprobs(tokens []ask.Token, offset int) *completionLogprobs {
	l := &completionLogprobs{
		Tokens:   []string{},
		Logprobs: []float64{},
		Top:      []map[string]float64{},
		Offsets:  []int{},
	}
	for _, t := range tokens {
		text := visible(t.Bytes)
		top := map[string]float64{}
		for _, a := range t.Top {
			if name := visible(a.Bytes); top[name] == 0 || a.Logprob > top[name] {
				top[name] = a.Logprob
			}
		}
		l.Tokens = append(l.Tokens, text)
		l.Logprobs = append(l.Logprobs, t.Logprob)
		l.Top = append(l.Top, top)
		l.Offsets = append(l.Offsets, offset)
		offset += len([]rune(text))
	}
	return l
}

// completionChoice is the choice in a reply of /v1/completions.
type completionChoice struct {
	Index    int                 `json:"index"`
	Text     string              `json:"text"`
	Logprobs *completionLogprobs `json:"logprobs"`
	Finish   *ask.Finish         `json:"finish_reason"`
}

// completion is a whole reply of /v1/completions or one chunk.
type completion = reply[completionChoice]

func (m *Meta) completion(choices ...completionChoice) completion {
	return completion{ID: m.ID, Object: "text_completion", Created: m.Created, Model: m.Model,
		Fingerprint: m.Fingerprint, Choices: choices}
}

// Completion is the whole reply of /v1/completions.
func Completion(m *Meta, r *ask.Request, a *ask.Answer) any {
	choice := completionChoice{Text: a.Text, Finish: &a.Finish}
	if r.Logprobs {
		choice.Logprobs = newCompletionLogprobs(a.Tokens, 0)
	}
	c := m.completion(choice)
	c.Usage = usage(a)
	c.Timings, c.Restore = a.TimingFields(), a.Extension(r)
	return c
}

// completionChunks makes the stream of /v1/completions.
type completionChunks struct {
	chunks
	frame  wire.Frame // of a piece without log probabilities
	offset int
}

// CompletionChunks makes the stream of /v1/completions.
func CompletionChunks(m *Meta, q *Request) Stream {
	c := &completionChunks{chunks: chunks{m: m, q: q}}
	c.frame = wire.NewFrame(c.chunk(completionChoice{Text: wire.Gap}), wire.Gap)
	return c
}

func (c *completionChunks) chunk(choice completionChoice) completion {
	out := c.m.completion(choice)
	out.Usage = c.noUsage()
	return out
}

func (c *completionChunks) Begin() []Message { return nil }

func (c *completionChunks) Piece(e *ask.Event) []Message {
	if !c.q.Ask.Logprobs {
		return []Message{{Text: c.frame.Fill(wire.Text(e.Text))}}
	}
	choice := completionChoice{Text: e.Text, Logprobs: newCompletionLogprobs(e.Tokens, c.offset)}
	c.offset += len([]rune(e.Text))
	return []Message{{Data: c.chunk(choice)}}
}

func (c *completionChunks) End(a *ask.Answer) []Message {
	finish := c.chunk(completionChoice{Finish: &a.Finish})
	if !c.q.IncludeUsage {
		finish.Timings, finish.Restore = a.TimingFields(), a.Extension(c.q.Ask)
		return []Message{{Data: finish}, Done}
	}
	last := c.m.completion()
	last.Choices = []completionChoice{}
	last.Usage, last.Timings, last.Restore = usage(a), a.TimingFields(), a.Extension(c.q.Ask)
	return []Message{{Data: finish}, {Data: last}, Done}
}
