// Package engine answers requests with a loaded model. It lays out a prompt with pictures as
// decoder rows, reduces visual tokens, keeps the KV cache of a conversation, samples, streams, and
// reports what was done and how long each stage took.
//
// An Engine is immutable after Open and serves any number of requests at once; a Conversation
// belongs to one caller.
package engine
