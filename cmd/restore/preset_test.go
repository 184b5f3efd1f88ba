package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
)

// Ensure that wrong presets, and defaults that every picture would be refused for, are refused at
// the start.
func TestPresetFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "presets.json")
	if err := os.WriteFile(file, []byte(`{"a":{"nvis":3}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--n-vis: got 999, want at most 576":                       {"--n-vis", "999"},
		"--preset: a: --n-vis: got 577, want at most 576":          {"--preset", `a={"n_vis":577}`},
		"--preset: a: nvis: unknown field, the nearest":            {"--preset", `a={"nvis":3}`},
		"a: nvis: unknown field, the nearest is n_vis":             {"--preset", "@" + file},
		"--preset: a: invalid JSON":                                {"--preset", "a="},
		`--preset: got "{\"n_vis\":5}", want NAME or NAME={...}`:   {"--preset", `{"n_vis":5}`},
		"--n-vis: got a mean of 64 tokens a layer":                 {"--base", "fastv"},
		"--n-vis: got auto:50, want a budget among":                {"--n-vis", "auto:50"},
		"--n-vis: got 65, want 64 or 66":                           {"--base", "downsample", "--n-vis", "65"},
		"--holov-patches: got 1000":                                {"--holov-patches", "1000"},
		"--hiprune-layer: got 99":                                  {"--base", "hiprune", "--hiprune-layer", "99"},
		"--preset: f: --n-vis: got a mean of 64":                   {"--preset", `f={"base":"fastv"}`},
		"--preset: f: --base: got pixelprune, want another":        {"--preset", `f={"base":"pixelprune"}`},
		"--preset: builtin: the name is taken":                     {"--preset", `builtin={"n_vis":5}`},
		`--detail: got "low", want none|budget`:                    {"--detail", "low"},
		`--read-timeout: cannot be used, got "5", want a time, as`: {"--read-timeout", "5"},
		"--batch-parallel: out of range, got 0, want 1 to 4096":    {"--batch-parallel", "0"},
		"--preset: a: --gamma: got 3, want 0 to 1":                 {"--preset", `a={"gamma":3}`},
		"--preset: a: --n-vis: got 64, which has no effect ":       {"--base", "none", "--preset", `a={"n_vis":64}`},
	} {
		r := commandLine(append([]string{"serve", "--port", "0"}, args...)...)
		if r.Code != cli.ExitUsage || !strings.Contains(r.Err, want) {
			t.Errorf("%v: exit %d, %s, want %s", args, r.Code, r.Err, want)
		}
	}
}

// Ensure that a batch answers lines that name a preset, with a model in this process and with a
// fleet's, whose workers get the resolved fields.
func TestPresetInBatch(t *testing.T) {
	t.Parallel() // it mostly waits for processes
	dir := requests(t, 1)
	line := `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"few",` +
		`"max_tokens":2,"messages":[{"role":"user","content":[{"type":"image_url","image_url":` +
		`{"url":"file://0.png","detail":"low"}}]}]}}` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "in.jsonl"), []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string][]string{"here": nil, "fleet": {"--nats", "embedded:0"}} {
		args := batchArgs(dir, name, append(more, "--preset", `few={"n_vis":10}`)...)
		if r := commandLine(args...); r.Code != cli.ExitOK {
			t.Fatalf("%s: exit %d, %s", name, r.Code, r.Err)
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var got struct {
			Response struct {
				Body struct {
					Restore struct {
						Visual  struct{ Kept, Merged int } `json:"visual_tokens"`
						Ignored []string                   `json:"ignored_fields"`
					}
				}
			}
		}
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		r := &got.Response.Body.Restore
		if r.Visual.Kept+r.Visual.Merged != 10 || len(r.Ignored) != 1 {
			t.Errorf("%s: got %s, want 10 tokens, detail ignored", name, data)
		}
	}
}
