// Package lab measures a loaded model: how fast sequences decode together, and how long one
// waits for another.
package lab
