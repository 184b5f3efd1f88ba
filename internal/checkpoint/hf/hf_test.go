package hf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/model/families"
	"github.com/restore-vlm/restore/internal/tensor"
	"github.com/restore-vlm/restore/internal/tokenizer"
)

// weights returns a safetensors file with the named tensors, each [2 n] with n the length of its
// name.
func weights(t *testing.T, names ...string) []byte {
	t.Helper()
	m := map[string]*tensor.Tensor{}
	for _, name := range names {
		m[name] = tensor.From([]int{2, len(name)}, make([]float32, 2*len(name)))
	}
	var b bytes.Buffer
	if err := checkpoint.WriteSafetensors(&b, m, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

const (
	shard1 = "model-00001-of-00002.safetensors"
	shard2 = "model-00002-of-00002.safetensors"
)

// single and sharded return the files of two valid checkpoints.
func single(t *testing.T) map[string][]byte {
	return map[string][]byte{
		"config.json": []byte(`{"model_type": "x"}`), "tokenizer.json": []byte("{}"),
		"model.safetensors": weights(t, "a.weight", "b"),
	}
}

func sharded(t *testing.T) map[string][]byte {
	return map[string][]byte{
		"config.json": []byte(`{}`),
		shard1:        weights(t, "a.weight", "c"), shard2: weights(t, "head"),
		"model.safetensors.index.json": []byte(
			`{"metadata":{"total_size":1},"weight_map":{"a.weight":"` + shard1 + `","c":"` +
				shard1 + `","head":"` + shard2 + `"}}`),
	}
}

// lay writes files into a new folder.
func lay(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// open opens the model in a folder of the system.
func open(path string) (*checkpoint.Store, error) {
	f, err := folder.Open(path)
	if err != nil {
		return nil, err
	}
	return Open(f, families.Files)
}

// openFS opens the model in a folder of fsys.
func openFS(fsys fs.FS, dir string) (*checkpoint.Store, error) {
	f, err := folder.OpenFS(fsys, dir)
	if err != nil {
		return nil, err
	}
	return Open(f, families.Files)
}

func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string][]byte
		names []string
		bytes int64
	}{
		"single":  {single(t), []string{"a.weight", "b"}, 4 * 2 * (8 + 1)},
		"sharded": {sharded(t), []string{"a.weight", "c", "head"}, 4 * 2 * (8 + 1 + 4)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := lay(t, c.files)
			onDisk, err := open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if onDisk.What.Name != filepath.Base(dir) {
				t.Errorf("got name %q, want %q", onDisk.What.Name, filepath.Base(dir))
			}
			mapFS := fstest.MapFS{}
			for file, b := range c.files {
				mapFS["models/tiny/"+file] = &fstest.MapFile{Data: b}
			}
			inMemory, err := openFS(mapFS, "models/tiny")
			if err != nil {
				t.Fatal(err)
			}
			if inMemory.What.Name != "tiny" {
				t.Errorf("got name %q, want tiny", inMemory.What.Name)
			}
			for _, ck := range []*checkpoint.Store{onDisk, inMemory} {
				if !slices.Equal(ck.Names(), c.names) || ck.What.Size != c.bytes {
					t.Errorf("got %v of %d bytes, want %v of %d", ck.Names(), ck.What.Size,
						c.names, c.bytes)
				}
				if string(ck.Docs.Config.Data) != string(c.files["config.json"]) {
					t.Errorf("got config %s", ck.Docs.Config.Data)
				}
				if _, ok := ck.Tensor("nothing"); ok {
					t.Error("a tensor that is not there was found")
				}
				if got := ck.Docs.Tokenizer; string(got.Data) != string(
					c.files["tokenizer.json"]) || got.Data != nil && got.From != "tokenizer.json" {
					t.Errorf("got tokenizer %q from %q", got.Data, got.From)
				}
				var wg sync.WaitGroup // concurrent reads, for the race detector
				for range 4 {
					wg.Go(func() {
						for _, name := range ck.Names() {
							x, ok := ck.Tensor(name)
							if !ok || !slices.Equal(x.Shape, []int{2, len(name)}) {
								t.Errorf("%q: got %v", name, x)
								continue
							}
							if _, err := x.Float32s(); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				if err := ck.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// edit changes a checkpoint's files.
type edit func(t *testing.T, files map[string][]byte)

func remove(name string) edit {
	return func(_ *testing.T, files map[string][]byte) { delete(files, name) }
}

func write(name, text string) edit {
	return func(_ *testing.T, files map[string][]byte) { files[name] = []byte(text) }
}

func change(name string, f func(b []byte) []byte) edit {
	return func(_ *testing.T, files map[string][]byte) { files[name] = f(files[name]) }
}

// header changes the header's text of a file, padded to a multiple of 8.
func header(name string, replace ...string) edit {
	return func(t *testing.T, files map[string][]byte) {
		b := files[name]
		n := binary.LittleEndian.Uint64(b)
		old := strings.TrimRight(string(b[8:8+n]), " ")
		text := strings.NewReplacer(replace...).Replace(old)
		if text == old {
			t.Fatalf("%s: nothing of %q to replace", old, replace)
		}
		for len(text)%8 != 0 {
			text += " "
		}
		out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
		files[name] = append(append(out, text...), b[8+n:]...)
	}
}

func index(replace ...string) edit {
	return change("model.safetensors.index.json", func(b []byte) []byte {
		return []byte(strings.NewReplacer(replace...).Replace(string(b)))
	})
}

func length(n uint64) edit {
	return change("model.safetensors", func(b []byte) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), b[8:]...)
	})
}

// TestOpenErrors damages a valid checkpoint in one way each; the error must name the fault.
func TestOpenErrors(t *testing.T) {
	const st = "model.safetensors"
	for _, c := range []struct {
		name string
		base func(*testing.T) map[string][]byte
		edit edit
		want []string // nil: accepted
	}{
		{"unknown type", single, header(st, `"dtype":"F32","shape":[2,8]`, `"dtype":"Q7","shape":[2,8]`), []string{st, `"a.weight"`, "Q7"}},
		{"data cut", single, change(st, func(b []byte) []byte { return b[:len(b)-5] }), []string{st, "truncated"}},
		{"header cut", single, change(st, func(b []byte) []byte { return b[:50] }), []string{st, "truncated"}},
		{"length cut", single, change(st, func(b []byte) []byte { return b[:5] }), []string{st, "got 5 bytes"}},
		{"empty file", single, write(st, ""), []string{st, "got 0 bytes"}},
		{"trailing bytes", single, change(st, func(b []byte) []byte { return append(b, make([]byte, 16)...) }), []string{st, "trailing"}},
		{"header beyond file", single, length(99000000), []string{st, "99000000"}},
		{"header huge", single, length(9223372036854788153), []string{st, "9223372036854788153"}},
		{"header zero", single, length(0), []string{st, "got 0"}},
		{"overlap", single, header(st, "[64,72]", "[60,68]"), []string{st, `"b"`, "share"}},
		{"hole", single, header(st, "[64,72]", "[68,76]"), []string{st, `"b"`}},
		{"past the end", single, header(st, "[64,72]", "[5000064,5000072]"), []string{st, `"b"`, "5000072"}},
		{"size mismatch", single, header(st, "[2,8]", "[2,7]"), []string{st, `"a.weight"`, "64 bytes", "56"}},
		{"unaligned data", single, header(st, `"shape":[2,8]`, ` "shape":[2,8]`), nil},
		{"shard missing", sharded, remove(shard2), []string{shard2, "missing"}},
		{"wrong shard", sharded, index(`"head":"`+shard2, `"head":"`+shard1), []string{`"head"`, shard1}},
		{"path escape", sharded, index(`"head":"`+shard2, `"head":"../other/model.safetensors`), []string{"../other/model.safetensors"}},
		{"path absolute", sharded, index(`"head":"`+shard2, `"head":"/etc/passwd`), []string{"/etc/passwd"}},
		{"path with backslash", sharded, index(`"head":"`+shard2, `"head":"..\\x`), []string{"plain file name"}},
		{"path empty", sharded, index(`"head":"`+shard2, `"head":"`), []string{"plain file name"}},
		{"path not a string", sharded, index(`"head":"`+shard2+`"`, `"head":7`), []string{`"head"`, "got 7"}},
		{"not in index", sharded, index(`,"head":"`+shard2+`"`, ""), nil}, // shard 2 is then not read at all
		{"one of a shard not in index", sharded, index(`"c":"`+shard1+`",`, ""), []string{`"c"`, shard1}},
		{"index twice", sharded, index(`"c":"`, `"head":"x","c":"`), []string{"model.safetensors.index.json", `"head" occurs twice`}},
		{"index not json", sharded, write("model.safetensors.index.json", `{"weight_map": {`), []string{"model.safetensors.index.json", "line 1"}},
		{"index without map", sharded, index("weight_map", "weights"), []string{"model.safetensors.index.json", "weight_map"}},
		{"index with empty map", sharded, write("model.safetensors.index.json", `{"weight_map":{}}`), []string{"weight_map"}},
		{"in two shards", sharded, func(t *testing.T, files map[string][]byte) { files[shard1] = weights(t, "a.weight", "c", "head") }, nil},
		{"in two shards with other values", sharded, func(t *testing.T, files map[string][]byte) {
			files[shard1] = weights(t, "a.weight", "c", "head")
			files[shard1][len(files[shard1])-1] ^= 1
		}, []string{`"head"`, shard1, "differs"}},
		{"single next to an index", sharded, func(t *testing.T, files map[string][]byte) { files[st] = weights(t, "x") }, nil},
		{"an adapter next to the weights", single, write("adapter_config.json", `{"peft_type": "LORA"}`), []string{"adapter_config.json", "not merged"}},
		{"no weights", single, remove(st), []string{"no weights", st, "tokenizer.json"}},
		{"other weights", single, func(_ *testing.T, files map[string][]byte) {
			files["pytorch_model.bin"] = files[st]
			delete(files, st)
		}, []string{"pytorch_model.bin", "safetensors"}},
		{"no config", single, remove("config.json"), []string{"config.json missing", st}},
		{"config not json", single, write("config.json", `{ "model_type": "llava", `), []string{"config.json", "line 1 column"}},
		{"config a list", single, write("config.json", `[]`), []string{"config.json", "want a JSON object"}},
		{"config with NaN", single, write("config.json", `{"x": NaN}`), []string{"config.json", "line 1 column"}},
		{"config with garbage", single, write("config.json", "{}\n\nx"), []string{"config.json", "line 3 column 1"}},
		{"config twice", single, write("config.json", "{\"a\": 1,\n \"b\": {\"c\": 1, \"c\": 2}}"), []string{"config.json", "line 2", `"c" occurs twice`}},
		{"config empty", single, write("config.json", ""), []string{"config.json"}},
		{"config of bad utf-8", single, write("config.json", "{\"a\": \"\xff\"}"), []string{"config.json: is not UTF-8: got 0xff at byte 7"}},
		{"config deep", single, write("config.json", strings.Repeat(`{"a":`, 200)+"1"+strings.Repeat("}", 200)), []string{"config.json", "nested"}},
		{"empty", single, func(_ *testing.T, files map[string][]byte) { clear(files) }, []string{"config.json", "empty directory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := c.base(t)
			c.edit(t, files)
			ck, err := open(lay(t, files))
			if c.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				if err := ck.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted, want an error")
			}
			msg := err.Error()
			if strings.Contains(msg, "\n") || !strings.HasPrefix(msg, "checkpoint: ") {
				t.Errorf("got error %q, want one line with the package's name", msg)
			}
			for _, want := range c.want {
				if !strings.Contains(msg, want) {
					t.Errorf("got error %q, want it to name %q", msg, want)
				}
			}
		})
	}
}

func TestOpenPaths(t *testing.T) {
	dir := lay(t, map[string][]byte{"file": nil})
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"):   "no such file",
		filepath.Join(dir, "file"):      "got a file",
		filepath.Join(dir, "file", "x"): "file",
	} {
		if _, err := open(path); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error with %q", path, err, want)
		}
	}
	if _, err := openFS(fstest.MapFS{}, "missing"); err == nil {
		t.Error("a folder that is not in the file system is accepted")
	}
	if _, err := openFS(fstest.MapFS{"f": &fstest.MapFile{}}, "f"); err == nil ||
		!strings.Contains(err.Error(), "got a file") {
		t.Errorf("got %v", err)
	}
}

// hub lays out a checkpoint as in the hub's cache: blobs, and links to them.
func hub(t *testing.T, commits ...string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "models--org--some--name")
	for i, commit := range commits {
		snapshot := filepath.Join(root, "snapshots", commit)
		if err := os.MkdirAll(snapshot, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(root, "blobs"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, b := range single(t) {
			blob := fmt.Sprintf("%d%x", i, name)
			if err := os.WriteFile(filepath.Join(root, "blobs", blob), b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join("..", "..", "blobs", blob),
				filepath.Join(snapshot, name)); err != nil {
				t.Skipf("no symbolic links here: %v", err)
			}
		}
	}
	return root
}

func ref(t *testing.T, root, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "refs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "refs", "main"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenHubCache(t *testing.T) {
	one, two := hub(t, "abc"), hub(t, "abc", "def")
	try := func(path string, want ...string) {
		t.Helper()
		c, err := open(path)
		if len(want) == 0 {
			if err != nil {
				t.Error(err)
				return
			}
			if c.What.Name != "org/some--name" || len(c.Names()) != 2 {
				t.Errorf("got %q with %v", c.What.Name, c.Names())
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		for _, w := range want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("got %v, want an error with %q", err, w)
			}
		}
	}
	try(one)
	try(two, "refs/main", "2 snapshots")
	try(filepath.Join(two, "snapshots", "def"))
	ref(t, two, "def\n")
	try(two)
	ref(t, two, "nope")
	try(two, "refs/main", "nope", "missing")
	ref(t, two, "../../x")
	try(two, "refs/main", "../../x")
	ref(t, two, "def")
	blobs, err := filepath.Glob(filepath.Join(two, "blobs", "1*"))
	if err != nil || len(blobs) == 0 {
		t.Fatal(err)
	}
	for _, blob := range blobs { // broken links: an interrupted download
		if err := os.Remove(blob); err != nil {
			t.Fatal(err)
		}
	}
	try(two, "config.json: the link leads to", filepath.Join("..", "..", "blobs"), "not there")
}

// shared is a file system whose ReadFile returns its own bytes.
type shared struct{ fstest.MapFS }

func (s shared) ReadFile(name string) ([]byte, error) {
	f, ok := s.MapFS[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return f.Data, nil
}

func (s shared) Sub(dir string) (fs.FS, error) {
	if dir != "." {
		return nil, fs.ErrInvalid
	}
	return s, nil
}

func TestOpenFSDoesNotCopy(t *testing.T) {
	fsys := shared{fstest.MapFS{}}
	for name, b := range single(t) {
		fsys.MapFS[name] = &fstest.MapFile{Data: b}
	}
	c, err := openFS(fsys, ".")
	if err != nil {
		t.Fatal(err)
	}
	x, _ := c.Tensor("b")
	whole := fsys.MapFS["model.safetensors"].Data
	if &x.Data[len(x.Data)-1] != &whole[len(whole)-1] {
		t.Error("the tensor's bytes are a copy, want the file system's own")
	}
}

// TestReferenceMutations applies those edits to the reference checkpoints that a reader alone can
// judge. RESTORE_ORACLE names their folder; they are not part of this repository.
func TestReferenceMutations(t *testing.T) {
	root := os.Getenv("RESTORE_ORACLE")
	if root == "" {
		t.Skip("RESTORE_ORACLE is not set")
	}
	raw, err := os.ReadFile(filepath.Join(root, "models", "bad", "mutations.json"))
	if err != nil {
		t.Fatal(err)
	}
	type op struct {
		Op, File, Name, Field, Text string
		Value                       json.RawMessage
		By                          int64
		Keep                        *int `json:"keep_bytes"`
		Cut, Count                  int
		CutBytes                    int `json:"cut_bytes"`
		Path                        []string
	}
	var d struct {
		Cases []struct {
			ID, Base, Expect string
			Ops              []op
			Names            []string `json:"error_names"`
		}
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, c := range d.Cases {
		files := map[string][]byte{}
		entries, err := os.ReadDir(filepath.Join(root, "models", c.Base))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if files[e.Name()], err = os.ReadFile(filepath.Join(root, "models", c.Base,
				e.Name())); err != nil {
				t.Fatal(err)
			}
		}
		supported := true
		for _, o := range c.Ops {
			name := o.File
			if name == "" {
				name = "model.safetensors"
			}
			b := files[name]
			switch o.Op {
			case "truncate_file":
				if o.Keep != nil {
					files[name] = b[:*o.Keep]
				} else {
					files[name] = b[:len(b)-o.CutBytes]
				}
			case "append_bytes":
				files[name] = append(b, make([]byte, o.Count)...)
			case "set_header_length":
				var n uint64
				if err := json.Unmarshal(o.Value, &n); err != nil {
					t.Fatal(err)
				}
				files[name] = append(binary.LittleEndian.AppendUint64(nil, n), b[8:]...)
			case "delete_file":
				delete(files, name)
			case "write_text":
				files[name] = []byte(o.Text)
			case "set_json", "delete_json":
				if name != "model.safetensors.index.json" {
					supported = false
					break
				}
				var m map[string]map[string]json.RawMessage
				if err := json.Unmarshal(b, &m); err != nil {
					t.Fatal(err)
				}
				switch {
				case o.Op == "set_json":
					m[o.Path[0]][o.Path[1]] = o.Value
				case len(o.Path) == 1:
					delete(m, o.Path[0])
				default:
					delete(m[o.Path[0]], o.Path[1])
				}
				if files[name], err = json.Marshal(m); err != nil {
					t.Fatal(err)
				}
			case "set_header_field", "shift_offsets":
				n := binary.LittleEndian.Uint64(b)
				var m map[string]map[string]json.RawMessage
				if err := json.Unmarshal(b[8:8+n], &m); err != nil {
					t.Fatal(err)
				}
				if o.Op == "set_header_field" {
					m[o.Name][o.Field] = o.Value
				} else {
					var at [2]int64
					if err := json.Unmarshal(m[o.Name]["data_offsets"], &at); err != nil {
						t.Fatal(err)
					}
					m[o.Name]["data_offsets"] = fmt.Appendf(nil, "[%d,%d]", at[0]+o.By, at[1]+o.By)
				}
				text, err := json.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				for len(text)%8 != 0 {
					text = append(text, ' ')
				}
				files[name] = slices.Concat(binary.LittleEndian.AppendUint64(nil,
					uint64(len(text))), text, b[8+n:])
			default:
				supported = false
			}
		}
		if !supported {
			continue
		}
		ran++
		ck, err := open(lay(t, files))
		if c.Expect == "ok" {
			if err != nil {
				t.Errorf("%s: %v", c.ID, err)
			} else if err := ck.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: accepted, want an error", c.ID)
			continue
		}
		t.Logf("%s: %v", c.ID, err)
		for _, want := range c.Names {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want it to name %q", c.ID, err, want)
			}
		}
	}
	t.Logf("%d of %d cases applied", ran, len(d.Cases))
}

// Ensure that a tokenizer in vocab.json and merges.txt becomes a tokenizer.json with the tokens of
// added_tokens.json, that one without merges is none, and that files which do not fit are named.
func TestBytePairs(t *testing.T) {
	open := func(files map[string]string) (*checkpoint.Store, error) {
		all := map[string][]byte{
			"config.json": []byte(`{}`), "model.safetensors": weights(t, "a"),
			"vocab.json": []byte(`{"a": 0, "b": 1, "ab": 2}`), "merges.txt": []byte("a b\n"),
			"tokenizer_config.json": []byte(
				`{"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": null}`),
			"added_tokens.json": []byte(`{"<x>": 7}`),
		}
		for name, text := range files {
			if all[name] = []byte(text); text == "" {
				delete(all, name)
			}
		}
		f, err := folder.Open(lay(t, all))
		if err != nil {
			t.Fatal(err)
		}
		return Open(f, nil)
	}
	s, err := open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tok, err := tokenizer.Open(s.Docs.Tokenizer.Data, s.Docs.Settings.Data)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := tok.Encode("ab<x>ba", tokenizer.EncodeOptions{})
	if err != nil || !slices.Equal(ids.IDs, []int32{2, 7, 1, 0}) {
		t.Errorf("got %v, %v", ids.IDs, err)
	}
	for _, name := range []string{"vocab.json", "merges.txt"} {
		s, err := open(map[string]string{name: ""})
		if err != nil || s.Docs.Tokenizer.Data != nil {
			t.Errorf("without %s: got %s, %v", name, s.Docs.Tokenizer.Data, err)
		}
		s.Close()
	}
	for name, text := range map[string]string{
		"vocab.json": "null", "tokenizer_config.json": `{"tokenizer_class": "GPT2Tokenizer"}`,
		"added_tokens.json": "[]",
	} {
		want := strings.Replace(name, "tokenizer_config.json", "tokenizer_class", 1)
		if _, err := open(map[string]string{name: text}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}

// Ensure that templates get the texts of all named tokens, and a tokenizer.json the tokens that
// only other files have; special_tokens_map.json and added_tokens.json count only without an
// added_tokens_decoder (transformers 5.24).
func TestNamedAndAddedTokens(t *testing.T) {
	for _, c := range []struct {
		config, specials string
		id               int32 // of <x>, 0: not a token
	}{
		{`{"eos_token": {"content": "a"}, "image_token": "i", "add_bos_token": true, "pad_token": null}`,
			`{"eos_token":"b","image_token":"i","sep_token":"b"}`, 7},
		{`{"extra_special_tokens": {"boi_token": "x"}, "eos_token": "a", "added_tokens_decoder": {}}`,
			`{"boi_token":"x","eos_token":"a"}`, 0},
		{`{"extra_special_tokens": ["<b>"], "added_tokens_decoder": {"9": {"content": "<x>"}}}`, ``, 9},
		{``, `{"eos_token":"b","sep_token":"b"}`, 7},
	} {
		all := map[string][]byte{
			"config.json": []byte(`{}`), "model.safetensors": weights(t, "a"),
			"tokenizer.json": []byte(`{"model": {"type": "BPE", "merges": [],
				"vocab": {"<": 0, "x": 1, ">": 2}}}`),
			"special_tokens_map.json": []byte(`{"eos_token": "b", "sep_token": {"content": "b"}}`),
			"added_tokens.json":       []byte(`{"<x>": 7}`),
			"tokenizer_config.json":   []byte(c.config),
		}
		if c.config == "" {
			delete(all, "tokenizer_config.json")
		}
		f, err := folder.Open(lay(t, all))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(f, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got := string(s.Docs.Specials.Data); got != c.specials {
			t.Errorf("%s: named tokens: got %s, want %s", c.config, got, c.specials)
		}
		tok, err := tokenizer.Open(s.Docs.Tokenizer.Data, s.Docs.Settings.Data)
		if err != nil {
			t.Fatal(err)
		}
		if id, _ := tok.TokenID("<x>"); id != c.id {
			t.Errorf("%s: <x>: got id %d, want %d", c.config, id, c.id)
		}
	}
}
