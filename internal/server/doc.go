// Package server speaks HTTP: OpenAI's, Ollama's and Anthropic's API, health, metrics and the page.
//
//	server.go    lifecycle: opens the port before the model is loaded, and drains
//	route.go     the table of routes, and checks for all of them
//	origin.go    access: hosts, origins, keys
//	body.go      bodies of requests: limits, compression, deadlines
//	memory.go    the memory for bodies
//	generate.go  questions, by every API
//	stream.go    streamed answers
//	info.go      models, tokens, health
//	errors.go    errors in the wording of the API
//	metrics.go   counters and histograms
//	backend.go   the interface to what answers: the local engine or another machine
//
// A handler decodes, checks, asks a [Backend], and encodes.
package server
