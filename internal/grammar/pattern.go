package grammar

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// pattern is a regular expression that a string must contain, as JSON Schema searches it, or must
// not contain.
type pattern struct {
	text string // in RE2 syntax
	not  bool
}

// Limits of the patterns of a schema.
const (
	maxPattern = 4 << 10 // bytes of one
	maxClasses = 200     // classes of characters by name, \p{L}, which are large, in all
	maxSize    = 20_000  // instructions of one, with its repetitions written out
)

// patterns reads a keyword's regular expression: RE2 syntax and \uXXXX, after any number of
// lookaheads at its beginning, as Zod writes them: ^(?!\.)(?!.*\.\.)…
func (k *keyword) patterns() ([]pattern, error) {
	if k.v.kind != typeString {
		return nil, k.bad("a regular expression")
	}
	if len(k.v.text) > maxPattern {
		return nil, k.bad(fmt.Sprintf("at most %d bytes", maxPattern))
	}
	k.p.classes += strings.Count(k.v.text, `\p`) + strings.Count(k.v.text, `\P`)
	if k.p.classes > maxClasses {
		return nil, k.bad(fmt.Sprintf("at most %d times \\p in all patterns", maxClasses))
	}
	list := lookaheads(hexadecimal(k.v.text))
	for _, p := range list {
		re, err := syntax.Parse(p.text, syntax.Perl)
		if err != nil {
			return nil, k.bad("RE2 syntax: " + err.Error())
		}
		if n := size(re); n > maxSize {
			return nil, k.bad(fmt.Sprintf(
				"an expression of at most %d instructions with its repetitions written out",
				maxSize))
		}
	}
	return list, nil
}

// escapes finds ECMAScript's \uXXXX, also in pairs of surrogates, and any other escape.
var escapes = regexp.MustCompile(`(?s)\\u[dD][89abAB][[:xdigit:]]{2}\\u[dD][c-fC-F][[:xdigit:]]{2}|` +
	`\\u[[:xdigit:]]{4}|\\.`)

// hexadecimal writes \uXXXX as RE2's \x{XXXX}.
func hexadecimal(text string) string {
	return escapes.ReplaceAllStringFunc(text, func(escape string) string {
		if len(escape) < len(`\uXXXX`) {
			return escape
		}
		code, _ := strconv.ParseUint(escape[2:6], 16, 16)
		r := rune(code)
		if len(escape) > len(`\uXXXX`) {
			low, _ := strconv.ParseUint(escape[8:], 16, 16)
			r = utf16.DecodeRune(r, rune(low))
		}
		return fmt.Sprintf(`\x{%x}`, r)
	})
}

// lookaheads splits ^(?=A)(?!B)C into ^(?:A), not ^(?:B), and ^C.
func lookaheads(text string) []pattern {
	rest, ok := strings.CutPrefix(text, "^")
	if !ok || alternatives(rest) {
		return []pattern{{text: text}}
	}
	var list []pattern
	for strings.HasPrefix(rest, "(?=") || strings.HasPrefix(rest, "(?!") {
		end := closing(rest)
		if end < 0 || strings.IndexAny(rest[end+1:], "*+?{") == 0 { // RE2 refuses it
			break
		}
		list = append(list, pattern{"^(?:" + rest[3:end] + ")", rest[2] == '!'})
		rest = rest[end+1:]
	}
	if rest == "" && list != nil {
		return list
	}
	return append(list, pattern{text: "^" + rest})
}

// closing returns the index of the parenthesis that closes the one at the beginning, -1 if none
// does.
func closing(text string) int {
	at := -1
	outside(text, func(i, depth int) bool {
		if text[i] == ')' && depth == 0 {
			at = i
		}
		return at < 0
	})
	return at
}

// alternatives reports whether an expression has a | outside parentheses.
func alternatives(text string) bool {
	found := false
	outside(text, func(i, depth int) bool {
		found = found || text[i] == '|' && depth == 0
		return !found
	})
	return found
}

// outside calls f with each byte that is neither escaped nor in brackets, and with the number of
// parentheses open after it, until f returns false.
func outside(text string, f func(i, depth int) bool) {
	depth, inClass := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
			continue
		case inClass:
			inClass = c != ']'
			continue
		case c == '[':
			inClass = true
		case c == '(':
			depth++
		case c == ')':
			depth--
		}
		if !f(i, depth) {
			return
		}
	}
}

// size counts the instructions of an expression with its repetitions written out.
func size(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/2
	for _, sub := range re.Sub {
		n = min(n+size(sub), maxSize+1)
	}
	if re.Op == syntax.OpRepeat {
		n = min(n*max(re.Min, re.Max, 1), maxSize+1)
	}
	return n
}

// finder runs a pattern over a string, as a deterministic automaton whose states are computed when
// they are first needed.
type finder struct {
	a      *account
	prog   *syntax.Prog
	not    bool
	looks  bool // at the characters before and after, for \b and (?m)
	ids    map[string]int32
	states []findState
	seen   []int // by instruction: the last closure with it
	round  int
}

// findState is the state between two characters: the instructions that go on, and the character
// before.
type findState struct {
	at     []uint32
	before rune // -1: the beginning of the string
	found  bool // whatever follows
}

const (
	instBytes  = 64 // an instruction of a program, with its part of the expression
	findBytes  = 96 // a state of a finder
	charLooked = 'a'
)

// newFinder compiles a pattern.
func (a *account) newFinder(p pattern) (*finder, error) {
	re, err := syntax.Parse(p.text, syntax.Perl)
	if err != nil {
		return nil, err // not reached: the parser has checked it
	}
	before := &syntax.Regexp{Op: syntax.OpStar, Sub: []*syntax.Regexp{{Op: syntax.OpAnyChar}}}
	re = &syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{before, re}}
	if err := a.take(size(re) * instBytes); err != nil {
		return nil, err
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return nil, err
	}
	f := &finder{a: a, prog: prog, not: p.not, ids: map[string]int32{},
		seen: make([]int, len(prog.Inst))}
	for i := range prog.Inst {
		const edges = syntax.EmptyBeginLine | syntax.EmptyEndLine | syntax.EmptyWordBoundary |
			syntax.EmptyNoWordBoundary
		in := &prog.Inst[i]
		f.looks = f.looks || in.Op == syntax.InstEmptyWidth && syntax.EmptyOp(in.Arg)&edges != 0
	}
	_, err = f.state([]uint32{uint32(prog.Start)}, -1, false)
	return f, err
}

// state returns the number of a state.
func (f *finder) state(at []uint32, before rune, found bool) (int32, error) {
	if found {
		at, before = nil, charLooked
	}
	slices.Sort(at)
	at = slices.Compact(at)
	key := binary.AppendVarint(nil, int64(before))
	if found {
		key = append(key, 1)
	}
	for _, pc := range at {
		key = binary.AppendUvarint(key, uint64(pc))
	}
	id, ok := f.ids[string(key)]
	if ok {
		return id, nil
	}
	id = int32(len(f.states))
	f.ids[string(key)] = id
	f.states = append(f.states, findState{at, before, found})
	return id, f.a.take(findBytes + 8*len(at))
}

// follow calls visit for each instruction that state s reaches when the next character is c, -1 for
// the end, and reports whether the pattern matches there.
func (f *finder) follow(s *findState, c rune, visit func(in *syntax.Inst)) (matches bool) {
	f.round++
	allowed := syntax.EmptyOpContext(s.before, c)
	stack := slices.Clone(s.at)
	for len(stack) > 0 {
		pc := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if f.seen[pc] == f.round {
			continue
		}
		f.seen[pc] = f.round
		switch in := &f.prog.Inst[pc]; in.Op {
		case syntax.InstMatch:
			return true
		case syntax.InstAlt, syntax.InstAltMatch:
			stack = append(stack, in.Out, in.Arg)
		case syntax.InstCapture, syntax.InstNop:
			stack = append(stack, in.Out)
		case syntax.InstEmptyWidth:
			if syntax.EmptyOp(in.Arg)&^allowed == 0 {
				stack = append(stack, in.Out)
			}
		case syntax.InstFail:
		default:
			visit(in)
		}
	}
	return false
}

// step returns the state after a character.
func (f *finder) step(from int32, c rune) (int32, error) {
	s := f.states[from]
	if s.found {
		return from, nil
	}
	var next []uint32
	steps := 0
	found := f.follow(&s, c, func(in *syntax.Inst) {
		steps++
		if in.MatchRune(c) {
			next = append(next, in.Out)
		}
	})
	if err := f.a.take(2 * steps); err != nil {
		return 0, err
	}
	before := rune(charLooked)
	if f.looks {
		before = c
		switch {
		case syntax.IsWordChar(c):
			before = charLooked
		case c != '\n':
			before = ' '
		}
	}
	return f.state(next, before, found)
}

// accepts reports whether the string may end in a state.
func (f *finder) accepts(at int32) bool {
	s := &f.states[at]
	return (s.found || f.follow(s, -1, func(*syntax.Inst) {})) != f.not
}

// matches reports whether a whole string meets the pattern.
func (f *finder) matches(text string) (bool, error) {
	at := int32(0)
	var err error
	for _, c := range text {
		if at, err = f.step(at, c); err != nil {
			return false, err
		}
	}
	return f.accepts(at), nil
}

// sets returns the sets of characters that the pattern tells apart, as pairs of bounds.
func (f *finder) sets() (sets [][]rune) {
	for i := range f.prog.Inst {
		switch in := &f.prog.Inst[i]; in.Op {
		case syntax.InstRune, syntax.InstRune1:
			sets = append(sets, bounds(in))
		case syntax.InstRuneAnyNotNL:
			sets = append(sets, []rune{'\n', '\n'})
		}
	}
	if f.looks {
		sets = append(sets, []rune{'\n', '\n'}, []rune{'0', '9', 'A', 'Z', '_', '_', 'a', 'z'})
	}
	return sets
}

// bounds are the characters of an instruction, as pairs of bounds.
func bounds(in *syntax.Inst) []rune {
	if len(in.Rune) > 1 {
		return in.Rune
	}
	first := in.Rune[0]
	set := []rune{first, first}
	if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
		for c := unicode.SimpleFold(first); c != first; c = unicode.SimpleFold(c) {
			set = append(set, c, c)
		}
	}
	return set
}
