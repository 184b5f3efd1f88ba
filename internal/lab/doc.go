// Package lab measures and describes a loaded model: how fast sequences decode together and how
// long one waits for another, what one question takes in time and memory, every intermediate of a
// forward, how much attention pictures receive, how far a reduction is from its picture, and
// FitPrune's recipe. It stands on what package engine exports for that: Hooks, Look and Do. Nothing
// that answers requests imports it.
package lab
