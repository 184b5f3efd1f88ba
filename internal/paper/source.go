package paper

import (
	"fmt"
	"path/filepath"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/eval/bench"
	"github.com/restore-vlm/restore/internal/files"
)

// Source is the data of the measurements: drawn scenes, or the benchmarks in a folder.
type Source struct {
	Name   string // for titles
	Scenes bool
	// Limit is how many questions of each benchmark to ask; 0 means all.
	Limit int

	open      map[string]*eval.Benchmark
	missing   map[string]string
	sizes     map[string]size
	path      string
	options   bench.Options
	published bool // placeholder for missing data
}

// Folder is the benchmarks in a folder: each in a subfolder with its name, or where package bench
// finds it. limit is how many questions of each to ask; 0 means all.
func Folder(path string, o bench.Options, limit int) *Source {
	return &Source{
		Name: path, Limit: limit, path: path, options: o,
		open: map[string]*eval.Benchmark{}, missing: map[string]string{},
	}
}

// drawnScenes is a benchmark of n drawn scenes.
func drawnScenes(n int) *eval.Benchmark {
	return bench.DrawnScenes(bench.SceneWorlds[0], bench.SceneSeed, n)
}

// Drawn is n drawn scenes with their questions.
func Drawn(n int) *Source {
	b := drawnScenes(n)
	return &Source{
		Name: fmt.Sprintf("%d drawn scenes", n), Scenes: true,
		open: map[string]*eval.Benchmark{b.Name: b},
	}
}

// Benchmark returns a benchmark, or why there is none.
func (s *Source) Benchmark(name string) (b *eval.Benchmark, why string) {
	if b = s.open[name]; b != nil {
		return b, ""
	}
	if why = s.missing[name]; why != "" {
		return nil, why
	}
	if s.Scenes || s.published {
		return nil, s.Name + " have no " + name + " to ask"
	}
	path := s.path
	if own := filepath.Join(path, name); files.IsFolder(own) {
		path = own
	}
	b, err := bench.Open(name, path, s.options)
	if err != nil {
		s.missing[name] = err.Error()
		return nil, err.Error()
	}
	s.open[name] = b
	return b, ""
}

// Close closes the opened benchmarks.
func (s *Source) Close() {
	for _, b := range s.open {
		if b.Close != nil {
			_ = b.Close() // only read from
		}
	}
}
