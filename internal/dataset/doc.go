// Package dataset reads the file formats of published benchmarks: parquet shards of the hub, JSON
// lines, JSON documents and tab-separated tables.
//
// All of them yield one [Row] at a time, which knows its origin: an error in a cell is one line
// that names file, row and column. Only the current row is held in memory. Files are not trusted:
// every size in them is checked before memory is allocated.
package dataset
