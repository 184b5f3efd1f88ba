package restore

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
)

// Ask answers one question, without a conversation. When ctx ends it returns the answer so far and
// the cause of ctx.
//
// The error is an [errs.OptionError] when a field of r is refused, an [errs.ContextError] when the
// prompt is longer than the model's context, an [errs.MemoryError] when its keys and values do not
// fit into memory, an [errs.PictureError] when the model cannot take a picture, an [errs.FullError]
// when the queue is full, [errs.ErrClosed] after Close, [errs.ErrNotFinite] when the model computes
// NaN, [errs.ErrDamaged] when a file of the model was cut short or a packed file is damaged, and
// [errs.ErrInternal] after a bug in this program. No error affects another request.
func (m *Model) Ask(ctx context.Context, r Request) (*Answer, error) {
	return m.ask(ctx, &r, m.e.Ask, nil)
}

// Stream is Ask in pieces. The concatenated texts of all pieces are the answer's text, and their
// tokens its Logprobs. An error comes with the last piece; if the context ended, that piece has the
// answer so far. Leaving the loop cancels the request.
func (m *Model) Stream(ctx context.Context, r Request) iter.Seq2[Piece, error] {
	return stream(ctx, func(ctx context.Context, on func(Piece)) (*Answer, error) {
		return m.ask(ctx, &r, m.e.Ask, on)
	})
}

// Conversation is a dialogue that keeps the reduced tokens, keys and values of what it has read. A
// question reads only the new part of the dialogue, and its answer is the same as if the whole
// dialogue were read again, but for last bits: keys of earlier answers were computed in decoding
// steps, which do not round as prompts do. A Conversation is not safe for concurrent use.
type Conversation struct {
	s Service
	r *Reduction

	c     *engine.Conversation // of a Model; otherwise
	turns [][]Message          // questions with their answers
}

// NewConversation starts a dialogue that reduces its pictures by r; nil reads every token. With a
// service that is no [Model], each question sends the whole dialogue, of which the service's caches
// keep what they can; methods inside the decoder then choose tokens for each question again, and
// the model's chat template places the pictures, perhaps not at a request's Places. The error is an
// [errs.OptionError] when r is refused, and [errs.ErrClosed] after Close. A service may add
// defaults to r: then only values out of range are refused here.
func NewConversation(s Service, r *Reduction) (*Conversation, error) {
	if s == nil {
		return nil, &errs.OptionError{Name: "service", Want: "one", Fault: errs.Missing}
	}
	c := &Conversation{s: s, r: r}
	m, ok := s.(*Model)
	if !ok {
		if _, err := r.options(); err != nil {
			return nil, err
		}
		return c, nil
	}
	how, err := r.checked()
	if err == nil {
		err = m.e.Closed()
	}
	if err != nil {
		return nil, err
	}
	c.c = m.e.NewConversation(how)
	return c, nil
}

// Ask answers the next question, with the errors of [Model.Ask]. An error leaves the dialogue as it
// was before the call, except that an answer that the end of ctx cut short stays, unless it is
// empty. If the request has a Reduction, it must equal the conversation's.
func (c *Conversation) Ask(ctx context.Context, r Request) (*Answer, error) {
	return c.ask(ctx, r, nil)
}

// ReadAhead reads the system prompt and the pictures of the next question before it is asked, for
// example while somebody types it. The answer is the same, and begins as soon as the text is read.
// Of r it uses what it shares with that question: System, Pictures, Video, Context, NoCache and
// Salt. It reads nothing if the question decides which visual tokens stay, if r has no pictures or
// NoCache, and with a service that is no [Model]. The errors are those of [Model.Ask].
func (c *Conversation) ReadAhead(ctx context.Context, r Request) error {
	if c.c == nil {
		return nil
	}
	m := c.s.(*Model)
	q, err := m.request(&Request{System: r.System, Pictures: r.Pictures, Video: r.Video,
		VideoAfter: r.VideoAfter, Context: r.Context, NoCache: r.NoCache, Salt: r.Salt})
	if err != nil {
		return err
	}
	return m.refused(c.c.ReadAhead(ctx, *q))
}

// Stream is Ask in pieces, like [Model.Stream].
func (c *Conversation) Stream(ctx context.Context, r Request) iter.Seq2[Piece, error] {
	return stream(ctx, func(ctx context.Context, on func(Piece)) (*Answer, error) {
		return c.ask(ctx, r, on)
	})
}

func (c *Conversation) ask(ctx context.Context, r Request, on func(Piece)) (*Answer, error) {
	if r.Reduction != nil && !r.Reduction.equal(c.r) {
		return nil, &errs.OptionError{Name: "reduction", Want: "none", Fault: errs.Conflict,
			Got: "a reduction other than the conversation's",
			Why: "a conversation reduces all its pictures in one way"}
	}
	r.Reduction = c.r
	if c.c != nil {
		return c.s.(*Model).ask(ctx, &r, c.c.Ask, on)
	}
	shown := len(r.Pictures)
	said, err := c.say(&r)
	if err != nil {
		return nil, err
	}
	r.Messages = append(slices.Concat(c.turns...), said...)
	r.Prompt, r.System, r.Pictures, r.Places = "", "", nil, nil
	a, err := submitted(ctx, c.s, &r, on)
	if a == nil || err != nil && a.Text == "" {
		return a, err
	}
	a.Pictures = a.Pictures[max(0, len(a.Pictures)-shown):]
	c.turns = append(c.turns, append(said,
		Message{Assistant, []Part{{Text: strings.TrimPrefix(a.Text, " ")}}}))
	return a, err
}

// say returns the messages of the next question to a service that is no [Model]. Later questions
// may repeat the system prompt of the first.
func (c *Conversation) say(r *Request) ([]Message, error) {
	refuse := func(name, got, why string) ([]Message, error) {
		return nil, &errs.OptionError{Name: name, Got: got, Want: "none", Why: why,
			Fault: errs.Conflict}
	}
	if r.Messages != nil || r.Tokens != nil || r.Raw {
		return refuse("messages", "a dialogue of its own", "a conversation asks questions")
	}
	said, err := r.Dialogue()
	if err != nil || r.System == "" || len(c.turns) == 0 {
		return said, err
	}
	if first := c.turns[0][0]; first.Role != System || first.Parts[0].Text != r.System {
		return refuse("system-prompt", "another one", "the first question has it")
	}
	return said[1:], nil
}

// Undo removes the last question with its answer and its pictures. It returns false if there is
// none.
func (c *Conversation) Undo() bool {
	if c.c != nil {
		return c.c.Undo()
	}
	if len(c.turns) == 0 {
		return false
	}
	c.turns = c.turns[:len(c.turns)-1]
	return true
}

// submitted asks a service that is no Model, and passes the pieces of the answer to on, which may
// be nil. If the context ends, the answer is the text so far.
func submitted(ctx context.Context, s Service, r *Request, on func(Piece)) (*Answer, error) {
	j, err := s.Submit(ctx, r)
	if err != nil {
		return ended(ctx, nil, err)
	}
	var told strings.Builder
	for on != nil {
		p, ok := j.Next()
		if !ok {
			break
		}
		told.WriteString(p.Text)
		on(*p)
	}
	a, err := j.Answer()
	if a == nil && told.Len() > 0 {
		a = &Answer{Text: told.String(), Finish: FinishCancelled}
	}
	return ended(ctx, a, err)
}

// asker is a request's way into the engine: on its own, or in a conversation.
type asker func(context.Context, engine.Request) (*engine.Answer, error)

func (m *Model) ask(ctx context.Context, r *Request, do asker, on func(Piece)) (*Answer, error) {
	q, err := m.request(r)
	if err != nil {
		return nil, err
	}
	if on != nil {
		q.OnPiece = func(p engine.Piece) { on(newPiece(p)) }
	}
	a, err := do(ctx, *q)
	return ended(ctx, newAnswer(a, answered(r)), m.refused(err))
}

// ended returns the result of a request. A context that ended is an error with an answer, whatever
// stage it met the request in; an answer that another error interrupted is none.
func ended(ctx context.Context, a *Answer, err error) (*Answer, error) {
	cause := context.Cause(ctx)
	cut := cause != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, cause) ||
		a != nil && a.Finish == FinishCancelled)
	switch {
	case cut && a == nil:
		return &Answer{Finish: FinishCancelled}, cause
	case cut:
		return a, cause
	case err != nil:
		return nil, err
	}
	return a, nil
}

// stream runs do and yields the pieces that it passes on, and then the answer.
func stream(
	ctx context.Context, do func(context.Context, func(Piece)) (*Answer, error),
) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // the request ends with the loop
		left := false
		ans, err := do(ctx, func(p Piece) {
			if !left && !yield(p, nil) {
				left = true
				cancel()
			}
		})
		if !left {
			yield(Piece{Answer: ans}, err)
		}
	}
}
