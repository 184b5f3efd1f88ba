// Package lab measures and describes a loaded model: how fast sequences decode together and how
// long one waits for another, the time and memory of one question, every intermediate of a forward,
// how much attention pictures receive, how far a reduction is from its picture, its operations as
// the paper counts them, and FitPrune's recipe. It uses what package engine exports for it: Hooks,
// Look and Do. No package that answers requests imports it.
package lab
