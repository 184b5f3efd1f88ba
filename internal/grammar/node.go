package grammar

// kind is the kind of value that a node matches.
type kind uint8

const (
	kindAlternatives kind = iota
	kindLiteral           // one of several texts
	kindString
	kindNumber
	kindArray
	kindSet // an array of different texts of a list
	kindObject
	kindRegular // the texts of a language
)

// node describes the values that are allowed at one place.
type node struct {
	kind   kind
	whole  bool  // kindNumber: no fraction and no exponent
	finite bool  // some value of finite length matches
	number int32 // in compiler.all

	// kindString: code points, kindArray and kindSet: items, kindRegular: max alone, code points;
	// max -1 means no limit
	min, max int32

	alts   []*node // kindAlternatives
	prefix []*node // kindArray: the first items
	items  *node   // kindArray: all items after those of prefix
	// kindLiteral: the texts; kindSet: the items' texts; kindObject: the names as written, without
	// quotes
	texts *trie

	*properties // kindObject
	*language   // kindRegular
}

// properties are the properties of an object, in order.
type properties struct {
	names  *names  // once pruned, those after the values are forbidden
	values []*node // by name
	must   []bool  // by name: the property is required
	// until holds, for each number of finished properties, the first required property that is not
	// finished, len(values) if there is none.
	until []int32
	extra *node // value of a property that has no name here; nil: none allowed
}

// names is a list of names of properties. Objects with the same names share it.
type names struct {
	list  []string
	write []bool // by name: the vocabulary can write it
	texts *trie  // nil until an object needs it
}

// plan computes until from must.
func (p *properties) plan() {
	n := len(p.values)
	p.until = make([]int32, n+1)
	next := int32(n)
	for i := n; i >= 0; i-- {
		if i < n && p.must[i] {
			next = int32(i)
		}
		p.until[i] = next
	}
}

// more reports whether a property may follow after the first i.
func (p *properties) more(i int32) bool { return int(i) < len(p.values) || p.extra != nil }

// mayEnd reports whether no required property is left after the first i.
func (p *properties) mayEnd(i int32) bool { return int(p.until[i]) == len(p.values) }

// last returns the last property that may follow after the first i.
func (p *properties) last(i int32) int32 { return min(p.until[i], int32(len(p.values)-1)) }
