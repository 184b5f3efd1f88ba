package hub

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/hub/hubtest"
)

func TestParseName(t *testing.T) {
	for s, want := range map[string]Name{
		"org/name":                  {Repo: "org/name"},
		"org/na.me-7b_x@v1.0":       {Repo: "org/na.me-7b_x", Revision: "v1.0"},
		"org/name:Q4_K_M":           {Repo: "org/name", Quant: "Q4_K_M"},
		"org/name@refs/pr/1:Q8_0":   {Repo: "org/name", Revision: "refs/pr/1", Quant: "Q8_0"},
		"org/name:Q8_0@main":        {Repo: "org/name", Revision: "main", Quant: "Q8_0"},
		"org/name@feature@2":        {Repo: "org/name", Revision: "feature@2"},
		"Qwen/Qwen2.5-VL-7B":        {Repo: "Qwen/Qwen2.5-VL-7B"},
		"org/name:UD-Q4_K_XL@a/b.c": {Repo: "org/name", Revision: "a/b.c", Quant: "UD-Q4_K_XL"},
	} {
		if got, err := ParseName(s); err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "name", "a/b/c", "./name", "../name", "/name", "org/", "org/..",
		"o--g/n", "org/n.git", "org/name@",
		"org/name:", "org/name@../x", "org/name@/x", "org/name@a//b", "org/name:a/b", "org/name:a:b",
		"org/na me", "org/name@a\x00",
		`org\name`, "org/name@" + strings.Repeat("a",
			300), "~/name", "org/-name", "org/" + strings.Repeat("a", 97)} {
		if n, err := ParseName(s); err == nil {
			t.Errorf("%q: got %+v, want an error", s, n)
		}
	}
}

// Ensure that a repository without an organisation, as huggingface_hub caches gpt2, is listed by a
// name by which it can be removed.
func TestRemoveBareName(t *testing.T) {
	c := client(t, t.TempDir())
	dir := filepath.Join(c.Cache(), "models--gpt2", "snapshots", commit)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	repos, err := c.List()
	if err != nil || len(repos) != 1 || repos[0].Name != "gpt2" {
		t.Fatalf("got %+v, %v", repos, err)
	}
	n, err := ParseCached(repos[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.Remove(n); err != nil || r != (Removed{Files: 1, Bytes: 2}) {
		t.Errorf("got %+v, %v", r, err)
	}
	if repos, err := c.List(); err != nil || len(repos) != 0 {
		t.Errorf("got %+v, %v, want none", repos, err)
	}
	for _, s := range []string{"", "..", "a/b/c", "/a", "a/", "a--b", "@main"} {
		if n, err := ParseCached(s); err == nil {
			t.Errorf("%q: got %+v, want an error", s, n)
		}
	}
}

func TestEnvironment(t *testing.T) {
	user, err := os.UserHomeDir()
	if err != nil {
		t.Skip("no home folder:", err)
	}
	for what, cs := range map[string]struct {
		env   []string
		cache string
	}{
		"nothing": {[]string{"HF_HOME=", "HOME=/home/me"}, "/home/me/.cache/huggingface/hub"},
		"XDG": {[]string{"HF_HOME=", "HOME=/home/me", "XDG_CACHE_HOME=/x"},
			"/x/huggingface/hub"},
		"HF_HOME":                {[]string{"HF_HOME=~/hf", "HOME=/home/me"}, "/home/me/hf/hub"},
		"no HOME, as on Windows": {[]string{"HF_HOME=~/hf"}, filepath.Join(user, "hf", "hub")},
		"HF_HUB_CACHE":           {[]string{"HF_HOME=/hf", "HF_HUB_CACHE=$DISK/hub", "DISK=/disk"}, "/disk/hub"},
		"no such variable": {[]string{"HF_HUB_CACHE=/a$b/${DISK}/${c}/$", "DISK=disk"},
			"/a$b/disk/${c}/$"},
	} {
		if c := client(t, "", cs.env...); c.Cache() != cs.cache {
			t.Errorf("%s: got the cache %s, want %s", what, c.Cache(), cs.cache)
		}
	}
	t.Run("no home folder", func(t *testing.T) {
		t.Setenv("HOME", "")
		cache := t.TempDir()
		c := client(t, "", "HF_HUB_CACHE="+cache, "HF_TOKEN=hf_mine")
		if c.Cache() != cache || c.token != "hf_mine" {
			t.Errorf("got the cache %s and the token %q", c.Cache(), c.token)
		}
		t.Chdir(cache)
		if err := os.WriteFile("token", []byte("hf_other"), 0o600); err != nil {
			t.Fatal(err)
		}
		if c := client(t, "", "HF_HUB_CACHE="+cache); c.token != "" {
			t.Errorf("got the token %q of a file that nobody named", c.token)
		}
	})
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "token"), []byte("hf_stored\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := client(t, home); c.token != "hf_stored" {
		t.Errorf("got the token %q, want the stored one", c.token)
	}
	if c := client(t, home, "HF_TOKEN=hf_mine"); c.token != "hf_mine" {
		t.Errorf("got the token %q, want HF_TOKEN's", c.token)
	}
	older := "HUGGING_FACE_HUB_TOKEN=hf_older"
	if c := client(t, home, older); c.token != "hf_older" {
		t.Errorf("%s: got the token %q", older, c.token)
	}
	if c := client(t, home, older, "HF_TOKEN=hf_mine"); c.token != "hf_mine" {
		t.Errorf("%s: got the token %q, want HF_TOKEN's", older, c.token)
	}
	for value, want := range map[string]string{"1": "HF_HUB_OFFLINE", "true": "HF_HUB_OFFLINE",
		"0": "", "": ""} {
		if c := client(t, home, "HF_HUB_OFFLINE="+value); c.offline != want {
			t.Errorf("HF_HUB_OFFLINE=%s: got %q, want %q", value, c.offline, want)
		}
	}
	for env, want := range map[[2]string]string{{"", "1"}: "TRANSFORMERS_OFFLINE", {"0", "1"}: "",
		{"1", "0"}: "HF_HUB_OFFLINE"} {
		c := client(t, home, "HF_HUB_OFFLINE="+env[0], "TRANSFORMERS_OFFLINE="+env[1])
		if c.offline != want {
			t.Errorf("HF_HUB_OFFLINE=%s TRANSFORMERS_OFFLINE=%s: got %q, want %q", env[0], env[1],
				c.offline, want)
		}
	}
	for _, env := range []string{"HF_ENDPOINT=huggingface.co", "HF_ENDPOINT=file:///x",
		"HF_ENDPOINT=https://me@host", "HF_TOKEN=a\nb"} {
		_, err := New(func(name string) string {
			v, _ := strings.CutPrefix(env, name+"=")
			if v == env {
				return map[string]string{"HF_HOME": home}[name]
			}
			return v
		})
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want an error of one line", env, err)
		}
	}
}

// Ensure that a cache as Python's library leaves it is read: without refs/main,
// with commits, branches, partial names, and links that lead nowhere.
func TestFind(t *testing.T) {
	_, c, _ := start(t, nil)
	other := strings.Repeat("ab", 20)
	root := filepath.Join(c.Cache(), "models--me--tiny")
	write := func(path, data string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	find := func(s string) (string, error) {
		got, err := c.Find(name(t, s))
		if err != nil {
			return "", err
		}
		return filepath.Base(got.Dir), nil
	}
	if _, err := find("me/tiny"); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("an empty cache: got %v, want ErrNotFound", err)
	}
	write("snapshots/"+commit+"/config.json", "{}")
	write("snapshots/"+commit+"/model.safetensors", "x")
	if got, err := find("me/tiny"); got != commit {
		t.Errorf("the only snapshot: got %q, %v", got, err)
	}
	write("snapshots/"+other+"/config.json", "{}")
	write("snapshots/"+other+"/pytorch_model.bin", "x")
	if _, err := find("me/tiny"); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("two snapshots and no ref: got %v, want ErrNotFound", err)
	}
	write("refs/main", other)
	write("refs/v1", commit)
	for s, want := range map[string]string{"me/tiny": other, "me/tiny@v1": commit,
		"me/tiny@" + commit: commit} {
		if got, err := find(s); got != want {
			t.Errorf("%s: got %q, %v, want %s", s, got, err, want)
		}
	}
	if _, err := find("me/tiny@v2"); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("a branch that is not there: got %v", err)
	}
	write("refs/bad", "../../x")
	if _, err := find("me/tiny@bad"); !errors.Is(err, errs.ErrDamaged) {
		t.Errorf("a ref that is no commit: got %v", err)
	}
	link := filepath.Join(root, "snapshots", other, "tokenizer.json")
	if err := os.Symlink("../../blobs/gone", link); err != nil {
		t.Fatal(err)
	}
	if _, err := find("me/tiny"); err == nil || !strings.Contains(err.Error(), link) ||
		!strings.Contains(err.Error(), "../../blobs/gone") {
		t.Errorf("a link to nothing: got %v, want an error that names it", err)
	}
}

// Ensure that List counts what is there once, and that Remove deletes what was
// named and what nothing else needs.
func TestListRemove(t *testing.T) {
	h, c, _ := start(t, nil)
	if repos, err := c.List(); err != nil || len(repos) != 0 {
		t.Fatalf("an empty cache: got %v, %v", repos, err)
	}
	pull := func(s string) *Pulled {
		t.Helper()
		p, err := c.Pull(t.Context(), name(t, s), PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	tiny := pull("me/tiny")
	pull("me/gguf:Q8_0")
	pull("me/gguf:Q4_K_M")
	// A second commit of the first repository shares all but one file.
	newer := strings.Repeat("cd", 20)
	h.Close()
	repo := tinyRepo()
	repo.Commit = newer
	repo.Files["config.json"] = []byte(`{"model_type":"llava","new":1}`)
	h2, c2, _ := start(t, map[string]*hubtest.Repo{"me/tiny": repo})
	c.endpoint = c2.endpoint
	pull("me/tiny")
	if n := len(h2.Asked()); n == 0 {
		t.Fatal("the second hub was not asked")
	}
	var shared, own int64
	for _, f := range tinyNeeds {
		if f != "config.json" {
			shared += int64(len(repo.Files[f]))
		}
	}
	own = int64(len(tinyRepo().Files["config.json"]) + len(repo.Files["config.json"]))
	if err := os.WriteFile(filepath.Join(c.Cache(), "models--me--tiny", "blobs", "aa.incomplete"),
		content(1, 50), 0o666); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-300 * time.Hour).Truncate(time.Second)
	for _, f := range tinyNeeds {
		if err := os.Chtimes(filepath.Join(tiny.Dir, f), long, long); err != nil {
			t.Fatal(err)
		}
	}
	repos, err := c.List()
	if err != nil || len(repos) != 2 || repos[1].Name != "me/tiny" {
		t.Fatalf("got %+v, %v, want two repositories", repos, err)
	}
	if r := repos[1]; r.Bytes != shared+own+50 || r.Cut != 50 || len(r.Snapshots) != 2 ||
		r.Problem != "" {
		t.Errorf("got %+v, want %d bytes and two snapshots", r, shared+own+50)
	}
	for _, v := range repos[1].Snapshots {
		if refs := []string{"main"}; v.Commit == newer && !slices.Equal(v.Refs, refs) ||
			v.Commit == commit && len(v.Refs) != 0 {
			t.Errorf("got %+v, want main on the newer one", v)
		}
	}
	if got := repos[0].Snapshots[0].Quants; !slices.Equal(got, []string{"Q4_K_M", "Q8_0"}) {
		t.Errorf("quantisations: got %q", got)
	}
	before := repos[1].LastUse
	tiny.MarkUsed()
	if repos, err = c.List(); err != nil || !repos[1].LastUse.After(before) {
		t.Errorf("last use: got %v, %v, want a time after %v", repos[1].LastUse, err, before)
	}

	r, err := c.Remove(name(t, "me/gguf:Q8_0"))
	if err != nil || r != (Removed{1, 9000}) {
		t.Errorf("a quantisation: got %+v, %v, want one file of 9000 bytes", r, err)
	}
	if _, err := c.Find(name(t, "me/gguf:Q4_K_M")); err != nil {
		t.Error("the other quantisation:", err)
	}
	r, err = c.Remove(name(t, "me/tiny@"+commit))
	if err != nil || r.Bytes != int64(len(tinyRepo().Files["config.json"])) {
		t.Errorf("a commit: got %+v, %v, want what it does not share", r, err)
	}
	s, err := c.Find(name(t, "me/tiny"))
	if err != nil {
		t.Fatal(err)
	}
	check(t, s.Dir, repo, tinyNeeds)

	unlock, err := c.lock(t.Context(), Name{Repo: "me/tiny"}, "aa", func() {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Remove(name(t, "me/tiny")); err == nil ||
		!strings.Contains(err.Error(), "download") {
		t.Errorf("during a download: got %v", err)
	}
	unlock()
	r, err = c.Remove(name(t, "me/tiny"))
	if err != nil || r.Files != len(tinyNeeds) ||
		r.Bytes != shared+int64(len(repo.Files["config.json"]))+50 {
		t.Errorf("all: got %+v, %v", r, err)
	}
	if _, err := c.Remove(name(t, "me/tiny")); !errors.Is(err, errs.ErrNotFound) {
		t.Errorf("again: got %v, want ErrNotFound", err)
	}
	if repos, err := c.List(); err != nil || len(repos) != 1 {
		t.Errorf("got %v, %v, want one repository", repos, err)
	}
	if _, err := c.Remove(name(t, "me/gguf@main")); err != nil {
		t.Error(err)
	}
	if locks, err := entries(filepath.Join(c.Cache(), locksFolder)); err != nil || len(locks) > 0 {
		t.Errorf("locks of nothing: got %q, %v", locks, err)
	}
	if repos, err := c.List(); err != nil || len(repos) != 0 {
		t.Errorf("got %v, %v, want none", repos, err)
	}
}

// Ensure that List tells the incomplete downloads that Pull continues from those that
// huggingface_hub 2.4 leaves under a random name, and from those whose content it has downloaded.
func TestListIncomplete(t *testing.T) {
	c := client(t, t.TempDir())
	blobs := filepath.Join(c.Cache(), "models--me--tiny", "blobs")
	if err := os.MkdirAll(blobs, 0o777); err != nil {
		t.Fatal(err)
	}
	etag, whole := strings.Repeat("ab", 20), strings.Repeat("cd", 20)
	for file, size := range map[string]int{
		etag + ".incomplete": 30, etag + ".0123abcd.incomplete": 50, whole: 10,
		whole + ".incomplete": 5,
	} {
		if err := os.WriteFile(filepath.Join(blobs, file), content(1, size), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	repos, err := c.List()
	if err != nil || len(repos) != 1 || repos[0].Cut != 30 || repos[0].Dead != 55 ||
		repos[0].Bytes != 85 || repos[0].Problem != "" {
		t.Errorf("got %+v, %v, want 30 bytes and 55 of 85, and no problem", repos, err)
	}
}

// Ensure that a link to nothing matters only to those who need the file, as when the blob of a
// second form of the weights was deleted by hand.
func TestBrokenLink(t *testing.T) {
	_, c, _ := start(t, nil)
	p, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(p.Dir, "pytorch_model.bin")
	if err := os.Symlink("../../blobs/gone", link); err != nil {
		t.Skip("no links here:", err)
	}
	if _, err := c.Find(name(t, "me/tiny")); err != nil {
		t.Errorf("a file that the model does not need: %v", err)
	}
	repos, err := c.List()
	if err != nil || len(repos) != 1 || !strings.Contains(repos[0].Problem, link) {
		t.Errorf("got %+v, %v, want a problem that names the link", repos, err)
	}
	r, err := c.Remove(name(t, "me/tiny@main"))
	if err != nil || r.Files != len(tinyNeeds)+1 {
		t.Errorf("got %+v, %v, want %d files", r, err, len(tinyNeeds)+1)
	}
	if _, err := os.Stat(c.repo(p.Name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the repository: %v, want none", err)
	}
}

// Ensure that Remove of a quantisation keeps the projector of that type for the others.
func TestRemoveQuantisation(t *testing.T) {
	_, c, _ := start(t, nil)
	for _, s := range []string{"me/gguf:Q4_K_M", "me/gguf:F16"} {
		if _, err := c.Pull(t.Context(), name(t, s), PullOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := c.Remove(name(t, "me/gguf:F16"))
	if err != nil || r != (Removed{2, 8000}) {
		t.Errorf("got %+v, %v, want the two parts of the model", r, err)
	}
	s, err := c.Find(name(t, "me/gguf:Q4_K_M"))
	if err != nil || filepath.Base(s.Projector) != "mmproj-m-f16.gguf" {
		t.Errorf("the other quantisation: got %+v, %v, want its projector", s, err)
	}
}

// Ensure that Remove keeps what another revision needs, in a cache whose path looks like a pattern.
func TestRemovePattern(t *testing.T) {
	second := strings.Repeat("cd", 20)
	home := filepath.Join(t.TempDir(), "[models]")
	_, c, _ := start(t, nil, "HF_HOME="+home)
	repo := tinyRepo()
	repo.Commit, repo.Refs = second, []string{"second"}
	_, other, _ := start(t, map[string]*hubtest.Repo{"me/tiny": repo}, "HF_HOME="+home)
	if _, err := c.Pull(t.Context(), name(t, "me/tiny"), PullOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := other.Pull(t.Context(), name(t, "me/tiny@second"), PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Remove(name(t, "me/tiny@main"))
	if err != nil || r != (Removed{Files: len(tinyNeeds)}) {
		t.Errorf("got %+v, %v, want %d files and no bytes", r, err, len(tinyNeeds))
	}
	check(t, p.Dir, repo, tinyNeeds)
}

func TestChoose(t *testing.T) {
	for what, cs := range map[string]struct {
		list, want []string
		quant      string
		fails      bool
	}{
		"bin": {list: []string{"config.json", "pytorch_model.bin", "mm_projector.bin"},
			want: []string{"config.json", "pytorch_model.bin"}},
		"bin, index": {list: []string{"pytorch_model.bin.index.json", "x-1.bin"},
			want: []string{"pytorch_model.bin.index.json"}},
		"safetensors first": {list: []string{"model.safetensors", "pytorch_model.bin"},
			want: []string{"model.safetensors"}},
		"safetensors, quant": {list: []string{"model.safetensors", "m.Q8_0.gguf"}, quant: "q8_0",
			want: []string{"m.Q8_0.gguf"}},
		"sentencepiece": {list: []string{"tokenizer.model", "model.safetensors"},
			want: []string{"tokenizer.model", "model.safetensors"}},
		"an adapter": {list: []string{"adapter_config.json", "adapter_model.safetensors",
			"model.safetensors"}, want: []string{"adapter_config.json", "model.safetensors"}},
		"old names": {list: []string{"ggml-model-q4_k.gguf", "ggml-model-f16.gguf",
			"mmproj-model-f16.gguf"}, quant: "Q4_K",
			want: []string{"ggml-model-q4_k.gguf", "mmproj-model-f16.gguf"}},
		"owner before the name": {list: []string{"mmproj-google_gemma-3-4b-it-bf16.gguf",
			"mmproj-google_gemma-3-4b-it-f16.gguf", "google_gemma-3-4b-it-Q4_K_L.gguf",
			"google_gemma-3-4b-it-Q4_K_M.gguf"},
			want: []string{"google_gemma-3-4b-it-Q4_K_M.gguf",
				"mmproj-google_gemma-3-4b-it-f16.gguf"}},
		"size after the type": {list: []string{"gemma-3-4b-it-q4_0.gguf",
			"mmproj-model-f16-4B.gguf"}, quant: "Q4_0",
			want: []string{"gemma-3-4b-it-q4_0.gguf", "mmproj-model-f16-4B.gguf"}},
		"first": {list: []string{"m-Q8_0.gguf", "m-Q5_0.gguf"},
			want: []string{"m-Q5_0.gguf"}},
		"in folders": {list: []string{"a/m-Q8_0.gguf", "a/mmproj.gguf", "mmproj-f16.gguf"},
			quant: "Q8_0", want: []string{"a/m-Q8_0.gguf", "a/mmproj.gguf"}},
		"a part is missing": {list: []string{"m-Q8_0-00001-of-00003.gguf",
			"m-Q8_0-00002-of-00003.gguf"}, quant: "Q8_0", fails: true},
		"nothing": {list: []string{"README.md", "model.onnx"}, fails: true},
		"no such": {list: []string{"m-Q8_0.gguf"}, quant: "Q4_0", fails: true},
		"empty":   {fails: true},
	} {
		ch, err := choose(cs.list, cs.quant)
		if (err != nil) != cs.fails || !slices.Equal(ch.files, cs.want) {
			t.Errorf("%s: got %q, %v, want %q", what, ch.files, err, cs.want)
		}
		if err != nil && !errors.Is(err, errs.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", what, err)
		}
	}
}

// Ensure that lists of files are refused item by item, with all their pages counted together.
func TestLists(t *testing.T) {
	item := `{"type":"file","path":"a"},`
	page := `[` + strings.Repeat(item, maxFiles/2) + `{"type":"directory","path":"b"}]`
	var i info
	err := parseTree(&i, []byte(page))
	if err == nil {
		err = parseTree(&i, []byte(page))
	}
	if err != nil || len(i.files) != maxFiles {
		t.Errorf("the most files: got %d, %v", len(i.files), err)
	}
	if err := parseTree(&i, []byte(`[`+item+`{}]`)); err == nil ||
		!strings.Contains(err.Error(), "more than 600000 files") {
		t.Errorf("one more file: %v", err)
	}
	for _, body := range []string{
		`{}`, `null`, `5`, `[`, `[{}`, `[{}]]`, `[{}] 1`, `[5]`, `[{"path":5}]`, ``,
		`[{"type":"file"}]`,
	} {
		if err := parseTree(&info{}, []byte(body)); err == nil {
			t.Errorf("%s: got nil, want an error", body)
		}
	}
	i = info{}
	list := `[{"type":"file","path":"../a"},{"type":"file","path":"b\\c"},{"type":"file","path":"d"}]`
	odd := []string{"../a", `b\c`}
	err = parseTree(&i, []byte(list))
	if err != nil || !slices.Equal(i.files, []string{"d"}) || !slices.Equal(i.odd, odd) {
		t.Errorf("names that no system could keep: got %+v, %v, want the other alone", i, err)
	}
	for siblings, want := range map[string]string{
		``: "", `,"siblings":null`: "", `,"siblings":[]`: "",
		`,"siblings":[{"rfilename":"a"},{"rfilename":"b/c","x":1}]`: "a b/c",
		`,"siblings":{}`: "an error", `,"siblings":[{}]`: "an error", `,"siblings":5`: "an error",
	} {
		i, err := parseInfo([]byte(`{"sha":"` + commit + `"` + siblings + `}`))
		got := strings.Join(i.files, " ")
		if err != nil {
			got = "an error"
		}
		if got != want {
			t.Errorf("%s: got %q, %v, want %q", siblings, got, err, want)
		}
	}
}

// Ensure that a model in very many parts is chosen.
func TestManyParts(t *testing.T) {
	const parts = 20_000
	var list []string
	for i := range parts {
		list = append(list, fmt.Sprintf("m-Q8_0-%05d-of-%05d.gguf", parts-i, parts))
	}
	c, err := choose(list, "Q8_0")
	if err != nil || len(c.files) != parts || c.files[0] != list[parts-1] {
		t.Errorf("got %d parts, %v", len(c.files), err)
	}
}

func TestGlob(t *testing.T) {
	for _, cs := range []struct {
		pattern, name string
		want          bool
	}{
		{"*.json", "config.json", true}, {"*.json", "a/b.json", true}, {"*.json", "x.json.bak", false},
		{"model-0000?-*", "model-00001-of-00002.safetensors", true},
		{"[ab].txt", "a.txt", true}, {"[!ab].txt", "a.txt", false}, {"[^a].txt", "^.txt", true},
		{"[a", "[a", true}, {"a+b", "a+b", true},
		{"a+b", "aab", false}, {"", "x", false}, {"é?", "éx", true}, {`a\b`, `a\b`, true},
		{"[]]", "]", true}, {"d/", "d/a/b", true}, {"d/", "d", false}, {"d", "d/a", false},
	} {
		if got, err := glob(cs.pattern, cs.name); got != cs.want || err != nil {
			t.Errorf("%q, %q: got %v, %v, want %v", cs.pattern, cs.name, got, err, cs.want)
		}
	}
	if _, err := glob("[z-a]", "x"); err == nil {
		t.Error("a range that runs backwards: got no error")
	}
}

func TestQuantOf(t *testing.T) {
	for file, want := range map[string]string{"m-Q4_K_M.gguf": "Q4_K_M", "a.q8_0.gguf": "q8_0",
		"x/m-UD-Q4_K_XL.gguf": "UD-Q4_K_XL", "m-f16-00001-of-00002.gguf": "f16",
		"m-f16-00002-of-00002.gguf": "", "mmproj-f16.gguf": "", "model.gguf": "",
		"ggml-model-q4_k.gguf": "q4_k", "m-IQ4_XS.gguf": "IQ4_XS", "x.bin": ""} {
		if got := quantOf(file); got != want {
			t.Errorf("%s: got %q, want %q", file, got, want)
		}
	}
}

// Ensure that Remove deletes content that huggingface_hub shares between repositories with the last
// of them, and counts what is freed.
func TestRemoveShared(t *testing.T) {
	_, c, _ := start(t, map[string]*hubtest.Repo{"me/a": tinyRepo(), "me/b": tinyRepo(),
		"me/c": tinyRepo()})
	store := filepath.Join(c.Cache(), "blobs")
	hash := strings.Repeat("ab", 32)
	payload := filepath.Join(store, "ab", hash)
	var weights, others int64
	for _, f := range tinyNeeds {
		others += int64(len(tinyRepo().Files[f]))
	}
	for _, repo := range []string{"me/a", "me/b", "me/c"} {
		p, err := c.Pull(t.Context(), name(t, repo), PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// As huggingface_hub 2.4 publishes a download: the first one's content moves to the store.
		blob := blobOf(filepath.Join(p.Dir, shard1))
		if weights == 0 {
			st, err := os.Stat(blob)
			if err != nil {
				t.Fatal(err)
			}
			weights, others = st.Size(), others-st.Size()
			for path, text := range map[string]string{
				filepath.Join(store, ".huggingface-shared-blobs"): "1\n",
				payload + ".refs": "models--me--a/blobs/" + filepath.Base(blob) + "\n",
				payload + ".lock": "",
			} {
				if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			err = os.Rename(blob, payload)
			if err != nil {
				t.Fatal(err)
			}
		} else if err := os.Remove(blob); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../../blobs/ab/"+hash, blob); err != nil {
			t.Skip("no links here:", err)
		}
	}
	for _, cs := range []struct {
		name  string
		bytes int64
	}{{"me/a", others}, {"me/b@main", others}, {"me/c@main", others + weights}} {
		r, err := c.Remove(name(t, cs.name))
		if err != nil || r != (Removed{len(tinyNeeds), cs.bytes}) {
			t.Errorf("%s: got %+v, %v, want %d bytes", cs.name, r, err, cs.bytes)
		}
		_, err = os.Stat(payload)
		if last := cs.name == "me/c@main"; last != errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the shared content: %v", cs.name, err)
		}
	}
	if _, err := os.Stat(payload + ".refs"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the list of links: %v, want none", err)
	}
}
