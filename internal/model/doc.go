// Package model holds what every architecture shares: reading config values
// strictly, binding weights by name and shape, the forward pass's workspace and
// trace, and the interfaces that a model satisfies.
//
// Notation used in all model packages: rows are tokens, [T, hidden] row-major,
// weights [out, in]. Hidden state 0 is the embedding and state k the output of
// block k−1 (block numbers start at 0), so feature layer −2 of an encoder with
// L blocks is the output of block L−2.
//
// A loaded model is immutable and may serve any number of requests at once. What
// belongs to a request is in its Spans (cache, positions, sizes, calibration)
// and in the Run that it passes.
package model
