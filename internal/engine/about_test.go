package engine_test

import (
	"path/filepath"
	"testing"

	"github.com/restore-vlm/restore/internal/engine"
)

// Ensure that a model has a digest even if no features are kept on disk.
func TestAboutDigest(t *testing.T) {
	digest := func(dir string, o engine.Options) engine.Key {
		e := openWith(t, filepath.Join("testdata", dir), o, engine.Hooks{})
		return e.About().Digest
	}
	one := digest("llava15-tiny", engine.Options{Threads: 1})
	if one == (engine.Key{}) {
		t.Error("a digest of zeros")
	}
	if again := digest("llava15-tiny", engine.Options{Threads: 2}); again != one {
		t.Error("opened twice: digests differ")
	}
	if other := digest("qwen25vl-tiny", engine.Options{Threads: 1}); other == one {
		t.Error("two models: one digest")
	}
}
