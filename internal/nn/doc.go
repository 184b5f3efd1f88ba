// Package nn holds the layers of models: Linear, norms, RoPE, attention with calibration and taps,
// embeddings, the patch embedding and the KV cache. A model file calls these and passes activations
// on; it never indexes into them.
//
// Activations are float32 slices, row-major, one row per token. Weights stay in the checkpoint's
// type (float32, float16, bfloat16) or quantised, inside the layer that owns them. Every Apply
// takes the destination first and a *kernel.Pool (nil: only the calling goroutine). Results do not
// depend on the pool's size.
package nn
