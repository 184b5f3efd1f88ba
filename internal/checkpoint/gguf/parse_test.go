package gguf

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/golden"
	"github.com/restore-vlm/restore/internal/model/families"
)

// Ensure that the values of every type equal the results of ggml's code bit for bit, for random
// blocks and for blocks from its quantisers.
func TestValues(t *testing.T) {
	path := filepath.Join("testdata", "blocks.safetensors")
	if root := os.Getenv("RESTORE_ORACLE"); root != "" {
		path = filepath.Join(root, "formats", "gguf", "quants", "blocks.safetensors")
	}
	want := golden.Read(t, path)
	checked := 0
	for _, typ := range blockTypes {
		for _, kind := range []string{"random", "quantised"} {
			blocks, values := want[typ.name+"."+kind+".blocks"], want[typ.name+"."+kind+".values"]
			if blocks == nil {
				continue
			}
			checked++
			info := tensorInfo{name: "x", shape: []int{values.Len()}, typ: typ, data: blocks.Data}
			got, err := info.weight().Float32s()
			if err != nil {
				t.Fatal(err)
			}
			wanted, err := values.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			for i := range wanted {
				if math.Float32bits(got[i]) != math.Float32bits(wanted[i]) {
					t.Errorf("%s, %s: value %d: got %v, want %v", typ.name, kind, i, got[i],
						wanted[i])
					break
				}
			}
		}
	}
	if checked != 28 {
		t.Errorf("checked %d lists, want two of each of 14 types", checked)
	}
}

// Ensure that valid files are read, and that every fault is found and reported in one line.
func TestFiles(t *testing.T) {
	files := golden.Unzip(t, "testdata/bad.zip")
	var cases []struct{ File, Expected, Why string }
	if err := json.Unmarshal(files["files.json"], &cases); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, c := range cases {
		path := filepath.Join(dir, c.File)
		if err := os.WriteFile(path, files[c.File], 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Read(path, families.Files)
		if err == nil {
			for _, name := range s.Names() {
				w, _ := s.Tensor(name)
				if _, err := w.Float32s(); err != nil && w.Read != nil {
					t.Errorf("%s: %v", c.File, err)
				}
			}
			s.Close()
		} else {
			t.Logf("%s: %v", c.File, err)
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %q, want one line", c.File, err)
			}
		}
		if c.Expected == "accept" && err != nil || c.Expected == "refuse" && err == nil {
			t.Errorf("%s (%s): got %v, want it to be %s", c.File, c.Why, err,
				map[string]string{"accept": "read", "refuse": "refused"}[c.Expected])
		}
	}
}

// FuzzParse reads hostile files: no panic, and no more memory than the file's size justifies.
func FuzzParse(f *testing.F) {
	for name, b := range golden.Unzip(f, "testdata/bad.zip") {
		if strings.HasSuffix(name, ".gguf") {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parse(b)
		if err != nil {
			return
		}
		if file.checkArchitecture(families.Files) != nil {
			return
		}
		for _, x := range file.tensors {
			if len(x.data) != x.weight().Len()/x.typ.values*x.typ.bytes {
				t.Fatalf("%q: %d bytes for %v of %s", x.name, len(x.data), x.shape, x.typ.name)
			}
			if _, err := x.weight().Float32s(); err != nil && !x.typ.plain {
				t.Fatal(err)
			}
		}
	})
}

// FuzzModel makes models of hostile headers.
func FuzzModel(f *testing.F) {
	files := golden.Unzip(f, "testdata/headers.zip")
	for name, projector := range map[string]string{
		"llavanext-vicuna-tiny/llavanext-vicuna-tiny-f32.gguf": "llavanext-vicuna-tiny/mmproj-llavanext-vicuna-tiny-f32.gguf",
		"qwen25vl-tiny/qwen25vl-tiny-f32.gguf":                 "qwen25vl-tiny/mmproj-qwen25vl-tiny-f32.gguf",
	} {
		f.Add(files[name], files[projector])
	}
	// also the encoder's queries and keys permuted, factors of the rotation, offsets of norms
	for _, name := range []string{"mistral3-tiny", "llava-siglip-tiny", "gemma3-six-tiny"} {
		files = golden.Unzip(f, "../../engine/testdata/gguf/"+name+".zip")
		f.Add(files[name+".gguf"], files["mmproj-"+name+".gguf"])
	}
	f.Fuzz(func(t *testing.T, decoder, projector []byte) {
		var files [2]*file
		for i, b := range [][]byte{decoder, projector} {
			f, infos, err := readHeader(&cursor{b: b})
			if err != nil || f.checkArchitecture(families.Files) != nil {
				return
			}
			for _, x := range infos {
				if x.name == pairFactors { // its values are read
					if x.size > 1<<16 {
						return
					}
					x.data = bytes.Repeat([]byte{63}, int(x.size))
				}
				f.tensors = append(f.tensors, x.tensorInfo)
			}
			files[i] = f
		}
		s := &checkpoint.Store{Weights: map[string]*checkpoint.Weight{}}
		if err := assemble(s, files[0], files[1], families.Files); err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("got %q, want one line", err)
			}
			return
		}
		if err := checkpoint.CheckObject(s.Docs.Config.Data); err != nil {
			t.Errorf("config.json: %v", err)
		}
	})
}

// Ensure that a getter returns its default for a value of another kind, and that the file then
// keeps an error that names the key.
func TestKinds(t *testing.T) {
	text := value{typ: typeString, count: 1, data: []byte("\x03\x00\x00\x00\x00\x00\x00\x00abc")}
	list := value{typ: typeArray, elem: typeFloat32, count: 1, data: make([]byte, 4)}
	for want, read := range map[string]func(f *file) bool{
		`key "text": got a STRING, want a whole number`: func(f *file) bool {
			return f.Number("text", 3) == 3
		},
		`key "text": got a STRING, want a bool`: func(f *file) bool { return f.Flag("text", true) },
		`key "list": got an array, each element a FLOAT32, want a whole number or an array of them`: func(f *file) bool {
			return f.Numbers("list") == nil
		},
		`key "list": got an array, each element a FLOAT32, want a string`: func(f *file) bool {
			return f.Text("list", "no") == "no"
		},
	} {
		f := &file{keys: map[string]value{"text": text, "list": list}}
		if !read(f) || f.wrong == nil || f.wrong.Error() != want {
			t.Errorf("got %v, want %s", f.wrong, want)
		}
	}
	f := &file{keys: map[string]value{"text": text}}
	if f.Text("text", "") == "" || f.Number("none", 3) != 3 || f.wrong != nil {
		t.Errorf("got %v for keys of the right kind", f.wrong)
	}
}
