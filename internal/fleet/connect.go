package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Options say how to reach a fleet.
type Options struct {
	URL         string // of servers, separated by commas; may contain user and password
	Credentials string // file; "" for none
	CA          string // file of CA certificates; "" for the system's
	Name        string // of the connection, in the server's lists
	Log         *slog.Logger
	Dial        nats.InProcessConnProvider // a server in this process, instead of URL

	// Token, when not nil, returns the token to sign in with, "" for none. It is called at each
	// attempt to connect: a server that was restarted may have another.
	Token func() string

	// Wait tries until a server can be reached, and says so once in Log. Without it that is an
	// error.
	Wait bool

	Layout Layout // of streams that do not exist yet

	callTime time.Duration // time limit of a call, 0: callTime
}

// Conn is a connection to a fleet. It survives restarts of servers.
type Conn struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	log *slog.Logger
	lay Layout

	callTime time.Duration // time limit of a call

	work     jetstream.Stream
	dead     jetstream.Stream
	beats    jetstream.Stream // of workers
	kept     jetstream.Stream // of results
	results  jetstream.KeyValue
	begun    jetstream.KeyValue
	workers  jetstream.KeyValue
	models   jetstream.KeyValue
	pictures jetstream.ObjectStore
	answers  jetstream.ObjectStore

	again  atomic.Int64 // time of the last reconnection, in ns; 0: never
	denied atomic.Bool  // the server refused this user since then, which was reported

	mu        sync.Mutex
	forbidden error         // the server's last permission error
	refused   chan struct{} // closed when forbidden is set for the first time
}

// Time limits of operations that depend only on the servers.
const (
	connectTime = 5 * time.Second
	callTime    = 10 * time.Second
	writeTime   = 3 * time.Second // of an idempotent write, which is retried
	pingEvery   = 5 * time.Second
)

// Connect connects, and creates the streams and buckets that are missing.
func Connect(ctx context.Context, o Options) (_ *Conn, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Conn{log: o.Log, lay: o.Layout.withDefaults(), refused: make(chan struct{}),
		callTime: cmp.Or(o.callTime, callTime)}
	options := []nats.Option{
		nats.Name(o.Name),
		nats.Timeout(connectTime), nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2), nats.ErrorHandler(c.failed),
		nats.IgnoreAuthErrorAbort(), // a server that refuses this user now may know it later
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				c.log.Warn("nats: disconnected", "error", err)
			}
		}),
		nats.ReconnectHandler(
			func(nc *nats.Conn) {
				c.log.Warn("nats: connected again", "server", nc.ConnectedUrlRedacted())
				c.again.Store(time.Now().UnixNano())
				c.denied.Store(false)
			},
		),
	}
	if o.Dial != nil {
		options = append(options, nats.InProcessServer(o.Dial))
	}
	if o.Token != nil {
		options = append(options, nats.TokenHandler(o.Token))
	}
	if o.Credentials != "" {
		options = append(options, nats.UserCredentials(o.Credentials))
	}
	if o.CA != "" {
		options = append(options, nats.RootCAs(o.CA))
	}
	if c.nc, err = dial(ctx, &o, options); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.nc.Close()
		}
	}()
	if c.js, err = jetstream.New(c.nc, jetstream.WithDefaultTimeout(c.callTime)); err != nil {
		return nil, err
	}
	return c, c.explain("streams", c.open(ctx))
}

// dial connects to a server.
func dial(ctx context.Context, o *Options, options []nats.Option) (*nats.Conn, error) {
	var wait backoff
	for told := false; ; told = true {
		nc, err := nats.Connect(o.URL, options...)
		if err == nil {
			return nc, nil
		}
		var unreachable net.Error
		if !o.Wait || !errors.Is(err, nats.ErrNoServers) && !errors.As(err, &unreachable) {
			return nil, connectError(o.URL, err)
		}
		if !told {
			o.Log.Warn("waiting for the NATS server", "error", connectError(o.URL, err))
		}
		if !wait.pause(ctx) {
			return nil, context.Cause(ctx)
		}
	}
}

// Close flushes and closes the connection.
func (c *Conn) Close() {
	_ = c.nc.FlushTimeout(time.Second) // unsent messages are repeated by others
	c.nc.Close()
}

// Log is the logger of the connection's warnings.
func (c *Conn) Log() *slog.Logger { return c.log }

// failed receives errors that belong to no call.
func (c *Conn) failed(_ *nats.Conn, _ *nats.Subscription, err error) {
	if unknownUser(err) && c.denied.Swap(true) {
		return // it is tried several times per second
	}
	if !errors.Is(err, nats.ErrPermissionViolation) {
		c.log.Warn("nats", "error", err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forbidden == nil {
		close(c.refused)
	}
	c.forbidden = err
}

// within returns a context for calls to the server. It ends when the server denies permission,
// because the server does not answer a denied call.
func (c *Conn) within(
	ctx context.Context,
	most time.Duration,
) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	stop := make(chan struct{})
	go func() {
		select {
		case <-c.refused:
			cancel()
		case <-ctx.Done():
		case <-stop:
		}
	}()
	return ctx, func() { close(stop); cancel() }
}

// until calls f until it succeeds, the server denies it, or ctx ends: servers may be down for a
// while.
func (c *Conn) until(
	ctx context.Context, what string, f func(context.Context) error,
) error {
	var wait backoff
	for told := false; ; told = true {
		call, cancel := c.within(ctx, c.callTime)
		err := c.explain(what, f(call))
		cancel()
		if err == nil || Denied(err) {
			return err
		}
		if !told {
			c.log.Warn("the worker waits for its NATS server", "error", err)
		}
		if !wait.pause(ctx) {
			return context.Cause(ctx)
		}
	}
}

// PermissionError is returned when the server denies this user an operation.
type PermissionError struct{ Err error }

// Error names the denied operation.
func (e *PermissionError) Error() string {
	text := strings.TrimPrefix(e.Err.Error(), "nats: ")
	return fmt.Sprintf("fleet: this user has no permission: %s (see docs/scaling.md)", text)
}

// Unwrap returns the server's error.
func (e *PermissionError) Unwrap() error { return e.Err }

// Denied reports whether an error is that the server denies this user an operation. It then meets
// every request.
func Denied(err error) bool {
	var e *PermissionError
	return errors.As(err, &e)
}

// explain adds the subject and a hint to an error of a call.
func (c *Conn) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	c.mu.Lock()
	forbidden := c.forbidden
	c.mu.Unlock()
	switch {
	case forbidden != nil:
		return &PermissionError{forbidden}
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled),
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf(
			"fleet: %s has no JetStream: start it with -js (%w)", c.nc.ConnectedUrlRedacted(), err)
	}
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == noStorage:
		return fmt.Errorf("fleet: %s: %s has no room for a queue of %d MB on its disk or within "+
			"its max_file_store: %w", what, c.nc.ConnectedUrlRedacted(), c.lay.Bytes>>20, err)
	case refusedForGood(err):
		return fmt.Errorf("fleet: %s: %s refuses it for good, because of its max_payload, or of "+
			"max_msg_size or sealed of a stream: %w", what, c.nc.ConnectedUrlRedacted(), err)
	case silent(err):
		return fmt.Errorf("fleet: %s: the NATS server does not answer (after its disk was "+
			"full it must be restarted): %w", what, err)
	}
	return fmt.Errorf("fleet: %s: %w", what, err)
}

// silent reports whether a server did not answer in time. The client library reads objects from a
// pipe, whose time may be over before the context's.
func silent(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, os.ErrDeadlineExceeded)
}

// refusedForGood reports whether a server refused a message for a reason that does not pass: a
// permission, a limit that an operator set, or a stream that an operator sealed.
func refusedForGood(err error) bool {
	var api *jetstream.APIError
	return Denied(err) || errors.Is(err, nats.ErrMaxPayload) ||
		errors.As(err, &api) && (api.ErrorCode == tooLarge || api.ErrorCode == sealed)
}

// The server's error codes for a message above its stream's max_msg_size, and for a sealed stream.
const (
	tooLarge jetstream.ErrorCode = 10054
	sealed   jetstream.ErrorCode = 10109
)

// noStorage is the server's error code for a stream larger than its free storage.
const noStorage jetstream.ErrorCode = 10047

// unknownUser reports whether a server did not accept who signs in.
func unknownUser(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked) || errors.Is(err, nats.ErrAccountAuthExpired)
}

// connectError explains a failed connection.
func connectError(url string, err error) error {
	url = redacted(url)
	if unknownUser(err) {
		return fmt.Errorf("fleet: %s does not know this user or password: %w", url, err)
	}
	return fmt.Errorf("fleet: cannot connect to %s: %w", url, err)
}

// redacted is a URL without its password.
func redacted(url string) string {
	var out []string
	for u := range strings.SplitSeq(url, ",") {
		scheme, rest, ok := strings.Cut(u, "://")
		if !ok {
			scheme, rest = "nats", u
		}
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			rest = rest[i+1:]
		}
		out = append(out, scheme+"://"+rest)
	}
	return strings.Join(out, ",")
}

// newID returns 26 random letters and digits.
func newID() string { return strings.ToLower(rand.Text()) }

// backoff increases its wait with every pause.
type backoff struct{ wait time.Duration }

// pause returns false if ctx ends first.
func (b *backoff) pause(ctx context.Context) bool {
	b.wait = min(max(50*time.Millisecond, 2*b.wait), 2*time.Second)
	select {
	case <-time.After(b.wait):
		return true
	case <-ctx.Done():
		return false
	}
}
