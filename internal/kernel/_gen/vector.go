package main

import (
	"fmt"
	"strings"
)

// source is an asm whose functions may take float32 and return a value, with helpers for vector
// loops.
type source struct {
	*asm
	labels int
}

var isas = []isa{avx2, avx512}

// f emits one instruction, or a label if the line ends in a colon.
func (s *source) f(form string, args ...any) {
	line := fmt.Sprintf(form, args...)
	if name, ok := strings.CutSuffix(line, ":"); ok {
		s.label(name)
		return
	}
	s.op("%s", line)
}

// name returns a label that is unique in this file.
func (s *source) name(stem string) string {
	s.labels++
	return fmt.Sprintf("%s%d", stem, s.labels)
}

// open begins a function: params as in Go ("dst *float32, n int, f float32"), result "" or one
// type.
func (s *source) open(name, doc, params, result string) {
	s.offset = map[string]int{}
	at := 0
	for _, p := range strings.Split(params, ", ") {
		field, n := strings.Fields(p), 8
		if field[1] == "float32" || field[1] == "int32" {
			n = 4
		}
		at = (at + n - 1) / n * n
		s.offset[field[0]] = at
		at += n
	}
	ret := ""
	if result != "" {
		at = (at + 7) / 8 * 8
		s.offset["ret"] = at
		at += map[string]int{"float32": 4, "float64": 8}[result]
		ret = " (ret " + result + ")"
	}
	fmt.Fprintf(&s.decl, "\n// %s %s\n//\n//go:noescape\nfunc %s(%s)%s\n", name, doc, name, params,
		ret)
	fmt.Fprintf(&s.text, "\n// func %s(%s)%s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, params, ret,
		name, at)
}

// arg returns the operand of a parameter or of the result.
func (s *source) arg(name string) string { return fmt.Sprintf("%s+%d(FP)", name, s.offset[name]) }

// floats loads a count of float32 and converts it to bytes.
func (s *source) floats(name, reg string) {
	s.load(name, reg)
	s.f("SHLQ $2, %s", reg)
}

// constants emits a read-only table in which each float32 pattern is repeated over 64 bytes.
func (s *source) constants(name string, bits []uint32) {
	fmt.Fprintln(&s.text)
	for i, b := range bits {
		for j := 0; j < 8; j++ {
			fmt.Fprintf(&s.text, "DATA %s<>+%d(SB)/8, $0x%08x%08x\n", name, 64*i+8*j, b, b)
		}
	}
	fmt.Fprintf(&s.text, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", name, 64*len(bits))
}

// zero clears register i.
func (s *source) zero(v isa, i int) { s.f("%s", v.zero(i)) }

// reduce combines all lanes of register i with op in X<i>; register t is overwritten.
func (s *source) reduce(v isa, op string, i, t int) {
	if v.n == 16 {
		s.f("VEXTRACTF64X4 $1, Z%d, Y%d", i, t)
		s.f("%s Y%d, Y%d, Y%d", op, t, i, i)
	}
	s.f("VEXTRACTF128 $1, Y%d, X%d", i, t)
	s.f("%s X%d, X%d, X%d", op, t, i, i)
	s.f("VPERMILPS $0x4e, X%d, X%d", i, t)
	s.f("%s X%d, X%d, X%d", op, t, i, i)
	s.f("VPERMILPS $0xb1, X%d, X%d", i, t)
	s.f("%s X%d, X%d, X%d", op, t, i, i)
}

// reduceDouble sums the float64 lanes of register i in X<i>.
func (s *source) reduceDouble(v isa, i, t int) {
	if v.n == 16 {
		s.f("VEXTRACTF64X4 $1, Z%d, Y%d", i, t)
		s.f("VADDPD Y%d, Y%d, Y%d", t, i, i)
	}
	s.f("VEXTRACTF128 $1, Y%d, X%d", i, t)
	s.f("VADDPD X%d, X%d, X%d", t, i, i)
	s.f("VPERMILPD $1, X%d, X%d", i, t)
	s.f("VADDPD X%d, X%d, X%d", t, i, i)
}

// loop emits body for every vector of n floats (count in CX, a multiple of the lanes, may be 0) and
// advances the pointers.
func (s *source) loop(v isa, pointers []string, body func()) {
	s.loops(v, pointers, 1, func(int) { body() })
}

// loops is loop for some vectors at a time, the i-th of which lies i vectors after the pointers. It
// leaves in CX how many floats are left, less one step's.
func (s *source) loops(v isa, pointers []string, vectors int, body func(i int)) {
	again, done := s.name("loop"), s.name("done")
	s.f("SUBQ $%d, CX", vectors*v.n)
	s.f("JLT %s", done)
	s.f("%s:", again)
	for i := range vectors {
		body(i)
	}
	for _, p := range pointers {
		s.f("ADDQ $%d, %s", vectors*v.bytes(), p)
	}
	s.f("SUBQ $%d, CX", vectors*v.n)
	s.f("JGE %s", again)
	s.f("%s:", done)
}
