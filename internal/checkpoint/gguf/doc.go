// Package gguf reads models in llama.cpp's format: a decoder's file, which may be split, and the
// file of its picture encoder and projector (mmproj).
//
// Format: github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3:
//
//	"GGUF", version, number of tensors, number of keys
//	keys: name, type, value
//	tensors: name, number of axes, axes (the shortest stride first), type, offset
//	padding, and the tensors' data at offsets that are multiples of general.alignment
//
// Names, row orders, configuration, tokenizer and picture processor are converted to
// the forms in Hugging Face's folders.
package gguf
