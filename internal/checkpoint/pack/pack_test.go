package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// model returns a bundle of two weights whose files are in a new folder.
func model(t testing.TB) *checkpoint.Store {
	t.Helper()
	s := &checkpoint.Store{
		What: checkpoint.About{Name: "tiny"},
		Weights: map[string]*checkpoint.Weight{
			"a.weight": {Tensor: *tensor.From([]int{2, 8}, make([]float32, 16))},
			"b":        {Tensor: *tensor.From([]int{2, 1}, make([]float32, 2))},
		},
	}
	s.Docs.Config = checkpoint.Part{Data: []byte(`{"model_type": "x"}`), From: "config.json"}
	s.Docs.Tokenizer = checkpoint.Part{Data: []byte("{}"), From: "tokenizer.json"}
	dir := t.TempDir()
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
		s.What.Files = append(s.What.Files, filepath.Join(dir, name))
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Seal()
	return s
}

// packOf packs c with a weight of every type in addition to its own, and returns the file and the
// weights.
func packOf(t testing.TB, c checkpoint.Bundle) ([]byte, map[string]*tensor.Tensor) {
	t.Helper()
	want := map[string]*tensor.Tensor{
		"q8": {DType: tensor.Q8, Shape: []int{3, 40}, Data: bytes.Repeat([]byte{1, 2, 3}, 700)},
		"q4": {
			DType: tensor.Q4,
			Shape: []int{64, 64},
			Data:  bytes.Repeat([]byte{7, 8, 9}, 5*packPart/6),
			Order: make([]int32, 64),
		}, // in several parts
		"f16": {DType: tensor.F16, Shape: []int{5}, Data: []byte("0123456789")},
	}
	for i := range want["q4"].Order {
		want["q4"].Order[i] = int32(63 - i)
	}
	for _, name := range c.Names() {
		w, _ := c.Tensor(name)
		want[name] = &w.Tensor
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, c, checkpoint.Packed{Layout: "form", Quant: "q4", EncoderQuant: "q8"})
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

// never is for checks that nobody ends.
func never() bool { return false }

// Ensure that a packed file returns every document and weight, checks weights in place and in a
// copy, and packs to the same bytes again.
func TestPack(t *testing.T) {
	c := model(t)
	b, want := packOf(t, c)
	path := filepath.Join(t.TempDir(), "model.rst")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	got := p.About().Packed
	if got == nil ||
		*got != (checkpoint.Packed{Layout: "form", Quant: "q4", EncoderQuant: "q8"}) ||
		p.What.Name != c.What.Name {
		t.Errorf("packed as %v, named %q", got, p.What.Name)
	}
	size := int64(0)
	for name, w := range want {
		got, ok := p.Tensor(name)
		if !ok || got.DType != w.DType || !slices.Equal(got.Shape, w.Shape) ||
			!bytes.Equal(got.Data, w.Data) || !slices.Equal(got.Order, w.Order) {
			t.Errorf("%q is %v, want %v", name, got, w)
		}
		size += int64(len(w.Data))
		var copied []byte
		for _, alloc := range []func(n int) []byte{nil, func(n int) []byte {
			copied = make([]byte, n)
			return copied
		}} {
			data, err := p.Check(name, alloc, never)
			if err != nil || !bytes.Equal(data, w.Data) {
				t.Errorf("%q: checked: %d bytes (%v), want %d", name, len(data), err, len(w.Data))
			}
		}
		if len(copied) != len(w.Data) || !bytes.Equal(copied, w.Data) {
			t.Errorf("%q: not copied", name)
		}
	}
	if len(p.Names()) != len(want) || p.What.Size != size {
		t.Errorf("%d tensors of %d bytes, want %d of %d", len(p.Names()), p.What.Size, len(want),
			size)
	}
	docs := map[string]string{}
	p.Docs.Each(
		func(name string, part *checkpoint.Part) { docs[name] = string(part.Data) + part.From },
	)
	c.Docs.Each(func(name string, part *checkpoint.Part) {
		want := name // if there is none
		if part.Data != nil {
			want = string(part.Data) + part.From
		}
		if docs[name] != want {
			t.Errorf("%s is %q, want %q", name, docs[name], want)
		}
	})
	again, _ := packOf(t, p)
	q, err := openBytes(again)
	if err != nil {
		t.Fatal(err)
	}
	var bad []error
	for name := range want {
		_, err := q.Check(name, func(int) []byte { panic("copied from memory") }, never)
		bad = append(bad, err)
	}
	if err := errors.Join(bad...); err != nil {
		t.Errorf("packed again: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// Ensure that large tensors lie in the order of Add, and small ones together after them.
func TestPackOrder(t *testing.T) {
	p, err := openBytes(sizes(t, 3*packSmall, 8, packSmall+4, packSmall, 2*packSmall, 12))
	if err != nil {
		t.Fatal(err)
	}
	names := slices.SortedFunc(maps.Keys(p.stored), func(a, b string) int {
		return int(p.stored[a].at) - int(p.stored[b].at)
	})
	if want := []string{"0", "2", "4", "1", "3", "5"}; !slices.Equal(names, want) {
		t.Errorf("tensors lie in the order %v, want %v", names, want)
	}
}

// Ensure that a name is refused if a packed file with it could not be opened.
func TestPackName(t *testing.T) {
	w, err := NewWriter(io.Discard, model(t), checkpoint.Packed{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Add(strings.Repeat("w", maxName+1), tensor.From([]int{packSmall},
		make([]float32, packSmall))); err == nil || !strings.Contains(err.Error(), "501 bytes") {
		t.Error(err)
	}
}

// sizes is a packed file with tensors of these sizes, named by their place in the list.
func sizes(t *testing.T, list ...int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, model(t), checkpoint.Packed{})
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range list {
		data := bytes.Repeat([]byte{byte(i)}, n)
		if err := w.Add(fmt.Sprint(i), &tensor.Tensor{
			DType: tensor.F32, Shape: []int{n / 4}, Data: data,
		}); err != nil {
			t.Fatal(err)
		}
		clear(data) // Add's tensor is valid only during the call
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Ensure that a check ends within a part once it should, and at once if the file is cut short.
func TestPackCheckEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.rst")
	if err := os.WriteFile(path, sizes(t, 3*packPart, 2*packPart), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	calls := 0
	if _, err := p.Check("0", nil, func() bool { calls++; return calls == 2 }); calls != 2 ||
		!errors.Is(err, checkpoint.ErrEnded) {
		t.Errorf("ended at the second part: %v after %d parts", err, calls)
	}
	if err := os.Truncate(path, packHead+packPart/2); err != nil {
		t.Fatal(err)
	}
	for _, alloc := range []func(n int) []byte{nil, func(n int) []byte { return make([]byte, n) }} {
		_, err := p.Check("1", alloc, never)
		if !errors.Is(err, errs.ErrDamaged) || !strings.Contains(err.Error(), `tensor "1"`) ||
			!strings.Contains(err.Error(), "cut short") || !strings.Contains(err.Error(), path) {
			t.Errorf("cut short, copied %v: %v", alloc != nil, err)
		}
	}
}

// Ensure that a file with any byte changed, or cut at any length, is refused when it is opened or
// when its weights are checked, in one line that names the damaged part.
func TestPackDamage(t *testing.T) {
	good, want := packOf(t, model(t))
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
		for name := range want {
			if _, err = p.Check(name, nil, never); err != nil {
				return err
			}
		}
		return nil
	}
	if err := read(good); err != nil {
		t.Fatal(err)
	}
	index := len(good) - packTail - int(binary.LittleEndian.Uint64(good[len(good)-16:]))
	whole, err := openBytes(good)
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) int { return packHead + int(whole.stored[name].at) }
	places := map[string][]int{
		"not a packed model":         {0, len(Magic) - 1},
		"version":                    {len(Magic)},
		"damaged: the first":         {len(Magic) + 4, packHead - 1},
		`document "config": damaged`: {packHead, packHead + 18},
		// with the zeros between the items
		`document "tokenizer": damaged`: {packHead + 19, packHead + 63, packHead + 65},
		`tensor "q4": damaged: got checksum`: {
			packHead + 66, at("q4") - 1, at("q4"), at("q4") + packPart, at("q4") + 5*packPart/2 - 2,
		},
		`tensor "a.weight": damaged`: {at("a.weight"), at("a.weight") + 63},
		`tensor "q8": damaged`:       {at("q8"), at("q8") + 2099},
		`order of "q4": damaged`:     {index - 1, index - 4*64},
		"damaged: the index":         {index, len(good) - packTail - 1},
		"torn":                       {len(good) - packTail, len(good) - 12, len(good) - 1},
	}
	for want, at := range places {
		for _, i := range at {
			bad := slices.Clone(good)
			bad[i] ^= 4
			if err := read(bad); err == nil || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), path) ||
				strings.Contains(err.Error(), "\n") ||
				(want == "torn" || strings.Contains(want, "damaged")) !=
					errors.Is(err, errs.ErrDamaged) {
				t.Errorf("byte %d of %d changed: %v, want %q", i, len(good), err, want)
			}
		}
	}
	for _, n := range []int{
		0, 5, packHead, packHead + packTail, len(good) / 2, index, len(good) - packTail, len(good) - 1,
	} {
		if err := read(good[:n]); err == nil {
			t.Errorf("%d of %d bytes: accepted", n, len(good))
		}
	}
	if err := read(append(slices.Clone(good), 0)); err == nil ||
		!strings.Contains(err.Error(), "torn") {
		t.Errorf("a byte more: %v", err)
	}
}

// Ensure that a file is refused if one of its sources has changed, and not if all are gone.
func TestPackStale(t *testing.T) {
	for what, change := range map[string]func(file string) error{
		"longer": func(f string) error { return os.WriteFile(f, []byte(`{"longer": 1}`), 0o600) },
		"other":  func(f string) error { return os.WriteFile(f, []byte("[]"), 0o600) },
		"gone":   os.Remove,
	} {
		for i := range model(t).What.Files {
			c := model(t)
			file := c.What.Files[i]
			path := packed(t, c)
			if err := change(file); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "stale") ||
				!strings.Contains(err.Error(), file) {
				t.Errorf("%s %s: %v", file, what, err)
			}
			if err := os.RemoveAll(filepath.Dir(file)); err != nil {
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

// packed packs c into a file.
func packed(t *testing.T, c *checkpoint.Store) string {
	t.Helper()
	b, _ := packOf(t, c)
	path := filepath.Join(t.TempDir(), "model.rst")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Ensure that sources with another time and the same content are compared once, that the file stays
// valid, and that a later change is found.
func TestPackTouched(t *testing.T) {
	c := model(t)
	path := packed(t, c)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	open := func() error {
		p, err := Open(path)
		if err == nil {
			err = p.Close()
		}
		return err
	}
	at := time.Unix(1e9, 0)
	if err := os.Chtimes(c.What.Files[0], time.Time{}, at); err != nil {
		t.Fatal(err)
	}
	if err := open(); err != nil {
		t.Fatalf("touched: %v", err)
	}
	noted, err := os.ReadFile(path)
	if err != nil || bytes.Equal(noted, before) ||
		!bytes.Equal(noted[packHead:], before[packHead:]) {
		t.Fatalf("the new time is not noted in the head alone: %v", err)
	}
	// The note is trusted: other content of the same size and time is not read.
	if err := os.WriteFile(c.What.Files[0], []byte("[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(c.What.Files[0], time.Time{}, at); err != nil {
		t.Fatal(err)
	}
	if err := open(); err != nil {
		t.Errorf("noted: %v", err)
	}
	if err := os.Chtimes(c.What.Files[0], time.Time{}, at.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := open(); err == nil || !strings.Contains(err.Error(), "stale") {
		t.Errorf("changed after that: %v", err)
	}
	noted[seenAt+10] ^= 1
	if err := os.WriteFile(path, noted, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged note: %v", err)
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

// openBytes is Open for a file in memory.
func openBytes(b []byte) (*Packed, error) {
	index, data, err := parsePack(b)
	if err != nil {
		return nil, err
	}
	if _, err := index.unchanged(nil); err != nil {
		return nil, err
	}
	return index.bundle(data)
}

// sum is the checksum of bytes from … to-1 of data.
func sum(data []byte, from, to int) string {
	return fmt.Sprint(crc32.Checksum(data[from:to], castagnoli))
}

// Ensure that an index with valid checksums but invalid content is refused.
func TestPackIndex(t *testing.T) {
	data := slices.Concat([]byte("{}"), make([]byte, 62), []byte("12345678"))
	good := smallIndex(data)
	if c, err := openBytes(sealed([]byte(good), data)); err != nil {
		t.Fatal(err)
	} else if _, err := c.Check("w", nil, never); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new, want string }{
		{`"at":64`, `"at":0`, "multiple of 64 from 2 on"}, {`"at":64`, `"at":65`, "and 8 from there"}, {`"at":64`, `"at":128`, "multiple of 64 from 2 on"},
		{`"size":8`, `"size":9`, "from 2 on and within the 72"}, {`"size":8`, `"size":7`, "got 7 bytes, want 8"}, {`"at":64`, `"at":-64`, "index"},
		{`"at":64`, `"at":18446744073709551552`, "within"}, {`"size":8`, `"size":18446744073709551615`, "within"},
		{`[2]`, `[3]`, "got 8 bytes, want 12"}, {`[2]`, `[2,9223372036854775807]`, "shape"}, {`[2]`, `[4294967296,4294967296]`, "shape"},
		{`[2]`, `[0,9223372036854775807]`, "shape"}, {`"F32"`, `"I32"`, "want F32, F16"}, {`"F32"`, `"f32"`, "want F32, F16"},
		{`"name":"config"`, `"name":"../config.json"`, "known name"}, {`"name":"config"`, `"name":"recipe"`, "config missing"},
		{`"name":"w"`, `"name":"` + strings.Repeat("w", 501) + `"`, "got a name of 501 bytes"},
		{`"size":2`, `"size":1`, "config"}, {`"sum":`, `"sum":9999`, "index"}, {`"dtype"`, `"type"`, "unknown field"},
		{`"sum":` + sum(data, 0, 2), `"sum":0`, `document "config": damaged`}, {`"sum":`, `"sum":-`, "index"},
		{`"tensors":[`, `"tensors":[],"name":"","tensors":[`, "occurs twice"},
		{`"parts":[`, `"sources":[{"path":"../x","size":1,"modified":1}],"parts":[`, "absolute path"},
		{`"F32"`, `"F32","order":{"name":"w","at":72,"size":0}`, "from 72 on"},
		{`"size":8,"dtype":"F32","shape":[2]`, `"size":0,"dtype":"F32","shape":[0],"order":{"name":"w","at":64,"size":8,"sum":` + sum(data, 64, 72) + `}`, "order: got 8 bytes"},
		{`"size":8,"dtype":"F32","shape":[2]`, `"size":0,"dtype":"Q4","shape":[0,1],"order":{"name":"w","at":64,"size":4,"sum":` + sum(data, 64, 68) + `}`, "order: column 0: got 875770417"},
		{`{"name":"w"`, `{"name":"v","at":64,"size":0,"dtype":"F32","shape":[0]},{"name":"v"`, "occurs twice"},
		{`{"parts"`, `{"parts":[],"parts"`, "occurs twice"}, {good, `[]`, "want a JSON object"}, {good, ``, "index"},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if _, err := openBytes(sealed([]byte(text), data)); err == nil ||
			!strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", text, err, c.want)
		}
	}
}

// smallIndex is the index of data, with a configuration and a weight.
func smallIndex(data []byte) string {
	return fmt.Sprintf(`{"parts":[{"name":"config","at":0,"size":2,"sum":%s}],`+
		`"tensors":[{"name":"w","at":64,"size":8,"dtype":"F32","shape":[2],"sum":%s}]}`,
		sum(data, 0, 2), sum(data, 2, 72))
}

// FuzzPack: any index, sealed with valid checksums, is either refused or gives weights within the
// data that can be checked.
func FuzzPack(f *testing.F) {
	data := slices.Concat([]byte("{}"), make([]byte, 62), []byte("12345678"))
	f.Add([]byte(smallIndex(data)), data)
	f.Add([]byte(`{"parts":[],"tensors":[]}`), []byte{})
	f.Fuzz(func(t *testing.T, index, data []byte) {
		_, _ = openBytes(data) // an unsealed file
		c, err := openBytes(sealed(index, data))
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
			if got, err := c.Check(name, nil, never); err == nil && len(got) != len(w.Data) ||
				err != nil && !errors.Is(err, errs.ErrDamaged) {
				t.Errorf("%v checked: %d bytes, %v", w, len(got), err)
			}
		}
		if total > len(data) {
			t.Errorf("weights of %d bytes in %d", total, len(data))
		}
	})
}
