// Package stats summarises measurements: quantiles of times, 95 % intervals of accuracies and of
// their differences.
package stats
