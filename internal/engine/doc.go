// Package engine turns a loaded model into answers: it lays a prompt with
// pictures out as decoder rows, reduces visual tokens, keeps the KV cache of a
// conversation, samples, streams, and reports what was done and how long each
// stage took.
//
// An Engine is immutable after Open and serves any number of requests at once;
// a Conversation belongs to one caller.
package engine
