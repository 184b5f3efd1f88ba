package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/tensor"
)

// packOf packs c with a weight of every type beside its own, and returns the file
// and the weights.
func packOf(t testing.TB, c *Checkpoint) ([]byte, map[string]*tensor.Tensor) {
	t.Helper()
	want := map[string]*tensor.Tensor{
		"q8":  {DType: tensor.Q8, Shape: []int{3, 40}, Data: bytes.Repeat([]byte{1, 2, 3}, 700)},
		"q4":  {DType: tensor.Q4, Shape: []int{64, 64}, Data: bytes.Repeat([]byte{7}, 5*packChunk/2+13)}, // over several chunks
		"f16": {DType: tensor.F16, Shape: []int{5}, Data: []byte("0123456789")},
	}
	for _, name := range c.Names() {
		want[name], _ = c.Tensor(name)
	}
	var b bytes.Buffer
	w, err := c.NewPackWriter(&b, Packed{Layout: "form", Quant: "q4", EncoderQuant: "q8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := w.Add(name, want[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), want
}

func inTurn(n int, task func(int)) {
	for i := range n {
		task(i)
	}
}

// Ensure that a packed file gives back every file and weight, before Load and
// after it, and packs to the same bytes again.
func TestPack(t *testing.T) {
	c, err := Open(lay(t, single(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, want := packOf(t, c)
	path := filepath.Join(t.TempDir(), "model.rst")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func(d time.Duration) { copyTime = d }(copyTime)
	for what, copies := range map[string]int{"all copied": 1 << 20, "some copied": 2, "mapped": 0} {
		p, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Packed(); got == nil || *got != (Packed{"form", "q4", "q8"}) || c.Packed() != nil || p.Name != c.Name {
			t.Errorf("packed as %v, named %q", got, p.Name)
		}
		same := func(when string) {
			t.Helper()
			size := int64(0)
			for name, w := range want {
				got, ok := p.Tensor(name)
				if !ok || got.DType != w.DType || !slices.Equal(got.Shape, w.Shape) || !bytes.Equal(got.Data, w.Data) {
					t.Errorf("%s, %s: %q is %v, want %v", what, when, name, got, w)
				}
				size += int64(len(w.Data))
			}
			if len(p.Names()) != len(want) || p.Bytes() != size {
				t.Errorf("%s, %s: %d tensors of %d bytes, want %d of %d", what, when, len(p.Names()), p.Bytes(), len(want), size)
			}
			for _, name := range []string{"config.json", "tokenizer.json"} {
				a, _, _ := c.File(name)
				got, ok, err := p.File(name)
				if !ok || err != nil || !bytes.Equal(got, a) {
					t.Errorf("%s, %s: %s is %q %v %v", what, when, name, got, ok, err)
				}
			}
			if _, ok, err := p.File("model.safetensors"); ok || err != nil {
				t.Errorf("%s, %s: weights as a file: %v %v", what, when, ok, err)
			}
		}
		same("opened")
		done, total, allocated := int64(0), int64(0), 0
		copyTime = time.Hour
		run := func(n int, task func(int)) {
			for i := range n {
				if i == copies {
					copyTime = 0
				}
				task(i)
			}
		}
		for range 2 { // the second does nothing
			err := p.Load(func(n int) []byte { allocated += n; return make([]byte, n) }, run, func(d, n int64) { done, total = d, n })
			if err != nil {
				t.Fatal(err)
			}
		}
		if done != total || allocated != int(total) || total > int64(len(b)) {
			t.Errorf("%s: read %d of %d bytes into %d", what, done, total, allocated)
		}
		if whole := len(p.files) == 0; whole != (copies > 2) {
			t.Errorf("%s: mapping closed: %v", what, whole)
		}
		same("loaded")
		if again, _ := packOf(t, p); len(again) == 0 {
			t.Errorf("%s: not packed again", what)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := c.Load(nil, nil, nil); err != nil {
		t.Errorf("load of a directory: %v", err)
	}
}

// Ensure that whatever byte is changed, and wherever a file ends, it is refused
// when it is opened or loaded, in one line.
func TestPackDamage(t *testing.T) {
	c, err := OpenFS(os.DirFS(lay(t, single(t))), ".")
	if err != nil {
		t.Fatal(err)
	}
	good, _ := packOf(t, c)
	path := filepath.Join(t.TempDir(), "model.rst")
	read := func(b []byte) error {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Open(path)
		if err != nil {
			return err
		}
		defer p.Close()
		return p.Load(func(n int) []byte { return make([]byte, n) }, inTurn, nil)
	}
	if err := read(good); err != nil {
		t.Fatal(err)
	}
	index := len(good) - packTail - int(binary.LittleEndian.Uint64(good[len(good)-16:]))
	places := map[string][]int{
		"not a packed model": {0, len(packMagic) - 1}, "version": {len(packMagic)}, "damaged: the first": {len(packMagic) + 4, packHead - 1},
		"damaged: bytes": {packHead, packHead + packChunk/2, index - 1}, "damaged: the index": {index, len(good) - packTail - 1},
		"torn": {len(good) - packTail, len(good) - 12, len(good) - 1},
	}
	for want, at := range places {
		for _, i := range at {
			bad := slices.Clone(good)
			bad[i] ^= 4
			if err := read(bad); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("byte %d of %d changed: %v, want %q", i, len(good), err, want)
			}
		}
	}
	for _, n := range []int{0, 5, packHead, packHead + packTail, len(good) / 2, index, len(good) - packTail, len(good) - 1} {
		if err := read(good[:n]); err == nil {
			t.Errorf("%d of %d bytes: accepted", n, len(good))
		}
	}
	if err := read(append(slices.Clone(good), 0)); err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("a byte more: %v", err)
	}
}

// Ensure that a file is refused when its directory has changed, and not when that
// is gone.
func TestPackStale(t *testing.T) {
	for what, change := range map[string]func(file string) error{
		"longer": func(f string) error { return os.WriteFile(f, []byte(`{"longer": 1}`), 0o600) },
		"later":  func(f string) error { return os.Chtimes(f, time.Time{}, time.Unix(1e9, 0)) },
		"gone":   os.Remove,
	} {
		for _, file := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
			dir := lay(t, single(t))
			c, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := packOf(t, c)
			c.Close()
			path := filepath.Join(t.TempDir(), "model.rst")
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := change(filepath.Join(dir, file)); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "stale") || !strings.Contains(err.Error(), file) {
				t.Errorf("%s %s: %v", file, what, err)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			p, err := Open(path)
			if err != nil {
				t.Fatalf("without its directory: %v", err)
			}
			p.Close()
		}
	}
}

// sealed is a packed file with the checksums that index and data have.
func sealed(index, data []byte) []byte {
	b := slices.Concat(packStart(), data, index)
	at := len(b)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(index)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(index, castagnoli))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// openBytes is openPack of a file in memory.
func openBytes(b []byte) (*Checkpoint, error) {
	index, data, err := parsePack(b)
	if err != nil {
		return nil, err
	}
	if err := index.Source.unchanged(); err != nil {
		return nil, err
	}
	return index.checkpoint(data)
}

// sums is the member of an index with the checksums of data.
func sums(data []byte) string {
	var s []byte
	for at := 0; at < len(data); at += packChunk {
		s = binary.LittleEndian.AppendUint32(s, crc32.Checksum(data[at:min(at+packChunk, len(data))], castagnoli))
	}
	text, _ := json.Marshal(s)
	return string(text)
}

// Ensure that an index that is checksummed and makes no sense is refused.
func TestPackIndex(t *testing.T) {
	data := slices.Concat([]byte("{}"), make([]byte, 62), []byte("12345678"))
	const file = `"files":[{"name":"config.json","at":0,"size":2}]`
	good := `{` + file + `,"tensors":[{"name":"w","at":64,"size":8,"dtype":"F32","shape":[2]}],"sums":` + sums(data) + `}`
	if _, err := openBytes(sealed([]byte(good), data)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"at":64`, `"at":0`, "want them after 2"}, {`"at":64`, `"at":65`, "and 8 from there"}, {`"at":64`, `"at":128`, "within the 72"},
		{`"size":8`, `"size":9`, "within the 72"}, {`"size":8`, `"size":7`, "got 7 bytes, want 8"}, {`"at":64`, `"at":-64`, "index"},
		{`"at":64`, `"at":18446744073709551552`, "within"}, {`"size":8`, `"size":18446744073709551615`, "within"},
		{`[2]`, `[3]`, "got 8 bytes, want 12"}, {`[2]`, `[2,9223372036854775807]`, "shape"}, {`[2]`, `[4294967296,4294967296]`, "shape"},
		{`[2]`, `[0,9223372036854775807]`, "shape"}, {`"F32"`, `"I32"`, "want F32, F16"}, {`"F32"`, `"f32"`, "want F32, F16"},
		{`"name":"config.json"`, `"name":"../config.json"`, "plain name"}, {`"name":"config.json"`, `"name":"c.json"`, "config.json missing"},
		{`"size":2`, `"size":1`, "config.json"}, {`"sums":"`, `"sums":"AAAA`, "checksums"}, {`"sums"`, `"sum"`, "unknown field"},
		{`"files":[`, `"source":{"dir":"/","files":[{"name":"../x","size":1,"modified":1}]},"files":[`, "plain name"},
		{`{"files"`, `{"files":[],"files"`, "occurs twice"}, {good, `[]`, "want a JSON object"}, {good, ``, "index"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if _, err := openBytes(sealed([]byte(text), data)); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", text, err, c.want)
		}
	}
}

// FuzzPack wants any index, sealed with good checksums, to be refused or to give
// weights within the data.
func FuzzPack(f *testing.F) {
	data := slices.Concat([]byte("{}"), make([]byte, 62), []byte("12345678"))
	f.Add([]byte(fmt.Sprintf(`{"files":[{"name":"config.json","at":0,"size":2}],"tensors":[{"name":"w","at":64,"size":8,"dtype":"F32","shape":[2]}],"sums":%s}`, sums(data))), data)
	f.Add([]byte(`{"files":[],"tensors":[],"sums":""}`), []byte{})
	f.Fuzz(func(t *testing.T, index, data []byte) {
		text := bytes.Replace(index, []byte(`"sums":0`), []byte(`"sums":`+sums(data)), 1)
		_, _ = openBytes(data) // a file as it is
		c, err := openBytes(sealed(text, data))
		if err != nil {
			return
		}
		total := 0
		for _, name := range c.Names() {
			w, _ := c.Tensor(name)
			total += len(w.Data)
			if bits := w.DType.Bits(); bits > 0 && w.Len()*bits/8 != len(w.Data) {
				t.Errorf("%v of %d bytes", w, len(w.Data))
			}
		}
		if total > len(data) {
			t.Errorf("weights of %d bytes in %d", total, len(data))
		}
	})
}
