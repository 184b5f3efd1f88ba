package clitest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/restore-vlm/restore/internal/builtin"
)

// BOM is a byte-order mark.
const BOM = "\ufeff"

// InUTF16 is text in UTF-16 with the low bytes first.
func InUTF16(text string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(text)) {
		b.WriteByte(byte(u))
		b.WriteByte(byte(u >> 8))
	}
	return b.String()
}

// ModelCopy writes the embedded model into a folder, each text file after what before returns for
// its name.
func ModelCopy(t *testing.T, before func(name string) string) string {
	t.Helper()
	dir := t.TempDir()
	err := fs.WalkDir(builtin.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(builtin.FS(), name)
		if err == nil && filepath.Ext(name) == ".json" {
			data = append([]byte(before(name)), data...)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o600)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Embedded writes a file of the embedded model into a folder of the test.
func Embedded(t *testing.T, name string) string {
	t.Helper()
	return Written(t, name, BuiltinFile(t, name))
}

// BuiltinFile is a file of the embedded model.
func BuiltinFile(t *testing.T, name string) string {
	t.Helper()
	data, err := fs.ReadFile(builtin.FS(), name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
