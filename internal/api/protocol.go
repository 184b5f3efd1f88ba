package api

import "github.com/restore-vlm/restore/internal/wire"

// Protocol is one API's form of calls, replies and errors.
type Protocol struct {
	Name   string           // in texts and schemas
	Prefix string           // of the paths on which errors have its form
	Calls  map[string]Parse // by path
	Docs   func() map[string]Doc
	Stream string // content type of streams: EventStream or LineStream
	// Error returns the body of a refusal, and ErrorSchema is the properties' JSON schema.
	Error       func(*wire.Error) any
	ErrorSchema string
}
