// Package model holds what all architectures share: strict reading of config values, binding of
// weights by name and shape, the workspace and trace of a forward pass, and the interfaces of a
// model.
//
// Notation in all model packages: rows are tokens, [T, hidden] row-major; weights are [out, in].
// Hidden state 0 is the embedding, and state k is the output of block k−1 (blocks are counted from
// 0), so feature layer −2 of an encoder with L blocks is the output of block L−2.
//
// A loaded model is immutable and may serve any number of requests at once. The data of a request
// is in its Spans (cache, positions, sizes, calibration) and in the Run that it passes.
package model
