// Package builtin embeds the small trained model, a LLaVA-1.5-shaped checkpoint of four million
// parameters. Its card, the same text as docs/model-card.md, says what it can and cannot answer.
package builtin

import (
	"embed"
	"io/fs"
)

// Name is the embedded checkpoint's name in reports and errors.
const Name = "builtin"

//go:embed checkpoint
var files embed.FS

// FS returns the embedded checkpoint, a Hugging Face LLaVA directory (config.json, tokenizer.json,
// model.safetensors in float16, ...), as a file system with the files at its root.
func FS() fs.FS {
	sub, err := fs.Sub(files, "checkpoint")
	if err != nil { // fs.Sub refuses only invalid names, and this one is a constant
		panic("builtin: " + err.Error())
	}
	return sub
}

// Card is the model's card in Markdown: its architecture, its questions, its training and its
// accuracy.
//
//go:embed card.md
var Card string
