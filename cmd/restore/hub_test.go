package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/builtin"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/cli/clitest"
	"github.com/restore-vlm/restore/internal/hub"
	"github.com/restore-vlm/restore/internal/hub/hubtest"
)

const hubCommit = "0123456789abcdef0123456789abcdef01234567"

// embeddedRepo is a repository of the embedded model's files.
func embeddedRepo(t *testing.T) *hubtest.Repo {
	t.Helper()
	repo := &hubtest.Repo{Commit: hubCommit, Refs: []string{"main"}, Large: 100_000,
		Files: map[string][]byte{"README.md": []byte("#")}}
	err := fs.WalkDir(builtin.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			repo.Files[path], err = fs.ReadFile(builtin.FS(), path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// Ensure that a file of the cache that was cut is noticed by run, without a request, and mended by
// pull; that --verify finds content that differs, and that a file whose name no system could keep
// stops no pull.
func TestDamagedCache(t *testing.T) {
	repo := embeddedRepo(t)
	repo.Files["notes: a?b.txt"] = []byte("x")
	h := hubtest.New(map[string]*hubtest.Repo{"me/scenes": repo})
	defer h.Close()
	home := t.TempDir()
	env := map[string]string{"HOME": home, "HF_ENDPOINT": h.URL}
	run := func(args ...string) clitest.Result {
		t.Helper()
		return with(context.Background(), env, "", args...)
	}
	if r := run("pull", "me/scenes"); r.Code != cli.ExitOK {
		t.Fatalf("pull: %+v", r)
	}
	weights := filepath.Join(home, ".cache", "huggingface", "hub", "models--me--scenes",
		"snapshots", hubCommit, "model.safetensors")
	right, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(weights, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mended := func(how string) {
		t.Helper()
		if data, err := os.ReadFile(weights); err != nil || !bytes.Equal(data, right) {
			t.Errorf("%s: %d bytes, %v, want those of the hub", how, len(data), err)
		}
	}
	ask := []string{"run", "-m", "me/scenes", "-p", "Hello", "-n", "2"}
	cut := fmt.Sprintf("model.safetensors: damaged in the cache, got %d bytes, want %d",
		len(right)/2, len(right))
	write(right[:len(right)/2])
	if r := run(ask...); r.Code != cli.ExitFailure || !strings.Contains(r.Err, cut) ||
		!strings.Contains(r.Err, "'restore pull me/scenes' downloads it again") {
		t.Errorf("run with a cut file: %+v", r)
	}
	if r := run("pull", "me/scenes"); r.Code != cli.ExitOK ||
		!strings.Contains(r.Err, cut+": downloading it again") {
		t.Errorf("pull with a cut file: %+v", r)
	}
	mended("pull")
	other := bytes.Clone(right)
	other[len(other)-1] ^= 1
	write(other)
	if r := run("pull", "me/scenes"); r.Code != cli.ExitOK || strings.Contains(r.Err, "damaged") {
		t.Errorf("pull of a file of the right size: %+v", r)
	}
	if r := run("pull", "me/scenes", "--verify"); r.Code != cli.ExitOK ||
		!strings.Contains(r.Err, "model.safetensors: damaged in the cache: the sha256 of the ") {
		t.Errorf("pull --verify: %+v", r)
	}
	mended("pull --verify")
	r := run("pull", "me/scenes", "--verify")
	if r.Code != cli.ExitOK || strings.Contains(r.Err, "damaged") ||
		!strings.Contains(r.Err, "files are right") {
		t.Errorf("pull --verify of whole files: %+v", r)
	}
	// another program has downloaded it, so its size is known to the hub alone
	sizes, err := filepath.Glob(filepath.Join(home, ".cache", "huggingface", "hub", ".locks", "*",
		"*.size"))
	if err != nil || len(sizes) == 0 {
		t.Fatalf("%q, %v", sizes, err)
	}
	for _, file := range sizes {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	write(right[:len(right)/2])
	if r := run("pull", "me/scenes"); r.Code != cli.ExitOK || !strings.Contains(r.Err, cut) {
		t.Errorf("pull of another program's file: %+v", r)
	}
	mended("pull of another program's file")
}

// Ensure that a new user with an empty home folder can pull a model, run it, run it again offline,
// list it and delete it.
func TestNewUser(t *testing.T) {
	h := hubtest.New(map[string]*hubtest.Repo{"me/scenes": embeddedRepo(t)})
	defer h.Close()
	home, picture := t.TempDir(), clitest.Drawn(t, 7)
	env := map[string]string{"HOME": home, "HF_ENDPOINT": h.URL}
	offline := map[string]string{"HOME": home, "HF_HUB_OFFLINE": "1"}
	run := func(env map[string]string, args ...string) clitest.Result {
		t.Helper()
		return with(context.Background(), env, "", args...)
	}
	ask := []string{"run", "-m", "me/scenes", "--image", picture, "-p", "What number is written?"}
	want := commandLine("run", "--image", picture, "-p", "What number is written?")

	if r := run(env, ask...); r.Code != cli.ExitFailure ||
		!strings.Contains(r.Err, "'restore pull me/scenes'") || strings.Count(r.Err, "\n") != 1 {
		t.Errorf("before the pull: got %+v, want exit 1 and the command", r)
	}
	r := run(env, "pull", "me/scenes")
	dir := filepath.Join(home, ".cache", "huggingface", "hub", "models--me--scenes", "snapshots",
		hubCommit)
	if r.Code != cli.ExitOK || r.Out != dir+"\n" {
		t.Fatalf("pull: got %+v, want the path %s", r, dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "README.md")); err == nil {
		t.Error("README.md was downloaded")
	}
	for _, env := range []map[string]string{env, offline} {
		h.Forget()
		if r := run(env, ask...); r.Code != cli.ExitOK || r.Out != want.Out {
			t.Errorf("run: got %+v, want the answer of the embedded model", r)
		}
		if asked := h.Asked(); len(asked) > 0 {
			t.Errorf("run of what is in the cache asked the hub: %v", asked)
		}
	}
	if r := run(offline, "run", "-m", "me/other", "--pull", "--image", picture, "-p",
		"x"); r.Code != cli.ExitFailure || !strings.Contains(r.Err, "HF_HUB_OFFLINE") {
		t.Errorf("offline: got %+v", r)
	}
	if r := run(offline, "list"); r.Code != cli.ExitOK || !strings.Contains(r.Out, "me/scenes") ||
		!strings.Contains(r.Out, "now") {
		t.Errorf("list: got %+v", r)
	}
	var listed struct{ Models []hub.Repo }
	if r := run(offline, "list", "--json"); json.Unmarshal([]byte(r.Out), &listed) != nil ||
		len(listed.Models) != 1 || listed.Models[0].Snapshots[0].Commit != hubCommit {
		t.Errorf("list --json: got %+v", r)
	}
	if r := run(env, "rm", "me/scenes"); r.Code != cli.ExitOK {
		t.Errorf("rm: got %+v", r)
	}
	for _, name := range []string{"me/scenes", "gpt2"} {
		r := run(env, "rm", name)
		if r.Code != cli.ExitFailure || !strings.Contains(r.Err, "not in the cache") {
			t.Errorf("rm of what is not there: got %+v, want exit 1", r)
		}
	}
	if r := run(env, "list"); r.Code != cli.ExitOK || r.Out != "" {
		t.Errorf("list of nothing: got %+v", r)
	}
	if r := run(env, append(ask, "--pull")...); r.Code != cli.ExitOK || r.Out != want.Out {
		t.Errorf("run --pull: got %+v, want the answer", r)
	}
}

// Ensure that pulling an original LLaVA checkpoint also pulls the needed part of its vision tower.
func TestPullTower(t *testing.T) {
	index := func(names string) []byte { return []byte(`{"weight_map":{` + names + `}}`) }
	tower := &hubtest.Repo{Commit: hubCommit, Refs: []string{"main"}, Files: map[string][]byte{
		"config.json": []byte("{}"), "preprocessor_config.json": []byte("{}"),
		"pytorch_model.bin": []byte("weights"), "vocab.json": []byte("{}")}}
	for what, c := range map[string]struct {
		index []byte
		want  []string
	}{
		"outside": {index(`"model.mm_projector.0.weight":"m.bin"`),
			[]string{"config.json", "preprocessor_config.json", "pytorch_model.bin", "vocab.json"}},
		"inside": {index(`"model.vision_tower.vision_tower.x":"m.bin"`),
			[]string{"config.json", "preprocessor_config.json"}},
	} {
		t.Run(what, func(t *testing.T) {
			h := hubtest.New(map[string]*hubtest.Repo{"openai/clip": tower,
				"me/llava": {Commit: hubCommit, Refs: []string{"main"}, Files: map[string][]byte{
					"config.json":                  []byte(`{"mm_vision_tower":"openai/clip"}`),
					"pytorch_model.bin.index.json": c.index, "m.bin": []byte("x")}}})
			defer h.Close()
			home := t.TempDir()
			r := with(context.Background(),
				map[string]string{"HF_HOME": home, "HF_ENDPOINT": h.URL}, "",
				"pull", "me/llava")
			if r.Code != cli.ExitOK || !strings.Contains(r.Err, "openai/clip") {
				t.Fatalf("got %+v", r)
			}
			client, err := hub.New(func(name string) string {
				return map[string]string{"HF_HOME": home}[name]
			})
			if err != nil {
				t.Fatal(err)
			}
			folder, err := client.Folder(hub.Name{Repo: "openai/clip"}) // as opening the model does
			if err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(folder)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range entries {
				got = append(got, e.Name())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Ensure that --pull fetches the vision tower of an original LLaVA checkpoint too, also where only
// the tower is missing, and not if another one is given.
func TestRunPullsTower(t *testing.T) {
	h := hubtest.New(map[string]*hubtest.Repo{
		"openai/clip": {Commit: hubCommit, Refs: []string{"main"}, Files: map[string][]byte{
			"config.json": []byte("{}"), "pytorch_model.bin": []byte("x")}},
		"me/llava": {Commit: hubCommit, Refs: []string{"main"}, Files: map[string][]byte{
			"config.json":       []byte(`{"mm_vision_tower":"openai/clip"}`),
			"pytorch_model.bin": []byte("x")}}})
	defer h.Close()
	home := t.TempDir()
	env := map[string]string{"HF_HOME": home, "HF_ENDPOINT": h.URL}
	tower := filepath.Join(home, "hub", "models--openai--clip")
	for _, c := range []struct {
		args []string
		want bool
	}{
		{[]string{"run", "-m", "me/llava", "--pull", "--mmproj", t.TempDir(), "-p", "x"}, false},
		{[]string{"run", "-m", "me/llava", "-p", "x"}, false},
		{[]string{"run", "-m", "me/llava", "--pull", "-p", "x"}, true},
	} {
		r := with(context.Background(), env, "", c.args...)
		if r.Code == cli.ExitOK { // these weights cannot be opened
			t.Errorf("%q: got %+v, want an error", c.args, r)
		}
		if _, err := os.Stat(tower); (err == nil) != c.want {
			t.Errorf("%q: the tower: %v, want it: %v", c.args, err, c.want)
		}
	}
}

func TestHubUsage(t *testing.T) {
	for _, args := range [][]string{{"pull"}, {"pull", "a"}, {"pull", "a/b", "c/d"},
		{"pull", "a/b:Q8_0", "--include", "*"}, {"rm"}, {"rm", "../x"}, {"list", "x"}} {
		if r := with(context.Background(), map[string]string{"HF_HOME": t.TempDir()}, "",
			args...); r.Code != cli.ExitUsage || r.Out != "" {
			t.Errorf("%q: got %+v, want exit 2", args, r)
		}
	}
}

func TestListRows(t *testing.T) {
	now := time.Now()
	repos := []hub.Repo{
		{Name: "a/b", Bytes: 3_000_000, Snapshots: []hub.Revision{
			{Commit: "c1", Refs: []string{"main", "v1"}, Bytes: 2_000_000,
				LastUse: now.Add(-3 * time.Hour), Quants: []string{"Q4_K_M", "Q8_0"}},
			{Commit: "c2", Bytes: 1_000_000, LastUse: now.Add(-80 * time.Hour)}}},
		{Name: "c/d", Cut: 500_000, Bytes: 500_000},
		{Name: "e/f", Dead: 200_000, Bytes: 200_000},
		{Name: "g/h"},
		{Name: "i/j", Snapshots: []hub.Revision{{Commit: "c3", Refs: []string{"main"}}}},
	}
	want := [][]string{{"MODEL", "SIZE", "LAST USE", "NOTES"},
		{"a/b:Q4_K_M", "2.0 MB", "3 hours ago", "also :Q8_0; revisions main, v1"},
		{"a/b@c2", "1.0 MB", "3 days ago", ""},
		{"c/d", "0.5 MB", "", "of an interrupted download; pull it again to continue"},
		{"e/f", "0.2 MB", "", "of a download that no pull continues; rm deletes it"},
		{"g/h", "0.0 MB", "", "no files"},
		{"i/j", "0.0 MB", "", ""},
		{"total", "3.7 MB", "", ""}}
	if got := listRows(repos, now); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %q, want %q", got, want)
	}
}
