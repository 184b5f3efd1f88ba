package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// write stores the result of a request, unless there is one already. It retries until ctx ends.
func (c *Conn) write(ctx context.Context, id string, r *result) error {
	var wait backoff
	for {
		data, err := c.encodeResult(ctx, r)
		if err == nil {
			call, cancel := context.WithTimeout(ctx, writeTime)
			_, err = c.results.Create(call, id, data)
			cancel()
		}
		if err == nil || errors.Is(err, jetstream.ErrKeyExists) {
			return nil
		}
		c.log.Warn("result", "id", id, "error", err)
		if !wait.pause(ctx) {
			return context.Cause(ctx)
		}
	}
}

// begunNote counts the attempts at a request that was delivered more than once: those that failed,
// and those in which it was alone in a worker that then ended or fell silent. Of a worker that
// ended while it computed several requests, any may be the reason.
type begunNote struct {
	Times  int    `json:"times"`
	Reason string `json:"reason"`           // "": nothing is known against the request
	Worker string `json:"worker,omitempty"` // that began the last attempt and has not said how it ended
}

// begunBefore returns the note about a request that is delivered again. Without one, a worker ended
// or fell silent.
func (c *Conn) begunBefore(ctx context.Context, id string) (n begunNote) {
	e, err := c.begun.Get(ctx, id)
	if err != nil || json.Unmarshal(e.Value(), &n) != nil {
		return begunNote{Reason: "a worker ended or fell silent while it computed it"}
	}
	return n
}

func (c *Conn) noteBegun(ctx context.Context, id string, n begunNote) {
	data, err := json.Marshal(n)
	if err == nil {
		_, err = c.begun.Put(ctx, id, data)
	}
	if err != nil {
		c.log.Warn("begun", "id", id, "error", err)
	}
}

// reasonHeader holds the reason why a request is in the dead-letter stream.
const reasonHeader = "Restore-Reason"

// giveUp moves a request to the dead-letter stream and stores a failure as its result. It retries
// until ctx ends.
func (c *Conn) giveUp(
	ctx context.Context,
	model, id, reason string,
	header nats.Header,
	data []byte,
) error {
	c.log.Error("request given up", "id", id, "reason", reason)
	m := nats.NewMsg(deadSubject + model)
	m.Data = data
	if body := header.Get(bodyHeader); body != "" {
		m.Header.Set(bodyHeader, body)
	}
	m.Header.Set(reasonHeader, strings.Map(printable, reason))
	m.Header.Set(idHeader, id)
	if _, err := c.js.PublishMsg(ctx, m, jetstream.WithMsgID("dead."+id)); err != nil {
		c.log.Warn("dead letter", "id", id, "error", err)
	}
	return c.write(ctx, id, &result{Failure: &failure{Internal: "given up: " + reason}})
}

// printable keeps a header on one line.
func printable(r rune) rune {
	if r < ' ' {
		return ' '
	}
	return r
}

// buryFor is how long the server keeps a pull of advisories.
const buryFor = 15 * time.Second

// bury ends requests whose deliveries are used up. The server reports them in advisories, which the
// dead-letter stream keeps until a worker has processed them.
func (c *Conn) bury(ctx context.Context, model string) {
	var k jetstream.Consumer
	var wait backoff
	for ctx.Err() == nil {
		if k == nil {
			var err error
			k, err = c.dead.CreateOrUpdateConsumer(
				ctx,
				jetstream.ConsumerConfig{Durable: "bury_" + model,
					FilterSubject: strings.TrimSuffix(
						advisories,
						">",
					) + "*", AckPolicy: jetstream.AckExplicitPolicy, AckWait: callTime,
					InactiveThreshold: 24 * time.Hour},
			)
			if err != nil {
				k = nil
				wait.pause(ctx)
				continue
			}
		}
		one, cancel := context.WithTimeout(ctx, buryFor)
		batch, err := k.Fetch(16, jetstream.FetchContext(one))
		if err == nil {
			for m := range batch.Messages() {
				if c.buryOne(ctx, model, m.Data()) {
					_ = m.Ack() // if this fails, it is delivered again
				}
			}
			err = batch.Error()
		}
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			k = nil
			wait.pause(ctx)
		} else {
			wait = backoff{}
		}
	}
}

// buryOne processes one advisory.
func (c *Conn) buryOne(ctx context.Context, model string, advisory []byte) bool {
	var a struct {
		Consumer   string `json:"consumer"`
		Seq        uint64 `json:"stream_seq"`
		Deliveries int    `json:"deliveries"`
	}
	if json.Unmarshal(advisory, &a) != nil || !strings.HasPrefix(a.Consumer, model+"_") {
		return true
	}
	m, err := c.work.GetMsg(ctx, a.Seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true // it has an answer
	}
	if err != nil {
		return false
	}
	id := m.Header.Get(idHeader)
	reason := c.begunBefore(ctx, id).Reason
	if c.giveUp(ctx, model, id, reason, m.Header, m.Data) != nil {
		return false
	}
	err = c.work.DeleteMsg(ctx, a.Seq)
	return err == nil || errors.Is(err, jetstream.ErrMsgNotFound)
}
