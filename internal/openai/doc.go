// Package openai has the wire types of OpenAI's API, and pure conversions between them, requests
// and answers.
//
//	fields.go      fields of all routes: limits, sampling, stop strings, formats
//	chat.go        /v1/chat/completions
//	completion.go  /v1/completions
//	response.go    /v1/responses
//	reply.go       replies of the first two routes, whole and as chunks
//	event.go       replies of /v1/responses
package openai
