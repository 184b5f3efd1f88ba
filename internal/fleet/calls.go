package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/restore-vlm/restore"
)

// callRequest is a question that bypasses the queue; one field is set.
type callRequest struct {
	Tokenize   *tokenizeCall `json:"tokenize,omitempty"`
	Detokenize []int32       `json:"detokenize,omitempty"`
	Count      *callCount    `json:"count,omitempty"`
}

type tokenizeCall struct {
	Text    string `json:"text"`
	Special bool   `json:"special,omitempty"`
	Parse   bool   `json:"parse,omitempty"`
}

// callCount names a request that is stored in the object store.
type callCount struct {
	Body string `json:"body"`
}

type callReply struct {
	Tokens  []restore.Token `json:"tokens,omitempty"`
	Text    string          `json:"text,omitempty"`
	Count   *restore.Answer `json:"count,omitempty"`
	Failure *failure        `json:"failure,omitempty"`
}

// call answers a question about tokens.
func (w *Worker) call(ctx context.Context, m *nats.Msg) {
	out, err := w.called(ctx, m)
	if err != nil {
		f, _ := failureOf(err)
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

func (w *Worker) called(ctx context.Context, m *nats.Msg) (*callReply, error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	var q callRequest
	if err := json.Unmarshal(m.Data, &q); err != nil {
		return nil, err
	}
	var out callReply
	tokens, ok := w.o.Service.(tokenizer)
	switch {
	case q.Count != nil:
		r, err := w.c.unpack(ctx, nats.Header{bodyHeader: {q.Count.Body}}, nil, &w.held)
		if err == nil {
			out.Count, err = w.o.Service.Count(ctx, r.Ask)
		}
		return &out, err
	case !ok:
		return nil, errors.New("fleet: the worker does not tell tokens")
	case q.Tokenize != nil:
		var err error
		out.Tokens, err = tokens.Tokenize(q.Tokenize.Text, q.Tokenize.Special, q.Tokenize.Parse)
		return &out, err
	}
	out.Text = tokens.Detokenize(q.Detokenize)
	return &out, nil
}

// tokenizer is what a worker can use of a service that has it.
type tokenizer interface {
	Tokenize(text string, special, parse bool) ([]restore.Token, error)
	Detokenize(ids []int32) string
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

// Tokenize asks a worker; see [restore.Model.Tokenize].
func (c *Client) Tokenize(text string, special, parse bool) ([]restore.Token, error) {
	r, err := c.call(context.Background(),
		&callRequest{Tokenize: &tokenizeCall{text, special, parse}})
	if err != nil {
		return nil, err
	}
	return r.Tokens, nil
}

// Detokenize asks a worker; see [restore.Model.Detokenize].
func (c *Client) Detokenize(ids []int32) string {
	r, err := c.call(context.Background(), &callRequest{Detokenize: ids})
	if err != nil {
		c.log.Warn("detokenize", "error", err)
		return ""
	}
	return r.Text
}

// Count implements restore.Service.
func (c *Client) Count(ctx context.Context, r *restore.Request) (*restore.Answer, error) {
	q := &request{ID: c.id + "." + newID(), Ask: r}
	j := &job{id: q.ID} // takes a place in the queue
	c.begin(j)
	defer c.end(j)
	err := c.full()
	if err == nil {
		err = r.Load(ctx)
	}
	if err != nil {
		return nil, err
	}
	msg, _, err := c.pack(ctx, q)
	if err != nil {
		return nil, err
	}
	name := msg.Header.Get(bodyHeader)
	if name == "" {
		name = hashOf(msg.Data)
		if err := c.store(ctx, name, msg.Data); err != nil {
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
