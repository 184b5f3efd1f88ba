package checkpoint

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that what Git keeps instead of a large file is named as such.
func TestMapPointer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.safetensors")
	text := "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4300000000\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := OpenSafetensors(file)
	if err == nil || !strings.Contains(err.Error(), "a Git LFS pointer") ||
		!strings.Contains(err.Error(), "git lfs pull") {
		t.Errorf("got %v, want an error about the pointer", err)
	}
}
