// Package bench holds the benchmarks that measure visual-token reduction. Each has the prompts, the
// parser and the metrics of two harnesses: the paper's (the scripts of LLaVA and RESTORE, the
// benchmarks' own tools) and lmms-eval. They differ in nearly every rule; docs/evaluation.md
// describes how this changes scores.
//
// Data are read in their published forms: the hub's parquet files, or the folders of LLaVA's
// repository.
package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
)

// The protocols.
const (
	Paper = "paper"
	LMMS  = "lmms"
)

// Protocols lists the protocols; the first is the default.
var Protocols = []string{Paper, LMMS}

// Options select the questions of a benchmark and the rules.
type Options struct {
	Protocol string // "" is Paper
	Split    string // "" is the first of Splits

	// Images is the folder of the pictures in LLaVA's layout; "" is LLaVA's default.
	Images string

	// Prompts means that no answer will be scored, so files with only the truth may be missing.
	Prompts bool

	// Judge assigns answers to the options of a question if no rule can, for MMBench under LMMS.
	// Without it, the harness's own fallback does.
	Judge Judge
}

// definition is a benchmark's entry in the table.
type definition struct {
	name   string
	title  string
	splits []string // the first is the default
	repos  []string // on the hub
	open   func(*source) (*eval.Benchmark, error)
}

var definitions = []definition{
	gqa,
	mmbenchEN,
	mmbenchCN,
	mme,
	pope,
	scienceqa,
	vqav2,
	textvqa,
	seedbench,
	ocrbench,
}

// Names lists the benchmarks.
func Names() (names []string) {
	for _, d := range definitions {
		names = append(names, d.name)
	}
	return names
}

// find returns the entry of a benchmark; ok is false for an unknown name.
func find(name string) (d definition, ok bool) {
	i := slices.IndexFunc(definitions, func(d definition) bool { return d.name == name })
	if i < 0 {
		return d, false
	}
	return definitions[i], true
}

// Title returns a benchmark's name in papers, "" for an unknown name.
func Title(name string) string { d, _ := find(name); return d.title }

// Splits lists the splits of a benchmark; the first is the default.
func Splits(name string) []string { d, _ := find(name); return d.splits }

// Repositories lists the hub's repositories that hold a benchmark.
func Repositories(name string) []string { d, _ := find(name); return d.repos }

// Open opens a benchmark's data at path: the folder or a file of a data set of the hub, a
// folder of the hub's cache, or a folder or question file of LLaVA's layout.
func Open(name, path string, o Options) (*eval.Benchmark, error) {
	d, ok := find(name)
	if !ok {
		return nil, &errs.OptionError{
			Name: "benchmark", Got: name, Want: strings.Join(Names(), ", "), Fault: errs.Unknown,
		}
	}
	if o.Protocol == "" {
		o.Protocol = Paper
	}
	if !slices.Contains(Protocols, o.Protocol) {
		return nil, &errs.OptionError{
			Name: "protocol", Got: o.Protocol, Want: strings.Join(Protocols, " or "),
		}
	}
	if o.Split == "" {
		o.Split = d.splits[0]
	}
	if !slices.Contains(d.splits, o.Split) {
		return nil, &errs.OptionError{
			Name: "split", Got: o.Split, Want: strings.Join(d.splits, ", "),
			Why: "the splits of " + name, Fault: errs.Unknown,
		}
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d.repos = slices.Clone(d.repos)
	b, err := d.open(&source{definition: d, path: path, Options: o})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	b.Name, b.Protocol, b.Split = name, o.Protocol, o.Split
	return b, nil
}

// source tells where a benchmark's data are.
type source struct {
	definition
	path string
	Options
}

func (s *source) paper() bool { return s.Protocol == Paper }

// question finds a file of LLaVA's layout by one of its names, or returns "": path itself, in the
// folder path, or in its folder of LLaVA's repository below path.
func (s *source) question(folders []string, patterns ...string) string {
	info, err := os.Stat(s.path)
	if err != nil {
		return ""
	}
	if !info.IsDir() {
		if strings.HasSuffix(s.path, ".parquet") {
			return ""
		}
		return s.path
	}
	dirs := []string{s.path}
	for _, f := range folders {
		dirs = append(dirs, filepath.Join(s.path, f), filepath.Join(s.path, "eval", f),
			filepath.Join(s.path, "playground", "data", "eval", f))
	}
	for _, dir := range dirs {
		for _, p := range patterns {
			if found, _ := filepath.Glob(filepath.Join(escapeGlob(dir), p)); len(found) > 0 {
				return found[0]
			}
		}
	}
	return ""
}

func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
}

// nextTo finds the first of names, which may include folders, next to a file.
func nextTo(file string, names ...string) (string, error) {
	for _, n := range names {
		path := filepath.Join(filepath.Dir(file), n)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: not there, want it next to %s",
		filepath.Join(filepath.Dir(file), names[0]), filepath.Base(file))
}

// folder returns the folder of pictures in LLaVA's layout: the one in the options, or the first of
// names that exists next to the question file.
func (s *source) folder(file string, names ...string) string {
	if s.Images != "" {
		return s.Images
	}
	if dir, err := nextTo(file, names...); err == nil {
		return dir
	}
	return filepath.Join(filepath.Dir(file), names[0])
}

// hub opens a split of a data set from the hub.
func (s *source) hub(split, config string) (*dataset.Parquet, error) {
	shards, err := dataset.FindShards(s.path, s.repos...)
	if err != nil {
		return nil, err
	}
	if shards.Empty() {
		return nil, fmt.Errorf("%s: no parquet files of %s, and no LLaVA question file", s.path,
			s.repos[0])
	}
	if s.name == "mmbench-cn" && strings.Contains(shards.Dir, "MMBench_EN") {
		return nil, fmt.Errorf("%s: holds only the English questions, want %s", shards.Dir,
			s.repos[0])
	}
	return shards.Open(split, config)
}

// inFolder returns a picture in a folder; name is its path in it.
func inFolder(dir, name string) eval.Image {
	path := filepath.Join(dir, name)
	return eval.Image{Name: name, At: path, Open: func() (io.ReadCloser, error) {
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s: picture %q, want a path inside the folder", dir, name)
		}
		return os.Open(path)
	}}
}

var errNoQuestions = errors.New("no questions")

// Sentences that ask for a form of answer.
const (
	shortAnswer  = "\nAnswer the question using a single word or phrase."
	letterAnswer = "\nAnswer with the option's letter from the given choices directly."
)

// quoted lists the metric by which papers quote each benchmark.
var quoted = map[[2]string]string{
	{"gqa", Paper}: "accuracy", {"gqa", LMMS}: "exact_match",
	{"mmbench-en", Paper}: "circular", {"mmbench-en", LMMS}: "gpt_eval_score",
	{"mmbench-cn", Paper}: "circular", {"mmbench-cn", LMMS}: "gpt_eval_score",
	{"mme", Paper}: "total", {"mme", LMMS}: "mme_perception_score+mme_cognition_score",
	{"pope", Paper}: "f1", {"pope", LMMS}: "pope_f1_score",
	{"scienceqa", Paper}: "img_accuracy", {"scienceqa", LMMS}: "exact_match",
	{"vqav2", Paper}: "overall", {"vqav2", LMMS}: "exact_match",
	{"textvqa", Paper}: "accuracy", {"textvqa", LMMS}: "exact_match",
	{"seedbench", Paper}: "total", {"seedbench", LMMS}: "seed_all",
	{"ocrbench", Paper}: "total", {"ocrbench", LMMS}: "ocrbench_accuracy",
}

// Quoted returns the name and the value of the metric by which papers quote a benchmark; for MME,
// the sum of both scores. For a benchmark that is not in this package, it is the first metric.
func Quoted(name, protocol string, m eval.Metrics) (metric string, value float64, ok bool) {
	metric, known := quoted[[2]string{name, protocol}]
	if !known {
		if len(m) == 0 {
			return "", 0, false
		}
		return m[0].Name, m[0].Value, true
	}
	for part := range strings.SplitSeq(metric, "+") {
		v, found := m.Get(part)
		if !found {
			return metric, 0, false
		}
		value += v
	}
	return metric, value, true
}

// Averaged reports whether the paper's Average includes a benchmark: all except OCRBench.
func Averaged(name string) bool { return name != "ocrbench" }
