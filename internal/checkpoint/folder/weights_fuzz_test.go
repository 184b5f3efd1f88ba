package folder

import (
	"path/filepath"
	"testing"
)

// FuzzIndex: any index is either refused or names only plain files.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(
		`{"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Add([]byte(`{"weight_map":{"a":"x","a":"y"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		files, err := parseIndex(b)
		if err != nil {
			return
		}
		for name, file := range files {
			if filepath.Base(file) != file || file == "." || file == ".." {
				t.Errorf("%q: got %q, want a plain name", name, file)
			}
		}
	})
}
