package main

import (
	"fmt"
	"strings"
)

// The assembler of Go 1.26 lacks the AMX instructions, so the methods below emit their bytes.
// Operands are in Go's order, destination last. Tiles are numbers from 0 to 7.

// gprs maps the general registers to their numbers.
var gprs = map[string]int{
	"AX": 0, "CX": 1, "DX": 2, "BX": 3, "SP": 4, "BP": 5, "SI": 6, "DI": 7, "R8": 8, "R9": 9,
	"R10": 10, "R11": 11, "R12": 12, "R13": 13,
}

// bytes emits an instruction as its bytes. text is the instruction in Go's order.
func (a *asm) bytes(code []byte, text string) {
	var b strings.Builder
	for i, v := range code {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "BYTE $0x%02x", v)
	}
	fmt.Fprintf(&a.text, "\t%s // %s\n", b.String(), text)
}

// Prefixes of a VEX instruction of map 0F38.
const (
	vexNone = iota
	vex66
	vexF3
	vexF2
)

// vex returns the first four bytes of a 128-bit VEX instruction of map 0F38 with W 0. r, x, b and v
// are the register numbers of the reg field, the index, the base or rm field, and the third
// operand.
func vex(prefix int, opcode byte, r, x, b, v int) []byte {
	not := func(reg int) byte { return byte(reg>>3&1 ^ 1) }
	return []byte{
		0xc4, not(r)<<7 | not(x)<<6 | not(b)<<5 | 2, byte(v&15^15)<<3 | byte(prefix), opcode,
	}
}

// tileMemory encodes a load or a store of a tile. Its rows begin at base+off and are stride bytes
// apart.
func tileMemory(prefix, tile int, off int32, base, stride string) []byte {
	b, x := gprs[base], gprs[stride]
	code := append(vex(prefix, 0x4b, tile, x, b, 0), byte(2<<6|tile&7<<3|4), byte(x&7<<3|b&7))
	return append(code, byte(off), byte(off>>8), byte(off>>16), byte(off>>24))
}

func tileLoadCode(off int32, base, stride string, tile int) []byte {
	return tileMemory(vexF2, tile, off, base, stride)
}

// tileStreamCode is tileLoadCode with a hint that the data will not be read again soon.
func tileStreamCode(off int32, base, stride string, tile int) []byte {
	return tileMemory(vex66, tile, off, base, stride)
}

func tileStoreCode(tile int, off int32, base, stride string) []byte {
	return tileMemory(vexF3, tile, off, base, stride)
}

func tileZeroCode(tile int) []byte {
	return append(vex(vexF2, 0x49, tile, 0, 0, 0), byte(3<<6|tile&7<<3))
}

// tileDotBF16Code encodes: add to acc [rows, 16] the products of x [rows, 32] and w [16 pairs, 16
// columns, 2], all bfloat16.
func tileDotBF16Code(w, x, acc int) []byte {
	return append(vex(vexF3, 0x5c, acc, 0, x, w), byte(3<<6|acc&7<<3|x&7))
}

// tileDotBytesCode encodes: add to acc [rows, 16] int32 the products of x [rows, 64] and w [16
// groups, 16 columns, 4], all int8.
func tileDotBytesCode(w, x, acc int) []byte {
	return append(vex(vexF2, 0x5e, acc, 0, x, w), byte(3<<6|acc&7<<3|x&7))
}

func tileConfigCode(base string) []byte {
	return append(vex(vexNone, 0x49, 0, 0, gprs[base], 0), byte(gprs[base]&7))
}

func tileReleaseCode() []byte { return append(vex(vexNone, 0x49, 0, 0, 0, 0), 0xc0) }

func (a *asm) tileLoad(off int, base, stride string, tile int) {
	a.bytes(tileLoadCode(int32(off), base, stride, tile),
		fmt.Sprintf("TILELOADD %d(%s)(%s*1), T%d", off, base, stride, tile))
}

func (a *asm) tileStream(off int, base, stride string, tile int) {
	a.bytes(tileStreamCode(int32(off), base, stride, tile),
		fmt.Sprintf("TILELOADDT1 %d(%s)(%s*1), T%d", off, base, stride, tile))
}

func (a *asm) tileStore(tile, off int, base, stride string) {
	a.bytes(tileStoreCode(tile, int32(off), base, stride),
		fmt.Sprintf("TILESTORED T%d, %d(%s)(%s*1)", tile, off, base, stride))
}

func (a *asm) tileZero(tile int) { a.bytes(tileZeroCode(tile), fmt.Sprintf("TILEZERO T%d", tile)) }

func (a *asm) tileDotBF16(w, x, acc int) {
	a.bytes(tileDotBF16Code(w, x, acc), fmt.Sprintf("TDPBF16PS T%d, T%d, T%d", w, x, acc))
}

func (a *asm) tileDotBytes(w, x, acc int) {
	a.bytes(tileDotBytesCode(w, x, acc), fmt.Sprintf("TDPBSSD T%d, T%d, T%d", w, x, acc))
}

// tileConfig loads the tile shapes from the 64 bytes at base, which must not be SP, BP, R12 or R13.
func (a *asm) tileConfig(base string) {
	a.bytes(tileConfigCode(base), fmt.Sprintf("LDTILECFG (%s)", base))
}

func (a *asm) tileRelease() { a.bytes(tileReleaseCode(), "TILERELEASE") }
