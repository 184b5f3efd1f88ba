package local

import (
	"container/list"
	"crypto/sha256"
	"sync"

	"github.com/restore-vlm/restore/internal/ask"
	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/grammar"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// grammarsKept is how many compiled schemas are cached; the least recently used one is evicted
// first.
const grammarsKept = 32

// grammars compiles schemas once.
type grammars struct {
	tok *tokenizer.Tokenizer
	end []int32

	vocabulary sync.Once
	v          *grammar.Vocabulary
	err        error

	mu    sync.Mutex
	kept  map[[sha256.Size]byte]*list.Element
	order list.List // of *compiled, newest first
}

// compiled is a grammar that the first caller compiles.
type compiled struct {
	key  [sha256.Size]byte
	once sync.Once
	g    *grammar.Grammar
	err  error
}

// constraint returns the constraint that keeps an answer inside a format; nil for plain text.
func (c *grammars) constraint(f *ask.Format) (engine.Constraint, error) {
	if !f.Object && f.Schema == nil {
		return nil, nil
	}
	c.vocabulary.Do(func() {
		c.v, c.err = grammar.NewVocabulary(c.tok.VocabSize(), c.tok.Piece, c.end)
	})
	if c.err != nil {
		return nil, c.err
	}
	n := c.entry(sha256.Sum256(f.Schema))
	n.once.Do(func() {
		s := grammar.AnyObject()
		if f.Schema != nil {
			s, n.err = grammar.Parse(f.Schema)
		}
		if n.err == nil {
			n.g, n.err = grammar.Compile(s, c.v)
		}
	})
	if n.err != nil {
		return nil, n.err
	}
	return n.g.NewMatcher(), nil
}

func (c *grammars) entry(key [sha256.Size]byte) *compiled {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.kept[key]; e != nil {
		c.order.MoveToFront(e)
		return e.Value.(*compiled)
	}
	if c.kept == nil {
		c.kept = map[[sha256.Size]byte]*list.Element{}
	}
	n := &compiled{key: key}
	c.kept[key] = c.order.PushFront(n)
	if c.order.Len() > grammarsKept {
		old := c.order.Remove(c.order.Back()).(*compiled)
		delete(c.kept, old.key)
	}
	return n
}
