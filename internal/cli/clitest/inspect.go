package clitest

import (
	"io/fs"
	"testing"

	"github.com/restore-vlm/restore/internal/builtin"
)

// Embedded writes a file of the embedded checkpoint into a folder of the test.
func Embedded(t *testing.T, name string) string {
	t.Helper()
	b, err := fs.ReadFile(builtin.FS(), name)
	if err != nil {
		t.Fatal(err)
	}
	return Written(t, name, string(b))
}
