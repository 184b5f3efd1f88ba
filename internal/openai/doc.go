// Package openai holds the wire types of OpenAI's API, and pure conversions between
// them and package ask. It serves nothing.
//
//	fields.go      what all routes share: limits, sampling, stop strings, formats
//	chat.go        /v1/chat/completions
//	completion.go  /v1/completions
//	response.go    /v1/responses
//	reply.go       the replies of the first two, whole and as chunks
//	event.go       the replies of the third
package openai
