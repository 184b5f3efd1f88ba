package main

import "fmt"

// The kernels of arm64 do not use R18, R27 and above. Instructions that the assembler lacks are
// emitted as words.

func neon(a *asm) {
	for rows := 1; rows <= 4; rows++ {
		neonTile(a, rows)
	}
	neonDot(a)
	neonWiden(a, "F16", 0x0e217800)  // FCVTL
	neonWiden(a, "BF16", 0x2e613800) // SHLL $16
	for rows := 1; rows <= 2; rows++ {
		neonQuant(a, "q8", rows)
		neonQuant(a, "q4", rows)
		neonQuant(a, "q4m", rows)
	}
	neonVectors(a)
}

func (a *asm) loadARM(param, reg string) {
	off, ok := a.offset[param]
	if !ok {
		panic("no parameter " + param)
	}
	a.op("MOVD %s+%d(FP), %s", param, off, reg)
}

// element emits an instruction whose last operand is one lane of register m.
func (a *asm) element(base uint32, text string, d, n, m, lane int) {
	a.op("WORD $0x%08x // %s V%d, V%d, V%d[%d]",
		base|uint32(lane&1)<<21|uint32(lane>>1)<<11|uint32(m)<<16|uint32(n)<<5|uint32(d), text, d,
		n, m, lane)
}

// unary emits an instruction with one source.
func (a *asm) unary(base uint32, text string, d, n int) {
	a.op("WORD $0x%08x // %s V%d, V%d", base|uint32(n)<<5|uint32(d), text, d, n)
}

func (a *asm) fmla(d, n, m, lane int) { a.element(0x4f801000, "FMLA", d, n, m, lane) }
func (a *asm) fmul(d, n, m, lane int) { a.element(0x4f809000, "FMUL", d, n, m, lane) }
func (a *asm) sdot(d, n, m, lane int) { a.element(0x4f80e000, "SDOT", d, n, m, lane) }

// neonTile keeps rows by 16 accumulators in registers.
func neonTile(a *asm, rows int) {
	a.fn(fmt.Sprintf("tileNEON%d", rows), fmt.Sprintf(
		"is C = A·B, or C += A·B when accumulate is not 0, for %d rows of 16 columns: B "+
			"is\n// [k][16], rows of A and C are lda and ldc floats apart.", rows),
		"c *float32, ldc int, a *float32, lda int, b *float32, k int, accumulate int")
	a.loadARM("c", "R0")
	a.loadARM("ldc", "R1")
	a.op("LSL $2, R1, R1")
	a.loadARM("a", "R4")
	a.loadARM("lda", "R3")
	for r := 1; r < rows; r++ {
		a.op("ADD R3<<2, R%d, R%d", 3+r, 4+r)
	}
	a.loadARM("b", "R2")
	a.loadARM("k", "R8")
	for i := range 4 * rows {
		a.op("VEOR V%d.B16, V%d.B16, V%d.B16", i, i, i)
	}
	b := "[V16.S4, V17.S4, V18.S4, V19.S4]"
	a.op("LSR $2, R8, R9")
	a.op("CBZ R9, tail")
	a.label("loop4")
	for r := range rows {
		a.op("VLD1.P 16(R%d), [V%d.S4]", 4+r, 20+r)
	}
	for lane := range 4 {
		a.op("VLD1.P 64(R2), %s", b)
		for r := range rows {
			for j := range 4 {
				a.fmla(4*r+j, 16+j, 20+r, lane)
			}
		}
	}
	a.op("SUB $1, R9, R9")
	a.op("CBNZ R9, loop4")
	a.label("tail")
	a.op("AND $3, R8, R9")
	a.op("CBZ R9, store")
	a.label("loop1")
	a.op("VLD1.P 64(R2), %s", b)
	for r := range rows {
		a.op("VLD1R.P 4(R%d), [V%d.S4]", 4+r, 20+r)
		for j := range 4 {
			a.fmla(4*r+j, 16+j, 20+r, 0)
		}
	}
	a.op("SUB $1, R9, R9")
	a.op("CBNZ R9, loop1")
	a.label("store")
	a.loadARM("accumulate", "R9")
	for r := range rows {
		a.op("CBZ R9, write%d", r)
		a.op("VLD1 (R0), %s", b)
		for j := range 4 {
			// FADD
			a.op("WORD $0x%08x // FADD V%d, V%d, V%d", 0x4e20d400|(16+j)<<16|(4*r+j)<<5|(4*r+j),
				4*r+j, 4*r+j, 16+j)
		}
		a.label(fmt.Sprintf("write%d", r))
		a.op("VST1 [V%d.S4, V%d.S4, V%d.S4, V%d.S4], (R0)", 4*r, 4*r+1, 4*r+2, 4*r+3)
		a.op("ADD R1, R0, R0")
	}
	a.op("RET")
}

// neonDot sums four rows in two accumulators each.
func neonDot(a *asm) {
	a.fn("dotNEON4", "is dst[r] = Σ x[i]·w[r·ldw+i] for four rows and 8·n values; ldw "+
		"counts floats.",
		"dst *float32, x *float32, w *float32, ldw int, n int")
	a.loadARM("dst", "R0")
	a.loadARM("x", "R1")
	a.loadARM("w", "R4")
	a.loadARM("ldw", "R3")
	for r := 1; r < 4; r++ {
		a.op("ADD R3<<2, R%d, R%d", 3+r, 4+r)
	}
	a.loadARM("n", "R2")
	for i := range 8 {
		a.op("VEOR V%d.B16, V%d.B16, V%d.B16", i, i, i)
	}
	a.op("CBZ R2, sum")
	a.label("loop")
	a.op("VLD1.P 32(R1), [V8.S4, V9.S4]")
	for r := range 4 {
		a.op("VLD1.P 32(R%d), [V%d.S4, V%d.S4]", 4+r, 10+2*r, 11+2*r)
		a.op("VFMLA V8.S4, V%d.S4, V%d.S4", 10+2*r, 2*r)
		a.op("VFMLA V9.S4, V%d.S4, V%d.S4", 11+2*r, 2*r+1)
	}
	a.op("SUB $1, R2, R2")
	a.op("CBNZ R2, loop")
	a.label("sum")
	add := func(base uint32, text string, d, n, m int) {
		a.op("WORD $0x%08x // %s V%d, V%d, V%d", base|uint32(m)<<16|uint32(n)<<5|uint32(d), text, d,
			n, m)
	}
	for r := range 4 {
		add(0x4e20d400, "FADD", r, 2*r, 2*r+1)
	}
	const faddp = 0x6e20d400
	add(faddp, "FADDP", 0, 0, 1)
	add(faddp, "FADDP", 2, 2, 3)
	add(faddp, "FADDP", 0, 0, 2)
	a.op("VST1 [V0.S4], (R0)")
	a.op("RET")
}

// neonWiden converts eight values at a time. The instruction for the second half has bit 30 set.
func neonWiden(a *asm, format string, low uint32) {
	a.fn("widen"+format+"NEON", "is convertGo for 8·n elements.", "dst *float32, src *byte, n int")
	a.loadARM("dst", "R0")
	a.loadARM("src", "R1")
	a.loadARM("n", "R2")
	a.label("loop")
	a.op("VLD1.P 16(R1), [V0.B16]")
	a.unary(low, "widen", 1, 0)
	a.unary(low|1<<30, "widen2", 2, 0)
	a.op("VST1.P [V1.S4, V2.S4], 32(R0)")
	a.op("SUB $1, R2, R2")
	a.op("CBNZ R2, loop")
	a.op("RET")
}

// neonQuant computes with vectors of four rows by four along K. SDOT multiplies such a vector with
// one lane of four activations.
func neonQuant(a *asm, name string, rows int) {
	a.fn(fmt.Sprintf("%sNEON%d", name, rows),
		fmt.Sprintf("computes %d rows by a panel: dst[i·ldd+c] = bias[c] + Σ over blocks.", rows),
		"dst *float32, ldd int, x *byte, ldx int, w *byte, blocks int, bias *float32")
	a.loadARM("dst", "R0")
	a.loadARM("ldd", "R1")
	a.op("ADD R1<<2, R0, R1") // the second row
	a.loadARM("x", "R2")
	a.loadARM("ldx", "R3")
	a.op("ADD R2, R3, R3")
	a.loadARM("w", "R4")
	a.loadARM("blocks", "R5")
	a.loadARM("bias", "R6")
	dst, x := []string{"R0", "R1"}, []string{"R2", "R3"}
	for r := range rows {
		a.op("MOVD %s, R%d", dst[r], 9+r)
	}
	for range 2 {
		a.op("VLD1.P 64(R6), [V0.S4, V1.S4, V2.S4, V3.S4]")
		for r := range rows {
			a.op("VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R%d)", 9+r)
		}
	}
	mask, head := 0x0f, 64
	switch name {
	case "q8":
		mask = 0x80
	case "q4m":
		head = 128
	}
	a.op("MOVD $%d, R7", mask)
	a.op("VDUP R7, V31.B16")
	a.label("loop")
	for r := range rows {
		a.op("VLD1 (%s), [V%d.B16, V%d.B16]", x[r], 16+2*r, 17+2*r)
		if name == "q4" {
			a.op("MOVW %d(%s), R7", aOffset, x[r])
		}
		for j := range 8 {
			if name == "q4" {
				a.op("VDUP R7, V%d.S4", 8*r+j)
			} else {
				a.op("VEOR V%d.B16, V%d.B16, V%d.B16", 8*r+j, 8*r+j, 8*r+j)
			}
		}
	}
	a.op("ADD $%d, R4, R8", head)
	sums := func(from, half, group int) {
		for r := range rows {
			for j := range 4 {
				a.sdot(8*r+4*half+j, from+j, 16+2*r+group/4, group%4)
			}
		}
	}
	if name == "q8" {
		for g := range 8 {
			for half := range 2 {
				a.op("VLD1.P 64(R8), [V20.B16, V21.B16, V22.B16, V23.B16]")
				for j := range 4 {
					a.op("VEOR V31.B16, V%d.B16, V%d.B16", 20+j, 20+j)
				}
				sums(20, half, g)
			}
		}
	} else {
		for pair := range 4 {
			for half := range 2 {
				a.op("VLD1.P 64(R8), [V20.B16, V21.B16, V22.B16, V23.B16]")
				for j := range 4 {
					a.op("VAND V31.B16, V%d.B16, V%d.B16", 20+j, 24+j)
					a.op("VUSHR $4, V%d.B16, V%d.B16", 20+j, 20+j)
				}
				sums(24, half, 2*pair)
				sums(20, half, 2*pair+1)
			}
		}
	}
	// finish reads 32 binary16 numbers and adds to the output, for scales, the sums times both
	// scales or, for minima, their products with a number of the activations.
	finish := func(of int, sum bool) {
		a.op("VLD1.P 64(R4), [V20.B16, V21.B16, V22.B16, V23.B16]")
		for r := range rows {
			a.op("FMOVS %d(%s), F%d", of, x[r], 28+r)
			a.op("MOVD %s, R%d", dst[r], 9+r)
		}
		for j := range 8 {
			a.unary(0x0e217800|uint32(j%2)<<30, "FCVTL", 24, 20+j/2)
			for r := range rows {
				acc := 8*r + j
				a.op("VLD1 (R%d), [V26.S4]", 9+r)
				if sum {
					a.unary(0x4e21d800, "SCVTF", acc, acc)
					a.fmul(25, 24, 28+r, 0)
					a.op("VFMLA V25.S4, V%d.S4, V26.S4", acc)
				} else {
					a.fmla(26, 24, 28+r, 0)
				}
				a.op("VST1.P [V26.S4], 16(R%d)", 9+r)
			}
		}
	}
	finish(aScale, true)
	if name == "q4m" {
		finish(aOffset, false)
	}
	for r := range rows {
		a.op("ADD $%d, %s, %s", aBlock, x[r], x[r])
	}
	a.op("MOVD R8, R4")
	a.op("SUB $1, R5, R5")
	a.op("CBNZ R5, loop")
	a.op("RET")
}
