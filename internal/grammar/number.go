package grammar

import (
	"cmp"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// decimal is a number as written: its digits before and after the point, without zeros at the
// beginning and the end. Zero has no digits and is not negative.
type decimal struct {
	neg         bool
	whole, frac string
}

// farDigits is how many digits a decimal has at most before and after the point. A number beyond is
// rounded to one that compares alike with all numbers of at most 17 digits and a shorter exponent.
const farDigits = 400

// farShift limits exponents: the digits of no schema move a number beyond it back.
const farShift = 1 << 20

// significant splits a number in JSON's notation: its digits from the first to the last that is not
// 0, and how many of them are before the point. Zero has no digits, and is not negative.
func significant(text string) (neg bool, digits string, point int) {
	text, neg = strings.CutPrefix(text, "-")
	digits, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	whole, frac, _ := strings.Cut(digits, ".")
	shift, _ := strconv.Atoi(exponent) // of "" it is 0, beyond its range the nearest in it
	digits = strings.TrimLeft(whole+frac, "0")
	point = len(digits) - len(frac) + max(-farShift, min(shift, farShift))
	if digits = strings.TrimRight(digits, "0"); digits == "" {
		return false, "", 0
	}
	return neg, digits, point
}

// parseDecimal reads a number in JSON's notation.
func parseDecimal(text string) decimal {
	neg, digits, point := significant(text)
	d := decimal{neg: neg}
	switch {
	case digits == "":
	case point > farDigits:
		d.whole = "1" + strings.Repeat("0", farDigits)
	case point < -farDigits:
		d.frac = strings.Repeat("0", farDigits) + "1"
	case point <= 0:
		d.frac = strings.Repeat("0", -point) + digits
	case point >= len(digits):
		d.whole = digits + strings.Repeat("0", point-len(digits))
	default:
		d.whole, d.frac = digits[:point], digits[point:]
	}
	return d
}

// compare compares two numbers.
func (d decimal) compare(e decimal) int {
	if d.neg != e.neg {
		if d.neg {
			return -1
		}
		return 1
	}
	c := cmp.Or(cmp.Compare(len(d.whole), len(e.whole)), cmp.Compare(d.whole, e.whole),
		cmp.Compare(d.frac, e.frac))
	if d.neg {
		return -c
	}
	return c
}

// zero reports whether the number is 0.
func (d decimal) zero() bool { return d.whole == "" && d.frac == "" }

// limit is a bound of a number.
type limit struct {
	decimal
	open bool // the bound itself is not allowed
}

// outside reports whether no number of at most 17 digits and two digits of exponent is beyond a
// bound, so that it has no effect.
func (l limit) outside() bool { return len(l.whole) > maxDigits+99 }

// numbers is what the keywords of numbers demand.
type numbers struct {
	lo, hi *limit // nil: none
	of     int64  // multipleOf; 0: absent
}

// any reports whether the keywords have an effect.
func (n *numbers) any() bool { return n.lo != nil || n.hi != nil || n.of != 0 }

// least sets the lower bound, unless there is a higher one.
func (n *numbers) least(l *limit) {
	if l == nil {
		return
	}
	if n.lo != nil {
		if c := l.compare(n.lo.decimal); c < 0 || c == 0 && n.lo.open {
			return
		}
	}
	n.lo = l
}

// most sets the upper bound, unless there is a lower one.
func (n *numbers) most(l *limit) {
	if l == nil {
		return
	}
	if n.hi != nil {
		if c := l.compare(n.hi.decimal); c > 0 || c == 0 && n.hi.open {
			return
		}
	}
	n.hi = l
}

// maxMultiple limits multipleOf: an automaton has a state for each remainder.
const maxMultiple = 10_000

// narrow adds the demands of another schema. It returns false if no automaton is small enough.
func (n *numbers) narrow(o *numbers) bool {
	n.least(o.lo)
	n.most(o.hi)
	switch {
	case n.of == 0:
		n.of = o.of
	case o.of != 0:
		a, b := n.of, o.of
		for b != 0 {
			a, b = b, a%b
		}
		n.of = n.of / a * o.of
	}
	return n.of <= maxMultiple
}

// admits reports whether a number of a schema meets the demands.
func (n *numbers) admits(text string) bool {
	d := parseDecimal(text)
	if l := n.lo; l != nil {
		if c := d.compare(l.decimal); c < 0 || c == 0 && l.open {
			return false
		}
	}
	if l := n.hi; l != nil {
		if c := d.compare(l.decimal); c > 0 || c == 0 && l.open {
			return false
		}
	}
	if n.of == 0 || d.zero() {
		return true
	}
	whole, ok := new(big.Int).SetString(d.whole, 10)
	return ok && d.frac == "" && whole.Mod(whole, big.NewInt(n.of)).Sign() == 0
}

// bound reads minimum and its kin.
func (k *keyword) bound(open bool, set func(*limit)) error {
	if k.v.kind != typeNumber {
		return k.bad("a number")
	}
	if l := (&limit{parseDecimal(k.v.text), open}); !l.outside() {
		set(l)
	} else if l.neg == (k.key == "maximum" || k.key == "exclusiveMaximum") {
		return k.bad(fmt.Sprintf("a bound that numbers of at most %d digits can meet", maxDigits))
	}
	return nil
}

// multiple reads multipleOf.
func (k *keyword) multiple() error {
	d := parseDecimal(k.v.text)
	n, err := strconv.ParseInt(d.whole, 10, 64)
	if k.v.kind != typeNumber || err != nil || d.frac != "" || d.neg || n > maxMultiple {
		return k.bad(fmt.Sprintf("a whole number from 1 to %d", maxMultiple))
	}
	k.s.numbers.of = n
	return nil
}

// openDigits limits the digits of a number with a fraction if a bound itself is not allowed: with
// more of them it may round to the bound in float64.
const openDigits = 15

// numeral is the automaton of numbers with bounds, at most 17 digits, no exponent.
type numeral struct {
	numbers
	whole  bool // no fraction
	digits int8 // at most, with a fraction
	ids    map[numeralState]int32
	states []numeralState
}

// numeralState is the state after some characters of a number.
type numeralState struct {
	phase  phase // as in kindNumber
	neg    bool
	digits int8
	// how the digits compare with the first ones of the bounds, without signs
	lo, hi int8
	place  int8 // digits after the point, as long as they are compared
	rest   int32
}

// numeralChars are the characters of a number, a class each.
const numeralChars = "-.0123456789"

func newNumeral(n numbers, whole bool) *numeral {
	m := &numeral{numbers: n, whole: whole || n.of != 0, digits: maxDigits,
		ids: map[numeralState]int32{}}
	if n.lo != nil && n.lo.open || n.hi != nil && n.hi.open {
		m.digits = openDigits
	}
	m.state(numeralState{})
	return m
}

func (m *numeral) state(s numeralState) int32 {
	id, ok := m.ids[s]
	if !ok {
		id = int32(len(m.states))
		m.ids[s] = id
		m.states = append(m.states, s)
	}
	return id
}

// magnitude returns the bounds of the digits, without signs: of a negative number the upper one is
// the lower one. possible is false if no number of the sign is within them; a bound that all
// numbers of the sign meet is nil.
func (m *numeral) magnitude(neg bool) (lo, hi *limit, possible bool) {
	lo, hi = m.lo, m.hi
	if neg {
		lo, hi = m.hi, m.lo
	}
	if hi != nil && hi.neg != neg && (neg || !hi.zero()) { // -0 is not written for 0
		return nil, nil, false
	}
	if lo != nil && lo.neg != neg && !lo.zero() {
		lo = nil
	}
	return lo, hi, true
}

// step implements [machine].
func (m *numeral) step(state int32, c rune) (int32, error) {
	s := m.states[state]
	digit := c >= '0' && c <= '9'
	switch {
	case c == '-':
		if s.phase != begin {
			return -1, nil
		}
		s.phase, s.neg = afterMinus, true
		return m.state(s), nil
	case c == '.':
		if s.phase != inWhole && s.phase != afterZero || m.whole || s.digits >= m.digits {
			return -1, nil
		}
		s.lo, s.hi = m.compared(&s)
		s.phase = afterPoint
		return m.state(s), nil
	case !digit || s.digits == maxDigits || s.phase == afterZero,
		s.phase >= afterPoint && s.digits >= m.digits:
		return -1, nil
	}
	lo, hi, possible := m.magnitude(s.neg)
	if !possible {
		return -1, nil
	}
	s.digits++
	switch s.phase {
	case begin, afterMinus, inWhole:
		if s.phase = inWhole; c == '0' && s.digits == 1 {
			s.phase = afterZero
			break
		}
		at := int(s.digits) - 1
		s.lo, s.hi = lo.digit(s.lo, at, c, false), hi.digit(s.hi, at, c, false)
		if m.of != 0 {
			s.rest = int32((int64(s.rest)*10 + int64(c-'0')) % m.of)
		}
	default:
		at := int(s.place)
		s.phase = inFraction
		s.lo, s.hi = lo.digit(s.lo, at, c, true), hi.digit(s.hi, at, c, true)
		if s.place++; s.lo != 0 && s.hi != 0 {
			s.place = 0
		}
	}
	return m.state(s), nil
}

// digit compares a further digit, number at of its part, with the bound's, after the comparison c
// of those before. Without a bound the result is 1.
func (l *limit) digit(c int8, at int, digit rune, fraction bool) int8 {
	switch {
	case l == nil:
		return 1
	case fraction && c != 0:
		return c
	case fraction && at < len(l.frac):
		return int8(cmp.Compare(byte(digit), l.frac[at]))
	case fraction:
		return int8(cmp.Compare(digit, '0'))
	case at >= len(l.whole):
		return 1
	case c != 0:
		return c
	}
	return int8(cmp.Compare(byte(digit), l.whole[at]))
}

// compared compares the part before the point, which is complete, with the bounds' parts.
func (m *numeral) compared(s *numeralState) (lo, hi int8) {
	of := func(l *limit, c int8) int8 {
		digits := int(s.digits)
		if s.phase == afterZero {
			digits = 0
		}
		switch {
		case l == nil:
			return 1
		case digits != len(l.whole):
			return int8(cmp.Compare(digits, len(l.whole)))
		}
		return c
	}
	l, h, _ := m.magnitude(s.neg)
	return of(l, s.lo), of(h, s.hi)
}

// accepts implements [machine].
func (m *numeral) accepts(state int32) bool {
	s := m.states[state]
	l, h, possible := m.magnitude(s.neg)
	lo, hi := s.lo, s.hi
	switch s.phase {
	case afterZero, inWhole:
		lo, hi = m.compared(&s)
	case inFraction:
	default:
		return false
	}
	return possible && s.rest == 0 && l.met(lo, int(s.place), true) &&
		h.met(hi, int(s.place), false)
}

// met reports whether a number meets the bound, if its digits compare as c with the bound's, of
// which place after the point were compared.
func (l *limit) met(c int8, place int, lower bool) bool {
	if l == nil {
		return true
	}
	if c == 0 && len(l.frac) > place {
		c = -1
	}
	return c > 0 && lower || c < 0 && !lower || c == 0 && !l.open
}
