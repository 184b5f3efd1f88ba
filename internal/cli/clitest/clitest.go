// Package clitest has what tests of the programs share: a terminal, a clock, and files and pictures
// with known answers.
package clitest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/tensor"
)

// Result is the output and exit code of a command line.
type Result struct {
	Code     int
	Out, Err string
}

// Unset is an environment without variables.
func Unset(string) string { return "" }

var drawn sync.Map // scenes' files by seed, each drawn once

// Drawn writes the scene of a seed into a folder of the test.
func Drawn(t *testing.T, seed int64) string {
	t.Helper()
	file, ok := drawn.Load(seed)
	if !ok {
		file, _ = drawn.LoadOrStore(seed, string(scene.New(seed).PNG()))
	}
	return Written(t, "scene.png", file.(string))
}

// Written writes a file into a folder of the test.
func Written(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Filled makes a file with fill's output.
func Filled(t *testing.T, file string, fill func(io.Writer) error) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fill(f), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Timeless is a result without the times of a report.
func Timeless(r Result) Result {
	before, _, _ := strings.Cut(r.Err, "first token")
	r.Err, _, _ = strings.Cut(before, "visual tokens")
	return r
}

// Plain is text without its line breaks.
func Plain(text string) string { return strings.Join(strings.Fields(text), " ") }

// Floats are the tensors of a file written by inspect.
func Floats(t *testing.T, file string) map[string][]float32 {
	t.Helper()
	f, err := checkpoint.OpenSafetensors(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]float32{}
	for name, x := range f.Tensors {
		if x.DType != tensor.F32 {
			t.Errorf("%q is %v, want float32", name, x)
		}
		if out[name], err = x.Float32s(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// Names lists a folder, including hidden files.
func Names(t *testing.T, dir string) (out []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		out = append(out, f.Name())
	}
	return out
}

// Number is a question whose answer the embedded model reads off the plate of scene 7.
const (
	Number       = "What number is written?"
	NumberAnswer = "82"
	NumberSeed   = 7
)
