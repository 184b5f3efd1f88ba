// Package wire reads JSON bodies of requests field by field and words their errors. Packages openai
// and ollama use it for both APIs.
//
// An [Object] keeps the path of every field, so that an [Error] can name it, and tracks which
// fields were never read. A null field counts as absent.
package wire
