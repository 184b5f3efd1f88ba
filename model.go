package restore

import (
	"context"
	"errors"
	"iter"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
)

// Ask answers one question, without a conversation. When ctx ends it returns the answer so far and
// the cause of ctx.
//
// The error is an [errs.OptionError] when a field of r is refused, an [errs.ContextError] when the
// prompt is longer than the model's context, an [errs.MemoryError] when its keys and values do not
// fit into memory, an [errs.PictureError] when the model cannot take a picture, [errs.ErrClosed]
// after Close, [errs.ErrNotFinite] when the model computes NaN, [errs.ErrDamaged] when a file of
// the model was cut short or a packed file is damaged, and [errs.ErrInternal] after a bug in this
// program. No error affects another request.
func (m *Model) Ask(ctx context.Context, r Request) (*Answer, error) {
	return ask(ctx, r, m.e.Ask)
}

// Piece is a part of an answer, delivered while the answer is generated.
type Piece struct {
	Text   string  // complete UTF-8; only the last piece's may be empty
	Answer *Answer // the whole answer, in the last piece only
}

// Stream is Ask in pieces. The concatenated texts of all pieces are the answer's text. An error
// comes with the last piece; if the context ended, that piece has the answer so far. Leaving the
// loop cancels the request.
func (m *Model) Stream(ctx context.Context, r Request) iter.Seq2[Piece, error] {
	return stream(ctx, r, m.e.Ask)
}

// Conversation is a dialogue that keeps the reduced tokens, keys and values of what it has read. A
// question reads only the new part of the dialogue, and its answer is the same as if the whole
// dialogue were read again. A Conversation is not safe for concurrent use.
type Conversation struct {
	c *engine.Conversation
	r *Reduction
}

// NewConversation starts a dialogue that reduces its pictures by r; nil reads every token. The
// error is an [errs.OptionError] when r is refused, and [errs.ErrClosed] after Close.
func (m *Model) NewConversation(r *Reduction) (*Conversation, error) {
	if err := m.e.Closed(); err != nil {
		return nil, err
	}
	how, err := r.options()
	if err != nil {
		return nil, err
	}
	return &Conversation{c: m.e.NewConversation(how), r: r}, nil
}

// Ask answers the next question, with the errors of [Model.Ask]. An error leaves the dialogue as it
// was before the call. If the request has a Reduction, it must equal the conversation's.
func (c *Conversation) Ask(ctx context.Context, r Request) (*Answer, error) {
	if err := c.check(&r); err != nil {
		return nil, err
	}
	return ask(ctx, r, c.c.Ask)
}

// Stream is Ask in pieces, like [Model.Stream].
func (c *Conversation) Stream(ctx context.Context, r Request) iter.Seq2[Piece, error] {
	if err := c.check(&r); err != nil {
		return func(yield func(Piece, error) bool) { yield(Piece{}, err) }
	}
	return stream(ctx, r, c.c.Ask)
}

func (c *Conversation) check(r *Request) error {
	if r.Reduction != nil && !r.Reduction.equal(c.r) {
		return &errs.OptionError{Name: "reduction", Want: "none", Fault: errs.Conflict,
			Got: "a reduction other than the conversation's",
			Why: "a conversation reduces all its pictures in one way"}
	}
	r.Reduction = c.r
	return nil
}

// Reset forgets the dialogue but keeps the cache: if the next question begins with the same
// pictures, they are not read again.
func (c *Conversation) Reset() { c.c.Reset() }

// Close ends the running requests, which return [errs.ErrClosed], and frees the model's
// memory. It may be called at any time and more than once. Every later call returns
// ErrClosed.
func (m *Model) Close() error { return m.e.Close() }

// Info describes a model.
type Info struct {
	Name         string // folder, repository or file
	Architecture string // as the model's configuration names it
	Params       int64  // numbers in all weights
	Bytes        int64  // that weights take in memory
	Context      int    // positions
	VisualTokens int    // of a picture before reduction; 0 where that depends on the picture
	Threads      int
	Kernel       string // implementation of the arithmetic in use
}

// Info describes the model.
func (m *Model) Info() Info {
	i := m.e.Info()
	out := Info{
		Name: i.Name, Architecture: i.Architecture, Params: i.Params, Bytes: i.Resident,
		Context: m.e.Context(), Threads: i.Threads, Kernel: i.Kernel,
	}
	if s := i.Sizes; s != nil && s.Views == 1 {
		out.VisualTokens = s.Tokens
	}
	return out
}

// asker is a request's way into the engine: on its own, or in a conversation.
type asker func(context.Context, engine.Request) (*engine.Answer, error)

func ask(ctx context.Context, r Request, do asker) (*Answer, error) {
	q, err := r.engine()
	if err != nil {
		return nil, err
	}
	return finish(ctx, &r, do, q)
}

// finish asks q. A context that ended is an error with an answer, whatever stage it
// met the request in.
func finish(ctx context.Context, r *Request, do asker, q engine.Request) (*Answer, error) {
	a, err := do(ctx, q)
	if cause := context.Cause(ctx); cause != nil &&
		(errors.Is(err, ctx.Err()) || a != nil && a.Finish == engine.FinishCancelled) {
		if a == nil {
			a = &engine.Answer{Finish: engine.FinishCancelled}
		}
		err = cause
	}
	return newAnswer(a, r), err
}

func stream(ctx context.Context, r Request, do asker) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		pieces, done, left := make(chan string), make(chan struct{}), make(chan struct{})
		var ans *Answer
		var err error
		go func() {
			defer close(done)
			q, bad := r.engine()
			if bad != nil {
				err = bad
				return
			}
			q.OnText = func(text string) {
				select {
				case pieces <- text:
				case <-left:
				}
			}
			ans, err = finish(ctx, &r, do, q)
		}()
		defer func() { // the request ends with the loop
			cancel()
			close(left)
			<-done
		}()
		for {
			select {
			case text := <-pieces:
				if !yield(Piece{Text: text}, nil) {
					return
				}
			case <-done:
				yield(Piece{Answer: ans}, err)
				return
			}
		}
	}
}
