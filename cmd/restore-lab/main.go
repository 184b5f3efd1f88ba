// Command restore-lab measures what visual-token reduction costs and keeps: benchmarks, the paper's
// tables and figures, speed, and every intermediate of a forward. See `restore-lab --help`.
package main

import "os"

func main() { os.Exit(thisProgram.Run()) }
