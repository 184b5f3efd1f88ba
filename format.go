package restore

import (
	"container/list"
	"context"
	"crypto/sha256"
	"errors"
	"runtime"
	"sync"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/grammar"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// Limits of the compiled schemas that are cached. The least recently used one is evicted first.
const (
	grammarsKept = 32
	grammarBytes = 64 << 20
)

// grammars compiles schemas, and keeps the results for other requests.
type grammars struct {
	vocabulary func() (*grammar.Vocabulary, error)
	building   chan struct{} // more builds at once than threads would only take more memory

	mu    sync.Mutex
	kept  map[[sha256.Size]byte]*list.Element
	order list.List // of *compiled, newest first
}

// compiled is a grammar that the first caller compiles.
type compiled struct {
	key  [sha256.Size]byte
	done chan struct{} // closed when g or err is set
	g    *grammar.Grammar
	err  error
}

func newGrammars(tok *tokenizer.Tokenizer, end []int32) *grammars {
	return &grammars{
		vocabulary: sync.OnceValues(func() (*grammar.Vocabulary, error) {
			return grammar.NewVocabulary(tok.VocabSize(), tok.Piece, end)
		}),
		building: make(chan struct{}, runtime.GOMAXPROCS(0)),
		kept:     map[[sha256.Size]byte]*list.Element{},
	}
}

// constraint keeps an answer inside a format.
type constraint struct {
	of     *grammars
	schema []byte // nil: any object
	*grammar.Matcher
}

// constraint returns the constraint of a format; nil for plain text.
func (c *grammars) constraint(f *Format) engine.Constraint {
	if !f.Object && f.Schema == nil {
		return nil
	}
	return &constraint{of: c, schema: f.Schema}
}

// Prepare implements engine.Preparer.
func (c *constraint) Prepare(ctx context.Context) error {
	g, err := c.of.grammar(ctx, c.schema)
	var refused *grammar.Error
	switch {
	case errors.As(err, &refused):
		return schemaError{refused}
	case err == nil:
		c.Matcher = g.NewMatcher(ctx)
	}
	return err
}

// schemaError says why a schema is refused. It is an errs.OptionError too.
type schemaError struct{ why *grammar.Error }

// Error returns the grammar's text.
func (e schemaError) Error() string { return e.why.Error() }

// Unwrap returns the grammar's error and the one for callers.
func (e schemaError) Unwrap() []error {
	return []error{e.why, &errs.OptionError{Name: "format", Got: "a JSON schema",
		Want: "one that can be honoured", Why: e.why.Error()}}
}

// grammar returns the grammar of a schema, from the cache or compiled now.
func (c *grammars) grammar(ctx context.Context, schema []byte) (*grammar.Grammar, error) {
	for {
		n, first := c.entry(sha256.Sum256(schema))
		if first {
			c.compile(ctx, n, schema)
			return n.g, n.err
		}
		select {
		case <-n.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		var refused *grammar.Error
		if n.err == nil || errors.As(n.err, &refused) {
			return n.g, n.err
		}
		// The other request was cancelled, or panicked: this one compiles the schema itself.
	}
}

// errUnfinished is the result of a compilation that panicked.
var errUnfinished = errors.New("schema: its compilation did not end")

// compile fills in n. Unless that succeeds, n leaves the cache, even if it panics.
func (c *grammars) compile(ctx context.Context, n *compiled, schema []byte) {
	var g *grammar.Grammar
	err := errUnfinished
	defer func() { c.settle(n, g, err) }()
	g, err = c.build(ctx, schema)
}

func (c *grammars) build(ctx context.Context, schema []byte) (*grammar.Grammar, error) {
	select {
	case c.building <- struct{}{}:
		defer func() { <-c.building }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	v, err := c.vocabulary()
	if err != nil {
		return nil, err
	}
	s := grammar.AnyObject()
	if schema != nil {
		if s, err = grammar.Parse(schema); err != nil {
			return nil, err
		}
	}
	return grammar.Compile(ctx, s, v)
}

// entry returns the entry of a schema. first says that it is new, and that the caller compiles it.
func (c *grammars) entry(key [sha256.Size]byte) (n *compiled, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.kept[key]; e != nil {
		c.order.MoveToFront(e)
		return e.Value.(*compiled), false
	}
	n = &compiled{key: key, done: make(chan struct{})}
	c.kept[key] = c.order.PushFront(n)
	return n, true
}

// settle ends the compilation of n. It removes n if there is an error, and the oldest grammars
// beyond the limits.
func (c *grammars) settle(n *compiled, g *grammar.Grammar, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.g, n.err = g, err
	close(n.done)
	if err != nil {
		c.remove(c.kept[n.key])
	}
	var number, bytes int64
	for e := c.order.Front(); e != nil; {
		next := e.Next()
		if g := e.Value.(*compiled).g; g != nil {
			number, bytes = number+1, bytes+g.Bytes()
			if number > grammarsKept || bytes > grammarBytes {
				c.remove(e)
			}
		}
		e = next
	}
}

func (c *grammars) remove(e *list.Element) {
	delete(c.kept, e.Value.(*compiled).key)
	c.order.Remove(e)
}
