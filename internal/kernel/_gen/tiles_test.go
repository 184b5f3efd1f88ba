package main

import (
	"bytes"
	"testing"
)

// TestTileCodes compares with the bytes that GNU as 2.40 emits for the same instructions.
func TestTileCodes(t *testing.T) {
	for _, c := range []struct {
		text      string
		got, want []byte
	}{
		{"ldtilecfg (%rax)", tileConfigCode("AX"), []byte{0xc4, 0xe2, 0x78, 0x49, 0x00}},
		{"ldtilecfg (%r9)", tileConfigCode("R9"), []byte{0xc4, 0xc2, 0x78, 0x49, 0x01}},
		{"tilerelease", tileReleaseCode(), []byte{0xc4, 0xe2, 0x78, 0x49, 0xc0}},
		{"tilezero %tmm3", tileZeroCode(3), []byte{0xc4, 0xe2, 0x7b, 0x49, 0xd8}},
		{"tileloadd 1024(%rdi,%r8,1), %tmm7", tileLoadCode(1024, "DI", "R8", 7), []byte{0xc4, 0xa2, 0x7b, 0x4b, 0xbc, 0x07, 0x00, 0x04, 0x00, 0x00}},
		{"tileloadd 2048(%r10,%r8,1), %tmm5", tileLoadCode(2048, "R10", "R8", 5), []byte{0xc4, 0x82, 0x7b, 0x4b, 0xac, 0x02, 0x00, 0x08, 0x00, 0x00}},
		{"tileloadd -128(%rsi,%rdx,1), %tmm4", tileLoadCode(-128, "SI", "DX", 4), []byte{0xc4, 0xe2, 0x7b, 0x4b, 0xa4, 0x16, 0x80, 0xff, 0xff, 0xff}},
		{"tileloaddt1 1024(%rdi,%r8,1), %tmm6", tileStreamCode(1024, "DI", "R8", 6), []byte{0xc4, 0xa2, 0x79, 0x4b, 0xb4, 0x07, 0x00, 0x04, 0x00, 0x00}},
		{"tilestored %tmm1, 1024(%rdx,%r8,1)", tileStoreCode(1, 1024, "DX", "R8"), []byte{0xc4, 0xa2, 0x7a, 0x4b, 0x8c, 0x02, 0x00, 0x04, 0x00, 0x00}},
		{"tdpbf16ps %tmm6, %tmm4, %tmm0", tileDotBF16Code(6, 4, 0), []byte{0xc4, 0xe2, 0x4a, 0x5c, 0xc4}},
		{"tdpbf16ps %tmm7, %tmm5, %tmm3", tileDotBF16Code(7, 5, 3), []byte{0xc4, 0xe2, 0x42, 0x5c, 0xdd}},
	} {
		// GNU as encodes an offset in 8 bits if it fits, or omits it
		if !bytes.Equal(c.got, c.want) {
			t.Errorf("%s: % x, want % x", c.text, c.got, c.want)
		}
	}
}
