package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/grammar"
)

// request is one entry of the queue.
type request struct {
	ID     string           `json:"id"` // CLIENT.NAME
	Stream bool             `json:"stream,omitempty"`
	Ask    *restore.Request `json:"ask"`
	// Messages are the request's.
	Messages []message `json:"messages,omitempty"`
}

type message struct {
	Role  restore.Role `json:"role"`
	Parts []part       `json:"parts"`
}

type part struct {
	Text      string             `json:"text,omitempty"`
	Picture   *picture           `json:"picture,omitempty"`
	Reduction *restore.Reduction `json:"reduction,omitempty"`
}

type picture struct {
	File    []byte                 `json:"file,omitempty"`
	Hash    string                 `json:"hash,omitempty"` // of the file in the object store
	Options restore.PictureOptions `json:"options"`
}

// result is the outcome of a request.
type result struct {
	Worker      string          `json:"worker"`
	Fingerprint string          `json:"fingerprint"`
	Answer      *restore.Answer `json:"answer,omitempty"`
	Elapsed     time.Duration   `json:"elapsed"`          // from the worker's begin to the answer
	Pieces      int             `json:"pieces,omitempty"` // number of streamed pieces
	Try         uint64          `json:"try"`              // the delivery that this answers
	Failure     *failure        `json:"failure,omitempty"`
}

// failure says why there is no answer; one field is set.
type failure struct {
	Option   *errs.OptionError  `json:"option,omitempty"`
	Picture  *pictureFailure    `json:"picture,omitempty"`
	Context  *errs.ContextError `json:"context,omitempty"`
	Memory   *errs.MemoryError  `json:"memory,omitempty"`
	Schema   *grammar.Error     `json:"schema,omitempty"`
	Internal string             `json:"internal,omitempty"`
}

// pictureFailure is an errs.PictureError whose cause is a text.
type pictureFailure struct {
	errs.PictureError
	Err string
}

// failureOf converts an error for the client; it returns false if another worker may succeed.
func failureOf(err error) (*failure, bool) {
	var f failure
	var picture *errs.PictureError
	switch {
	case errors.As(err, &f.Schema), errors.As(err, &f.Option), errors.As(err, &f.Context),
		errors.As(err, &f.Memory):
		return &f, true
	case errors.As(err, &picture):
		f.Picture = &pictureFailure{*picture, picture.Err.Error()}
		return &f, true
	}
	f.Internal = err.Error()
	return &f, false
}

func (f *failure) err(worker string) error {
	switch {
	case f.Option != nil:
		return f.Option
	case f.Picture != nil:
		out := f.Picture.PictureError
		out.Err = errors.New(f.Picture.Err)
		return &out
	case f.Context != nil:
		return f.Context
	case f.Memory != nil:
		return f.Memory
	case f.Schema != nil:
		return f.Schema
	}
	if worker == "" {
		return fmt.Errorf("fleet: %s", f.Internal)
	}
	return fmt.Errorf("fleet: worker %s: %s", worker, f.Internal)
}

// event is a progress message of a streamed request.
type event struct {
	ID     string         `json:"id"`
	Worker string         `json:"worker"`
	Try    uint64         `json:"try"` // number of the request's delivery
	N      int            `json:"n"`   // pieces of this delivery before it
	Event  *restore.Piece `json:"event"`
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
	idHeader      = "Restore-Id"
	bodyHeader    = "Restore-Body"       // the object with a message too large for the server
	requestHeader = "Restore-Request-Id" // names the request in logs
	// backgroundHeader marks a request that lets all others go first
	backgroundHeader = "Restore-Background"
)

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// pack makes the message of a request, and the key of its partition: its pictures, or a random one.
// It stores large pictures in the object store first.
func (c *Client) pack(ctx context.Context, q *request) (_ *nats.Msg, key string, err error) {
	said, err := q.Ask.Dialogue()
	if err != nil {
		return nil, "", err
	}
	bare := *q.Ask
	bare.Pictures, bare.Messages = nil, nil
	if q.Ask.Raw || q.Ask.Tokens != nil {
		said = nil
	} else {
		bare.Prompt, bare.System, bare.Places = "", "", nil
	}
	out := request{ID: q.ID, Stream: q.Stream, Ask: &bare}
	sum, within, found := fnv.New64a(), 0, false
	for _, m := range said {
		to := message{Role: m.Role}
		for _, p := range m.Parts {
			sent := part{Text: p.Text, Reduction: p.Reduction}
			if p.Picture != nil {
				if sent.Picture, err = c.sent(ctx, p.Picture, &within, sum); err != nil {
					return nil, "", err
				}
				found = true
			}
			to.Parts = append(to.Parts, sent)
		}
		out.Messages = append(out.Messages, to)
	}
	key = strconv.FormatUint(mix(sum.Sum64()), 36)
	if !found {
		key = newID()
	}
	data, err := json.Marshal(&out)
	if err != nil {
		return nil, "", err
	}
	msg := nats.NewMsg("")
	if int64(len(data)) > c.nc.MaxPayload()-4096 {
		name := hashOf(data)
		if err := c.store(ctx, name, data); err != nil {
			return nil, "", err
		}
		msg.Header.Set(bodyHeader, name)
		return msg, key, nil
	}
	msg.Data = data
	return msg, key, nil
}

// sent returns the form of a picture in a message, in which pictures take within bytes so far. It
// adds the file to sum.
func (c *Client) sent(
	ctx context.Context, p *restore.Picture, within *int, sum hash.Hash64,
) (*picture, error) {
	file, err := p.File()
	if err != nil {
		return nil, err
	}
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(file)))
	sum.Write(n[:])
	sum.Write(file)
	out := &picture{File: file, Options: *p.Options()}
	if len(file) > inlinePicture || *within+len(file) > inlinePictures {
		out.File, out.Hash = nil, hashOf(file)
		return out, c.store(ctx, out.Hash, file)
	}
	*within += len(file)
	return out, nil
}

// store stores a picture or a large request under its hash, unless it is there and will stay long
// enough. While the servers do not take it, store waits, as for a place in the queue; it makes a
// bucket that is gone again, and returns a refusal that will not change.
func (c *Client) store(ctx context.Context, name string, data []byte) error {
	var wait backoff
	for {
		err := c.stored.do(ctx, name, c.lay.Keep/2, func(ctx context.Context) error {
			return c.storeNow(ctx, name, data)
		})
		if err == nil || refusedForGood(err) || !wait.pause(ctx) {
			return err
		}
		if lost(err) {
			if _, err := c.objects(ctx, picturesBucket, 0); err != nil {
				c.log.Warn("object store", "error", c.explain("object store", err))
			}
		}
	}
}

func (c *Client) storeNow(ctx context.Context, name string, data []byte) error {
	in := c.pictures
	i, err := in.GetInfo(ctx, name)
	if err == nil && time.Since(i.ModTime) < c.lay.Keep/2 {
		if _, err := c.objectNow(ctx, in, name); err == nil {
			return nil
		}
	}
	return c.put(ctx, in, name, data)
}

// maxPuts is the most attempts to store an object.
const maxPuts = 3

// put stores an object under its hash and reads it: when a server ends or loses its disk while its
// chunks arrive, one of them may be missing or there twice, and nobody is told.
func (c *Conn) put(
	ctx context.Context, in jetstream.ObjectStore, name string, data []byte,
) (err error) {
	for range maxPuts {
		if _, err = in.PutBytes(ctx, name, data); err != nil {
			err = c.explain("object store", err)
		} else if _, err = c.objectNow(ctx, in, name); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return err
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
	if !isID(q.ID) || q.Ask == nil {
		return nil, &badMessage{fmt.Errorf("got id %.80q, want CLIENT.NAME and a request", q.ID)}
	}
	index := 0
	for _, m := range q.Messages {
		to := restore.Message{Role: m.Role}
		for _, p := range m.Parts {
			part := restore.Part{Text: p.Text, Reduction: p.Reduction}
			if p.Picture != nil {
				var err error
				if part.Picture, err = c.received(ctx, p.Picture, held, index); err != nil {
					return nil, err
				}
				index++
			}
			to.Parts = append(to.Parts, part)
		}
		q.Ask.Messages = append(q.Ask.Messages, to)
	}
	return &q, nil
}

// received returns the i-th picture of a message.
func (c *Conn) received(
	ctx context.Context, p *picture, held *pictureCache, i int,
) (*restore.Picture, error) {
	if p.Hash != "" {
		var err error
		if p.File, err = held.get(ctx, c, p.Hash); err != nil {
			return nil, err
		}
	}
	out, err := restore.NewPicture(p.File, &p.Options)
	var bad *errs.PictureError
	if errors.As(err, &bad) {
		named := *bad
		named.Index = i
		return nil, &named
	}
	return out, err
}

// badMessage is a message that no worker can read.
type badMessage struct{ err error }

func (e *badMessage) Error() string { return "fleet: a message of the queue: " + e.err.Error() }

// Unwrap returns the cause: an errs.OptionError where the worker does not know a parameter.
func (e *badMessage) Unwrap() error { return e.err }

// settle turns the JSON value null back into nil.
func settle(raw *json.RawMessage) {
	if string(*raw) == "null" {
		*raw = nil
	}
}

// isID reports whether s may be the id of a request.
func isID(s string) bool {
	client, name, ok := strings.Cut(s, ".")
	return ok && isToken(client) && isToken(name)
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

// errAway means that the servers do not give what they have; neither the request nor the worker is
// the reason.
var errAway = errors.New("the NATS servers do not give it")

// object reads a stored object and checks its hash. It retries for a while, because a server that
// was away may not have it yet.
func (c *Conn) object(
	ctx context.Context, in jetstream.ObjectStore, name string,
) (data []byte, err error) {
	ctx, cancel := c.within(ctx, c.callTime)
	defer cancel()
	for wait := (backoff{}); ; {
		if data, err = c.objectNow(ctx, in, name); err == nil || !wait.pause(ctx) {
			break
		}
	}
	if silent(err) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, nats.ErrConnectionClosed) {
		err = fmt.Errorf("%w: %w", err, errAway)
	}
	return data, err
}

func (c *Conn) objectNow(
	ctx context.Context, in jetstream.ObjectStore, name string,
) ([]byte, error) {
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
	if err := c.put(ctx, c.answers, name, data); err != nil {
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
