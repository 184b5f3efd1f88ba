package restore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
	"github.com/restore-vlm/restore/internal/grammar"
)

// bytewise returns a vocabulary of single bytes.
func bytewise() (*grammar.Vocabulary, error) {
	return grammar.NewVocabulary(256, func(id int32, _ bool) []byte { return []byte{byte(id)} },
		[]int32{0})
}

func prepare(ctx context.Context, c *grammars, schema string) (
	k engine.Constraint, panicked any, err error,
) {
	defer func() { panicked = recover() }()
	k = c.constraint(&Format{Schema: []byte(schema)})
	err = k.(engine.Preparer).Prepare(ctx)
	return k, nil, err
}

// Ensure that a compilation that panics or is cancelled leaves nothing: the next request with the
// same schema compiles it.
func TestUnfinishedCompilation(t *testing.T) {
	ctx := context.Background()
	gone, cancel := context.WithCancelCause(ctx)
	cause := errors.New("gone")
	cancel(cause)
	c := newGrammars(nil, nil)
	c.vocabulary = func() (*grammar.Vocabulary, error) { panic("fault") }
	if _, v, err := prepare(ctx, c, `{"type":"integer"}`); v != "fault" {
		t.Fatalf("got %v and a panic of %v", err, v)
	}
	c.vocabulary = bytewise
	for range 20 { // a free place to build and an ended context are chosen at random
		_, v, err := prepare(gone, c, `{"type":"integer"}`)
		if err != nil && !errors.Is(err, cause) || v != nil {
			t.Fatalf("cancelled: got %v and a panic of %v", err, v)
		}
	}
	k, v, err := prepare(ctx, c, `{"type":"integer"}`)
	if err != nil || v != nil || len(k.Mask()) == 0 || len(c.building) != 0 {
		t.Fatalf("the next request: got %v and a panic of %v", err, v)
	}
}

// Ensure that requests that wait for the compilation of another request, which is cancelled,
// compile the schema themselves, and that all others share one grammar.
func TestSharedCompilation(t *testing.T) {
	c := newGrammars(nil, nil)
	c.vocabulary = bytewise
	for range cap(c.building) { // nobody may build yet
		c.building <- struct{}{}
	}
	first, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		_, _, err := prepare(first, c, `true`)
		ended <- err
	}()
	for entries(c) == 0 {
		runtime.Gosched()
	}
	others := make(chan engine.Constraint)
	for range 3 {
		go func() {
			k, _, err := prepare(context.Background(), c, `true`)
			if err != nil {
				t.Error(err)
			}
			others <- k
		}()
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	for range cap(c.building) {
		<-c.building
	}
	for range 3 {
		if k := <-others; k.(*constraint).Matcher == nil {
			t.Error("a request has no grammar")
		}
	}
	if entries(c) != 1 {
		t.Errorf("got %d grammars, want one", entries(c))
	}
}

func entries(c *grammars) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) != c.order.Len() {
		panic("the map and the list differ")
	}
	return len(c.kept)
}

// Ensure that the cache is limited in number and in bytes, and that a refused schema is not kept.
func TestCacheOfGrammars(t *testing.T) {
	c := newGrammars(nil, nil)
	c.vocabulary = bytewise
	get := func(schema string) *grammar.Grammar {
		g, err := c.grammar(context.Background(), []byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	for i := range grammarsKept + 5 {
		get(fmt.Sprintf(`{"maxLength":%d}`, i))
	}
	if n := entries(c); n != grammarsKept {
		t.Errorf("got %d grammars, want %d", n, grammarsKept)
	}
	if _, err := c.grammar(context.Background(), []byte(`false`)); err == nil ||
		entries(c) != grammarsKept {
		t.Errorf("a refused schema: got %v and %d grammars", err, entries(c))
	}
	var names []string
	for i := range 900 {
		names = append(names, fmt.Sprintf(`"%d":{"enum":[%q]}`, i, strings.Repeat("x", 40)))
	}
	large := `{"properties":{` + strings.Join(names, ",") + `},"maxLength":%d}`
	var bytes int64
	for i := 0; bytes <= grammarBytes; i++ {
		bytes += get(fmt.Sprintf(large, i)).Bytes()
	}
	bytes = 0
	for e := c.order.Front(); e != nil; e = e.Next() {
		bytes += e.Value.(*compiled).g.Bytes()
	}
	if bytes > grammarBytes || entries(c) < 2 {
		t.Errorf("got %d grammars of %d bytes, want at most %d bytes", entries(c), bytes,
			grammarBytes)
	}
}
