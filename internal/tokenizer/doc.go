// Package tokenizer reads Hugging Face tokenizer.json files and turns text into ids and back.
//
// A text passes these stages, each a section of the file and a source file of this package:
//
//	added.go      added tokens are cut out of the raw text, leftmost and longest first
//	normalize.go  each remaining run is normalised (Prepend, Replace, NFC, …)
//	added.go      added tokens with "normalized": true are cut out of the normalised runs
//	split.go      pre-tokenizers split the runs into words (Metaspace, Split, ByteLevel, …)
//	bpe.go        byte pair encoding merges the characters of each word into tokens
//	process.go    the post-processor adds <s> and its like
//
// decode.go converts ids back to text, stream.go one id at a time.
//
// Every stage keeps, for each byte, the range of the original text that it came from, so offsets
// are UTF-8 bytes of the original text, even after normalisation.
//
// BPE models are supported, with byte fallback (LLaMA, Mistral) or on bytes (GPT-2, Qwen2). If a
// component has an unsupported type, Parse returns an error that names it. Truncation and padding
// settings of the file are not applied: a prompt is encoded completely.
//
// Files are not trusted: sizes, ids and nesting are limited, and a regular expression from the file
// has a time limit, unless it is one of the published patterns, which have their own matchers.
package tokenizer
