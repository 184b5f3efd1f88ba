// Package builtin carries the small trained model that a fresh machine answers with:
// a LLaVA-1.5-shaped checkpoint of four million parameters, embedded in the binary.
// What it can and cannot answer is in docs/model-card.md.
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
