// Package bytesize writes numbers of bytes for people.
package bytesize

import "fmt"

// MB writes n bytes as in "14.2 MB".
func MB(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// GB writes n bytes as in "14.2 GB".
func GB(n int64) string { return fmt.Sprintf("%.1f GB", float64(n)/1e9) }

// Of writes n bytes in gigabytes, below 0.1 GB in megabytes.
func Of(n int64) string {
	if n < 1e8 {
		return MB(n)
	}
	return GB(n)
}
