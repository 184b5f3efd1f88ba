package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/server"
	"github.com/restore-vlm/restore/internal/wire"
)

// request is one entry of the queue.
type request struct {
	ID       string          `json:"id"` // CLIENT.NAME
	Stream   bool            `json:"stream,omitempty"`
	Defaults json.RawMessage `json:"defaults,omitempty"` // of the client
	Ask      *ask.Request    `json:"ask"`
	// hashes of pictures in the object store, "" for inline ones
	Large []string `json:"large,omitempty"`
}

// result is the outcome of a request.
type result struct {
	Worker      string        `json:"worker"`
	Fingerprint string        `json:"fingerprint"`
	Answer      *ask.Answer   `json:"answer,omitempty"`
	Elapsed     time.Duration `json:"elapsed"`          // from the worker's begin to the answer
	Pieces      int           `json:"pieces,omitempty"` // number of streamed pieces
	Try         uint64        `json:"try"`              // the delivery that this answers
	Failure     *failure      `json:"failure,omitempty"`
}

// failure says why there is no answer; one field is set.
type failure struct {
	Refused  *wire.Error        `json:"refused,omitempty"`
	Context  *errs.ContextError `json:"context,omitempty"` // the client knows the field's name
	Memory   *errs.MemoryError  `json:"memory,omitempty"`
	Internal string             `json:"internal,omitempty"`
}

// failureOf converts an error for the client; it returns false if another worker may succeed.
func failureOf(err error, r *ask.Request) (*failure, bool) {
	var f failure
	switch {
	case errors.As(err, &f.Context), errors.As(err, &f.Memory):
		return &f, true
	}
	if f.Refused = server.Refusal(err, r); f.Refused != nil {
		return &f, true
	}
	f.Internal = err.Error()
	return &f, false
}

func (f *failure) err(worker string) error {
	switch {
	case f.Refused != nil:
		return f.Refused
	case f.Context != nil:
		return f.Context
	case f.Memory != nil:
		return f.Memory
	}
	if worker == "" {
		return fmt.Errorf("fleet: %s", f.Internal)
	}
	return fmt.Errorf("fleet: worker %s: %s", worker, f.Internal)
}

// event is a progress message of a streamed request.
type event struct {
	ID     string     `json:"id"`
	Worker string     `json:"worker"`
	Try    uint64     `json:"try"` // number of the request's delivery
	N      int        `json:"n"`   // pieces of this delivery before it
	Event  *ask.Event `json:"event"`
}

// Limits of pictures within a message: larger ones are stored once and referenced.
const (
	inlinePicture  = 32 << 10
	inlinePictures = 128 << 10
)

// Limits of data read from other processes.
const (
	maxObject = 256 << 20
	// maxHeld limits the pictures that a worker caches, in bytes.
	maxHeld = 256 << 20
)

// Headers of messages.
const (
	idHeader   = "Restore-Id"
	bodyHeader = "Restore-Body" // the object with a message that is too large for the server
)

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// pack makes the message of a request. It stores large pictures in the object store first.
func (c *Client) pack(ctx context.Context, q *request) (*nats.Msg, error) {
	out := *q
	a := *q.Ask
	out.Ask, a.Messages = &a, nil
	within := 0
	for _, m := range q.Ask.Messages {
		parts := make([]ask.Part, len(m.Parts))
		for i, p := range m.Parts {
			parts[i] = p
			if p.Picture == nil {
				continue
			}
			name := ""
			if n := len(p.Picture.Data); n > inlinePicture || within+n > inlinePictures {
				name = hashOf(p.Picture.Data)
				if err := c.store(ctx, c.pictures, name, p.Picture.Data); err != nil {
					return nil, err
				}
				pic := *p.Picture
				pic.Data = nil
				parts[i].Picture = &pic
			} else {
				within += n
			}
			out.Large = append(out.Large, name)
		}
		m.Parts = parts
		a.Messages = append(a.Messages, m)
	}
	data, err := json.Marshal(&out)
	if err != nil {
		return nil, err
	}
	msg := nats.NewMsg("")
	if int64(len(data)) > c.nc.MaxPayload()-4096 {
		name := hashOf(data)
		if err := c.store(ctx, c.pictures, name, data); err != nil {
			return nil, err
		}
		msg.Header.Set(bodyHeader, name)
		return msg, nil
	}
	msg.Data = data
	return msg, nil
}

// store stores an object under its hash, unless it is there and will stay long enough.
func (c *Client) store(
	ctx context.Context,
	in jetstream.ObjectStore,
	name string,
	data []byte,
) error {
	return c.stored.do(ctx, name, c.lay.Keep/2, func(ctx context.Context) error {
		if i, err := in.GetInfo(ctx, name); err == nil && time.Since(i.ModTime) < c.lay.Keep/2 {
			return nil
		}
		_, err := in.PutBytes(ctx, name, data)
		return c.explain("object store", err)
	})
}

// once runs each named operation once while its result is valid, however many callers need it.
type once struct {
	group singleflight.Group
	mu    sync.Mutex
	done  map[string]time.Time
}

// maxNames limits the names that a once remembers.
const maxNames = 1 << 16

func (o *once) do(
	ctx context.Context,
	name string,
	valid time.Duration,
	f func(context.Context) error,
) error {
	o.mu.Lock()
	at, was := o.done[name]
	o.mu.Unlock()
	if was && time.Since(at) < valid {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // others wait for it
	_, err, _ := o.group.Do(name, func() (any, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := f(ctx); err != nil {
			return nil, err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.done == nil || len(o.done) >= maxNames {
			o.done = map[string]time.Time{}
		}
		o.done[name] = time.Now()
		return nil, nil
	})
	return err
}

// unpack reads a message of the queue.
func (c *Conn) unpack(
	ctx context.Context,
	header nats.Header,
	data []byte,
	held *pictureCache,
) (*request, error) {
	if name := header.Get(bodyHeader); name != "" {
		var err error
		if data, err = c.object(ctx, c.pictures, name); err != nil {
			return nil, err
		}
	}
	var q request
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, &badMessage{err}
	}
	if client, name, ok := strings.Cut(q.ID, "."); !ok || !isToken(client) || !isToken(name) ||
		q.Ask == nil {
		return nil, &badMessage{fmt.Errorf("got id %.80q, want CLIENT.NAME and a request", q.ID)}
	}
	r := q.Ask
	settle(&r.Reduction.Object)
	settle(&r.Format.Schema)
	if string(q.Defaults) == "null" {
		q.Defaults = nil
	}
	at := 0
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			if p.Picture == nil {
				continue
			}
			settle(&p.Picture.Reduction.Object)
			if at >= len(q.Large) {
				return nil, &badMessage{errors.New("a picture is not listed")}
			}
			if name := q.Large[at]; name != "" {
				var err error
				if p.Picture.Data, err = held.get(ctx, c, name); err != nil {
					return nil, err
				}
			}
			at++
		}
	}
	return &q, nil
}

// badMessage is a message that no worker can read.
type badMessage struct{ err error }

func (e *badMessage) Error() string { return "fleet: a message of the queue: " + e.err.Error() }

// settle turns the JSON value null back into nil.
func settle(raw *json.RawMessage) {
	if string(*raw) == "null" {
		*raw = nil
	}
}

// isToken reports whether s may be one token of a subject.
func isToken(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' &&
			r != '_' {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// object reads a stored object and checks its hash.
func (c *Conn) object(ctx context.Context, in jetstream.ObjectStore, name string) ([]byte, error) {
	info, err := in.GetInfo(ctx, name)
	if err != nil {
		return nil, c.explain("object "+name, err)
	}
	if info.Size > maxObject {
		return nil, fmt.Errorf("fleet: object %s: got %d bytes, want at most %d", name,
			info.Size, maxObject)
	}
	data, err := in.GetBytes(ctx, name)
	if err != nil {
		return nil, c.explain("object "+name, err)
	}
	if hashOf(data) != name {
		return nil, fmt.Errorf("fleet: object %s: its content has another hash", name)
	}
	return data, nil
}

// pictureCache caches fetched pictures and evicts the oldest.
type pictureCache struct {
	group singleflight.Group
	mu    sync.Mutex
	data  map[string][]byte
	order []string
	bytes int
}

func (p *pictureCache) get(ctx context.Context, c *Conn, name string) ([]byte, error) {
	p.mu.Lock()
	data := p.data[name]
	p.mu.Unlock()
	if data != nil {
		return data, nil
	}
	ctx = context.WithoutCancel(ctx) // others wait for it
	v, err, _ := p.group.Do(name, func() (any, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		data, err := c.object(ctx, c.pictures, name)
		if err == nil {
			p.put(name, data)
		}
		return data, err
	})
	if err != nil {
		return nil, err
	}
	return v.([]byte), nil
}

func (p *pictureCache) put(name string, data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.data == nil {
		p.data = map[string][]byte{}
	}
	if p.data[name] != nil {
		return
	}
	p.data[name] = data
	p.order, p.bytes = append(p.order, name), p.bytes+len(data)
	for p.bytes > maxHeld && len(p.order) > 1 {
		p.bytes -= len(p.data[p.order[0]])
		delete(p.data, p.order[0])
		p.order = p.order[1:]
	}
}

// encodeResult encodes a result; if it is too large for a message, it is stored as an object.
func (c *Conn) encodeResult(ctx context.Context, r *result) ([]byte, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) <= c.nc.MaxPayload()-4096 {
		return data, nil
	}
	name := hashOf(data)
	if _, err := c.answers.PutBytes(ctx, name, data); err != nil {
		return nil, err
	}
	return []byte("@" + name), nil
}

// decodeResult decodes a result.
func (c *Conn) decodeResult(ctx context.Context, data []byte) (*result, error) {
	if name, ok := bytes.CutPrefix(data, []byte("@")); ok {
		var err error
		if data, err = c.object(ctx, c.answers, string(name)); err != nil {
			return nil, err
		}
	}
	var r result
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("fleet: a result: %w", err)
	}
	if (r.Answer == nil) == (r.Failure == nil) {
		return nil, errors.New("fleet: a result: got none or both of answer and failure, want one")
	}
	if r.Answer != nil {
		for i := range r.Answer.Pictures {
			settle(&r.Answer.Pictures[i].Parameters)
		}
	}
	return &r, nil
}
