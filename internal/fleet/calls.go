package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/server"
)

// callRequest is a question that bypasses the queue; one field is set.
type callRequest struct {
	Tokenize   *tokenizeCall `json:"tokenize,omitempty"`
	Detokenize []int32       `json:"detokenize,omitempty"`
	Count      *callCount    `json:"count,omitempty"`
}

type tokenizeCall struct {
	Text    string                 `json:"text"`
	Options server.TokenizeOptions `json:"options"`
}

// callCount names a request that is stored in the object store.
type callCount struct {
	Body string `json:"body"`
}

type callReply struct {
	Tokens  []server.Token `json:"tokens,omitempty"`
	Text    string         `json:"text,omitempty"`
	Count   *ask.Count     `json:"count,omitempty"`
	Failure *failure       `json:"failure,omitempty"`
}

// call answers a question about tokens.
func (w *Worker) call(ctx context.Context, m *nats.Msg) {
	out, r, err := w.called(ctx, m)
	if err != nil {
		f, _ := failureOf(err, r)
		out = &callReply{Failure: f}
	}
	data, err := json.Marshal(out)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		w.c.log.Warn("call", "error", err)
	}
}

func (w *Worker) called(ctx context.Context, m *nats.Msg) (*callReply, *ask.Request, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	none := &ask.Request{}
	var q callRequest
	if err := json.Unmarshal(m.Data, &q); err != nil {
		return nil, none, err
	}
	b, err := w.o.Backend(nil)
	if err != nil {
		return nil, none, err
	}
	var out callReply
	switch {
	case q.Tokenize != nil:
		out.Tokens, err = b.Tokenize(q.Tokenize.Text, q.Tokenize.Options)
	case q.Count != nil:
		r, err := w.c.unpack(ctx, nats.Header{bodyHeader: {q.Count.Body}}, nil, &w.held)
		if err != nil {
			return nil, none, err
		}
		if b, err = w.o.Backend(r.Defaults); err == nil {
			out.Count, err = b.Count(ctx, r.Ask)
		}
		return &out, r.Ask, err
	default:
		out.Text = b.Detokenize(q.Detokenize)
	}
	return &out, none, err
}

// callFor is the time limit of a call.
const callFor = 30 * time.Second

// call sends a question to one of the workers.
func (c *Client) call(ctx context.Context, q *callRequest) (*callReply, error) {
	data, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	m, err := c.nc.RequestWithContext(ctx, rpcSubject+c.model.Key, data)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, c.nobody()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("fleet: no worker answered a call: %w", err)
	}
	if err != nil {
		return nil, c.explain("call", err)
	}
	var out callReply
	if err := json.Unmarshal(m.Data, &out); err != nil {
		return nil, err
	}
	if out.Failure != nil {
		return nil, out.Failure.err("")
	}
	return &out, nil
}

// Tokenize implements server.Backend.
func (c *Client) Tokenize(text string, o server.TokenizeOptions) ([]server.Token, error) {
	r, err := c.call(context.Background(), &callRequest{Tokenize: &tokenizeCall{text, o}})
	if err != nil {
		return nil, err
	}
	return r.Tokens, nil
}

// Detokenize implements server.Backend.
func (c *Client) Detokenize(ids []int32) string {
	r, err := c.call(context.Background(), &callRequest{Detokenize: ids})
	if err != nil {
		c.log.Warn("detokenize", "error", err)
		return ""
	}
	return r.Text
}

// Count implements server.Backend.
func (c *Client) Count(ctx context.Context, r *ask.Request) (*ask.Count, error) {
	q := &request{ID: c.id + "." + newID(), Defaults: c.o.Defaults, Ask: r}
	j := &job{c: c, id: q.ID} // takes a place in the queue
	c.begin(j)
	defer c.end(j)
	err := c.full()
	if err == nil && r.Load != nil {
		err = r.Load(ctx)
	}
	if err != nil {
		return nil, err
	}
	msg, err := c.pack(ctx, q)
	if err != nil {
		return nil, err
	}
	name := msg.Header.Get(bodyHeader)
	if name == "" {
		name = hashOf(msg.Data)
		if err := c.store(ctx, c.pictures, name, msg.Data); err != nil {
			return nil, err
		}
	}
	out, err := c.call(ctx, &callRequest{Count: &callCount{name}})
	if err != nil {
		return nil, err
	}
	if out.Count == nil {
		return nil, errors.New("fleet: a call: got no count")
	}
	return out.Count, nil
}
