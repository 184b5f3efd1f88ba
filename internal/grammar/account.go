package grammar

import (
	"context"
	"fmt"
)

// MaxCompiled limits what compiling a schema may take, in bytes.
const MaxCompiled = 16 << 20

// account counts the bytes of one compilation: nodes, properties, tries, the sets of schemas that a
// value must meet, and the values that are checked. It only grows, although some of it is garbage
// before the end, so that it limits the time too.
type account struct {
	ctx  context.Context
	used int
	look int // used at the next look at ctx

	finders map[pattern]*finder
}

// What things take, in bytes, with their share of maps and slices.
const (
	nodeBytes     = 256 // a node, with its key in compiler.done and its turn in compiler.todo
	schemaBytes   = 16  // a schema in a set
	propertyBytes = 16  // a property of a node
	nameBytes     = 64  // a name in a list of names, without its trie
	edgeBytes     = 16  // a node in another
	visitBytes    = 96  // a value checked against a schema
	trieNodeBytes = 32
)

// lookEvery is how many bytes are taken between two looks at the context.
const lookEvery = 16 << 10

// take counts n more bytes. It returns an error if the limit is reached or the context has ended.
func (a *account) take(n int) error {
	if n > MaxCompiled-a.used {
		return &Error{Problem: fmt.Sprintf("too complex: got more than %d MiB when compiled, "+
			"want at most that: fewer properties, alternatives or references",
			MaxCompiled>>20)}
	}
	if a.used += n; a.used < a.look {
		return nil
	}
	a.look = a.used + lookEvery
	return context.Cause(a.ctx)
}
