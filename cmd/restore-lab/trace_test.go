package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that a folder with only config.json and weights can be traced with a method inside the
// decoder, under the reference's names.
func TestTraceInsideTheDecoder(t *testing.T) {
	from := filepath.Join("..", "..", "internal", "engine", "testdata", "inmodel-tiny")
	dir := t.TempDir()
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out.safetensors")
	for flags, names := range map[string][]string{
		"--schedule 2:0.3333333333333333 --restore=false --compat released":  {"stage.0.score", "stage.0.keep", "stage.0.keep_original"},
		"--schedule 2:12 --compat paper --gamma 0.5 --decode-distance=false": {"stage.0.score", "stage.0.kept", "stage.0.size", "stage.0.position"},
	} {
		r := commandLine(
			append(
				[]string{
					"trace", "-m", dir, "--in", filepath.Join(from, "prompt.ref"), "--tokens", "3", "--out", out, "--base", "fastv",
				}, strings.Fields(flags)...)...)
		if r.Code != cli.ExitOK {
			t.Fatalf("%s: exit %d, stderr %q", flags, r.Code, r.Err)
		}
		f, err := checkpoint.OpenSafetensors(out)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(names, "gen.tokens", "gen.logits", "cache.len") {
			if f.Tensors[name] == nil {
				t.Errorf("%s: no %s", flags, name)
			}
		}
		lens, err := f.Tensors["cache.len"].Int64s()
		if err != nil || fmt.Sprint(lens) != "[52 52 28 28 28 28 28 28]" {
			t.Errorf("%s: keys per layer: %v, %v", flags, lens, err)
		}
		f.Close()
	}
}

// Ensure that a trace can be the input of a trace, then gives the same tensors, and contains a
// reduction only if one is requested.
func TestTrace(t *testing.T) {
	dir, picture := t.TempDir(), clitest.Drawn(t, clitest.NumberSeed)
	trace := func(name string, args ...string) []byte {
		t.Helper()
		file := filepath.Join(dir, name)
		if r := commandLine(append([]string{"trace", "--out", file},
			args...)...); r.Code != cli.ExitOK ||
			r.Out+r.Err != "" {
			t.Fatalf("%v: exit %d, stdout %q, stderr %q", args, r.Code, r.Out, r.Err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	full := trace("a", "--image", picture, "-p", clitest.Number, "--tokens", "3")
	if !bytes.Equal(full, trace("b", "--in", filepath.Join(dir, "a"), "--tokens", "3")) {
		t.Error("a trace that is fed back gives another trace")
	}
	reduced := trace("c", "--in", filepath.Join(dir, "a"), "--base", "holov", "--n-vis", "64")
	for _, c := range []struct {
		what        string
		file        []byte
		has, hasNot []string
	}{
		{"unreduced", full, []string{"input_ids", "pixel_values", "vision.selected", "projector.out", "embeds", "logits", "gen.tokens", "gen.logits"},
			[]string{"reduce.kept"}},
		{"reduced", reduced, []string{"logits", "reduce.kept", "reduce.anchors", "reduce.group", "reduce.size", "reduce.position", "reduce.features"},
			[]string{"gen.tokens"}},
	} {
		tensors, err := checkpoint.ReadSafetensors(c.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.has {
			if tensors[name] == nil {
				t.Errorf("%s: lacks %s", c.what, name)
			}
		}
		for _, name := range c.hasNot {
			if tensors[name] != nil {
				t.Errorf("%s: holds %s", c.what, name)
			}
		}
	}
}
