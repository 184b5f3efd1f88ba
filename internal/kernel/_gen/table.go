package main

// kernels names every generator: one line a file of package kernel.
var kernels = map[string]func(*asm){
	"amx":       amx,
	"attention": attention,
	"bfdot":     bfdot,
	"elem":      elem,
	"matmul":    matmul,
	"neon":      neon,
	"peak":      peak,
	"quant":     quant,
	"strips":    strips,
}
