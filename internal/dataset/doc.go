// Package dataset reads the files in which benchmarks are published: parquet shards of the
// hub, JSON lines, JSON documents and tables with tabs.
//
// All of them yield a [Row] at a time, which knows where it came from: whatever is wrong with
// a cell is one line that names file, row and column. Nothing is held but the row at hand.
// Files are foreign: every size in them is checked before memory is allocated for it.
package dataset
