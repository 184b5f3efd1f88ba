package bytesize_test

import (
	"testing"

	"github.com/restore-vlm/restore/internal/bytesize"
)

// Ensure the units, and where they change.
func TestSizes(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{bytesize.MB(1_250_000), "1.2 MB"},
		{bytesize.MB(13_000_000_000), "13000.0 MB"},
		{bytesize.GB(50_000_000), "0.1 GB"},
		{bytesize.Of(99_999_999), "100.0 MB"},
		{bytesize.Of(100_000_000), "0.1 GB"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}
