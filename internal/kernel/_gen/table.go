package main

// kernels maps the name of each kernel file of package kernel to its generator.
var kernels = map[string]func(*asm){
	"amx":       amx,
	"attention": attention,
	"bfdot":     bfdot,
	"elem":      elem,
	"matmul":    matmul,
	"neon":      neon,
	"peak":      peak,
	"quant":     quant,
	"spans":     spans,
	"words":     words,
}
