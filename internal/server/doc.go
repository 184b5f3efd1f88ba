// Package server speaks HTTP: OpenAI's and Ollama's API, health, metrics and the page.
//
//	server.go    lifecycle: the port is open before the model is, and drains
//	route.go     the table of routes, and what holds for all of them
//	origin.go    who may ask: hosts, origins, keys
//	body.go      bodies of requests: limits, compression, deadlines
//	generate.go  questions, by every API
//	stream.go    answers as they are written
//	info.go      models, tokens, health
//	errors.go    what is wrong, in the words of the API
//	metrics.go   counters and histograms
//	backend.go   what answers: the local engine or another machine
//
// A handler decodes, checks, asks a [Backend], and encodes.
package server
