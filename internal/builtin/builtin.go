// Package builtin carries the small trained model that a fresh machine answers with:
// a LLaVA-1.5-shaped checkpoint of four million parameters, embedded in the binary.
// Its card, the same text as docs/model-card.md, says what it can and cannot answer.
package builtin

import (
	"embed"
	"io/fs"
)

// Name is what reports and errors call the embedded checkpoint.
const Name = "builtin"

//go:embed checkpoint
var files embed.FS

// FS returns the embedded checkpoint, a Hugging Face LLaVA directory (config.json, tokenizer.json,
// model.safetensors in float16, ...) whose files lie at the root of the returned file system.
func FS() fs.FS {
	sub, err := fs.Sub(files, "checkpoint")
	if err != nil { // fs.Sub refuses invalid names only, and this one is a constant
		panic("builtin: " + err.Error())
	}
	return sub
}

// Card is the model's card in Markdown: what it is, what it can and cannot answer, how it was
// trained, how accurate it is.
//
//go:embed card.md
var Card string
