// Package wire reads JSON bodies of requests field by field and words what is wrong
// with them. The packages of both APIs, openai and ollama, stand on it.
//
// An [Object] keeps the path of every field, so that an [Error] can name it, and
// knows which fields nobody read. null is as absent.
package wire
