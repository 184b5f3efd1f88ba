package reduce

import (
	"fmt"
	"regexp"
	"slices"
	"sync"
)

// own are the methods that Register added.
var own struct {
	sync.RWMutex
	list []*Method
}

// maxOwn bounds the methods of one program's own.
const maxOwn = 256

var ownName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// Keep is the criterion of a method of one's own: k of the in.N tokens, distinct, in the criterion's order, 0 <= k <= in.N. What of in it may
// read beside X is what Method.Needs lists. The same input must give the same answer; calls may come from several goroutines at once.
type Keep func(in *Input, k int) ([]int32, error)

// Register adds a method of one's own to the table, under m.Name, for all of the program: it then works as Options.Base like any other, alone
// and with RESTORE, and is drawn, measured and compared by whatever goes through Methods. Where m.PerView is set, keep sees each view of a
// picture on its own, without X.
//
// A name is lower-case letters, digits and hyphens, and new. The method acts after the encoder (AfterEncoder, or Site left alone) and has no
// options beyond those of all methods. Register may be called at any time, also while requests run.
func Register(m Method, keep Keep) error {
	bad := func(format string, a ...any) error { return fmt.Errorf("reduce: register: "+format, a...) }
	switch {
	case !ownName.MatchString(m.Name) || m.Name == restoreMethod.Name:
		return bad("name: got %q, want 1 to 32 lower-case letters, digits and hyphens that begin with a letter, and not %q", m.Name, restoreMethod.Name)
	case keep == nil:
		return bad("%s: got no criterion, want a function", m.Name)
	case m.Site != AfterEncoder && m.Site != 0:
		return bad("%s: site: got %q, want %q", m.Name, m.Site, AfterEncoder)
	case len(m.Params) > 0:
		return bad("%s: params: got %d, want none: a registered method has no options of its own", m.Name, len(m.Params))
	case m.Text || m.Adaptive:
		return bad("%s: got a method that reads the question or finds its budget itself, want one that does neither", m.Name)
	case m.check != nil || m.pick != nil || m.plain != nil || m.encoder != nil || m.inside != nil:
		return bad("%s: got a method of the table, want one of your own", m.Name)
	}
	for _, n := range m.Needs {
		if !slices.Contains([]Need{ClsAttn, Hidden, Keys, Grid, LastKeys}, n) {
			return bad("%s: needs: got %q, want one of %q, %q, %q, %q, %q", m.Name, n, ClsAttn, Hidden, Keys, Grid, LastKeys)
		}
	}
	c := m.clone()
	c.Site = AfterEncoder
	if c.Title == "" {
		c.Title = c.Name
	}
	c.pick = func(w *work, k int) (*selection, error) {
		kept, err := keep(w.in, k)
		if err != nil {
			return nil, fmt.Errorf("reduce: %s: %w", c.Name, err)
		}
		if len(kept) != k {
			return nil, fmt.Errorf("reduce: %s: got %d tokens, want %d", c.Name, len(kept), k)
		}
		seen := make([]bool, w.in.N)
		for _, t := range kept {
			if t < 0 || int(t) >= w.in.N || seen[t] {
				return nil, fmt.Errorf("reduce: %s: token %d is out of 0..%d or repeated", c.Name, t, w.in.N-1)
			}
			seen[t] = true
		}
		return &selection{kept: slices.Clone(kept)}, nil
	}
	own.Lock()
	defer own.Unlock()
	for _, other := range slices.Concat(methods, own.list) {
		if other.Name == c.Name {
			return bad("name: got %q, which is taken, want a new one", c.Name)
		}
	}
	if len(own.list) == maxOwn {
		return bad("%s: got %d methods before, want at most that many", c.Name, maxOwn)
	}
	own.list = append(own.list, &c)
	return nil
}

// table returns all methods: this package's and registered ones.
func table() []*Method {
	own.RLock()
	defer own.RUnlock()
	return append(methods[:len(methods):len(methods)], own.list...)
}
