package cli

import (
	"math"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Ensure that a flag takes its choices and its range and nothing else, alone or in a list, and that
// a default may lie outside of the range.
func TestCheckValues(t *testing.T) {
	flags := func() *pflag.FlagSet {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		fs.String("format", "", "")
		OneOf(fs, "format", "text", "json")
		fs.StringSlice("formats", nil, "")
		OneOf(fs, "formats", "text", "json")
		fs.String("shape", "", "")
		ShowChoices(fs, "shape", "llama", "FILE")
		fs.Int("parallel", 0, "")
		fs.IntSlice("counts", nil, "")
		Within(fs, 1, 1<<20, "parallel", "counts")
		fs.Duration("time", 0, "")
		fs.Float64("share", 0, "")
		Within(fs, 0, 1, "share")
		Above(fs, 0, math.Inf(1), "time")
		fs.Float64("top-p", 1, "")
		Above(fs, 0, 1, "top-p")
		fs.Int("least", 0, "")
		Within(fs, 1, math.Inf(1), "least")
		return fs
	}
	if err := CheckValues(flags()); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for given, want := range map[string]string{
		"--format=json": "", "--formats=json,text": "", "--shape=my.json": "",
		"--parallel=1": "", "--counts=1,1048576": "", "--time=1ns": "", "--share=0": "",
		"--share=1": "", "--top-p=1": "", "--least=1000000000": "",
		"--format=jsn":       `got "jsn", want text|json, did you mean json?`,
		"--formats=text,pdf": `got "pdf", want text|json`,
		"--parallel=0":       "out of range, got 0, want 1 to 1048576",
		"--counts=1,1048577": "out of range, got 1048577, want 1 to 1048576",
		"--time=0s":          "out of range, got 0s, want more than 0",
		"--time=-1s":         "out of range, got -1s, want more than 0",
		"--share=-0.1":       "out of range, got -0.1, want 0 to 1",
		"--share=NaN":        "out of range, got NaN, want 0 to 1",
		"--top-p=0":          "out of range, got 0, want more than 0 and at most 1",
		"--top-p=1.5":        "out of range, got 1.5, want more than 0 and at most 1",
		"--least=0":          "out of range, got 0, want 1 or more",
	} {
		fs := flags()
		if err := fs.Parse([]string{given}); err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(given, "=")
		got := ""
		if err := CheckValues(fs); err != nil {
			got = strings.TrimPrefix(err.Error(), name+": ")
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", given, got, want)
		}
	}
}
