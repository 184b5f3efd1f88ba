package dataset

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

type picture struct {
	Bytes []byte  `parquet:"bytes"`
	Path  *string `parquet:"path,optional"`
}

type sample struct {
	ID     int64    `parquet:"id"`
	Text   *string  `parquet:"text,optional"`
	Words  []string `parquet:"words,list"`
	Humans []struct {
		Answer string `parquet:"answer"`
		ID     int32  `parquet:"id"`
	} `parquet:"humans,list"`
	Image picture   `parquet:"image"`
	Many  []picture `parquet:"many,list"`
}

func samples(n int) []sample {
	rows := make([]sample, n)
	for i := range rows {
		r := &rows[i]
		r.ID = int64(i)
		if i%3 > 0 {
			text := strings.Repeat("x", i%5)
			r.Text = &text
		}
		for j := range i % 4 {
			r.Words = append(r.Words, string(rune('a'+j)))
			r.Humans = append(r.Humans, struct {
				Answer string `parquet:"answer"`
				ID     int32  `parquet:"id"`
			}{string(rune('p' + j)), int32(i)})
			r.Many = append(r.Many, picture{Bytes: []byte{byte(i), byte(j)}})
		}
		r.Image.Bytes = bytes.Repeat([]byte{byte(i)}, 1+i%7)
	}
	return rows
}

// write writes rows to a file, with a few rows per group and page.
func write(t testing.TB, name string, rows []sample, options ...parquet.WriterOption) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	options = append(options, parquet.MaxRowsPerRowGroup(7), parquet.PageBufferSize(24))
	if err := parquet.Write(f, rows, options...); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t testing.TB, path string) *Parquet {
	t.Helper()
	p, err := OpenParquet(filepath.Dir(path), []string{filepath.Base(path)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// Ensure that nested cells and pictures are read as written, in every form of the file.
func TestParquet(t *testing.T) {
	rows := samples(40)
	for name, options := range map[string][]parquet.WriterOption{
		"snappy":          {parquet.Compression(&parquet.Snappy)},
		"gzip":            {parquet.Compression(&parquet.Gzip)},
		"zstd, version 2": {parquet.Compression(&parquet.Zstd), parquet.DataPageVersion(2)},
		"plain":           {parquet.DataPageVersion(1)},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, write(t, "a.parquet", rows, options...))
			if p.Len() != 40 {
				t.Fatalf("%d rows", p.Len())
			}
			n := 0
			for r, err := range p.Scan("bytes", "id", "text", "words", "humans", "many") {
				if err != nil {
					t.Fatal(err)
				}
				want := rows[n]
				text, ok := r.Optional("text")
				if r.Int("id") != want.ID || ok != (want.Text != nil) ||
					ok && text != *want.Text ||
					!slices.Equal(r.Texts("words"), want.Words) {
					t.Errorf("row %d: %v", n, r.cells)
				}
				for i, h := range r.List("humans") {
					if h.Text("answer") != want.Humans[i].Answer ||
						h.Int("id") != int64(want.Humans[i].ID) {
						t.Errorf("row %d, human %d: %v", n, i, h.cells)
					}
				}
				if len(r.List("many")) != len(want.Many) || r.Err() != nil {
					t.Errorf("row %d: %v, %v", n, r.cells["many"], r.Err())
				}
				n++
			}
			if n != 40 {
				t.Errorf("ended at %d", n)
			}
			for _, i := range []int64{0, 1, 2, 30, 5, 39, 38} {
				got, err := p.Picture("image", i, 0)
				if err != nil || !bytes.Equal(got, rows[i].Image.Bytes) {
					t.Errorf("picture %d: %v %v", i, got, err)
				}
				for j, m := range rows[i].Many {
					if got, err := p.Picture("many", i, j); err != nil ||
						!bytes.Equal(got, m.Bytes) {
						t.Errorf("picture %d of %d: %v %v", j, i, got, err)
					}
				}
			}
		})
	}
}

// Ensure that the error for a missing column names it.
func TestParquetColumn(t *testing.T) {
	p := open(t, write(t, "a.parquet", samples(3)))
	for _, err := range p.Scan("", "id", "question") {
		if want := `row 0, column "question": missing, got id, text, words, humans, image, many`; err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		break
	}
	if _, err := p.Picture("many", 0, 0); err == nil ||
		!strings.Contains(err.Error(), `row 0, column "many": 0 pictures`) {
		t.Errorf("no picture: %v", err)
	}
}

// Ensure that files that are cut off or changed return an error of one line and take little memory.
func TestParquetDamaged(t *testing.T) {
	whole, err := os.ReadFile(write(t, "a.parquet", samples(20),
		parquet.Compression(&parquet.Snappy)))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b.parquet")
	try := func(data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		readAll(t, path)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	tries := uint64(0)
	for i := 0; i < len(whole); i += 13 {
		try(whole[:i])
		for _, b := range []byte{0, 0x7f, 0xff} {
			data := bytes.Clone(whole)
			data[i] = b
			try(data)
		}
		tries += 4
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / tries; each > 64<<20 {
		t.Errorf("%d bytes allocated for a file of %d bytes", each, len(whole))
	}
}

// readAll reads all of a file that may be damaged; an error must be one line.
func readAll(t testing.TB, path string) {
	p, err := OpenParquet(filepath.Dir(path), []string{filepath.Base(path)})
	if err == nil {
		defer p.Close()
		var names []string
		for _, c := range p.shards[0].Root().Columns() {
			names = append(names, c.Name())
		}
		n := 0
		for _, rowErr := range p.Scan("", names...) {
			if err = rowErr; err != nil {
				break
			}
			if n++; n > 1000 {
				break
			}
		}
		_, _ = p.Picture("image", 3, 0)
	}
	if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
		t.Errorf("more than a line: %q", err)
	}
}

func FuzzParquet(f *testing.F) {
	for _, options := range [][]parquet.WriterOption{
		{parquet.Compression(&parquet.Snappy)}, {parquet.Compression(&parquet.Zstd), parquet.DataPageVersion(2)}, {},
	} {
		data, err := os.ReadFile(write(f, "a.parquet", samples(9), options...))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		readAll(t, file(t, "a.parquet", string(data)))
	})
}

// Ensure that pages whose headers hold the least and the greatest picture can be read.
func TestParquetStatistics(t *testing.T) {
	rows := samples(3)
	rows[1].Image.Bytes = bytes.Repeat([]byte{7}, 3<<20)
	p := open(t, write(t, "large.parquet", rows, parquet.DataPageStatistics(true)))
	data, err := p.Picture("image", 1, 0)
	if err != nil || !bytes.Equal(data, rows[1].Image.Bytes) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// Ensure that a shard without rows can be read.
func TestParquetEmpty(t *testing.T) {
	p := open(t, write(t, "empty.parquet", nil))
	if p.Len() != 0 {
		t.Errorf("%d rows", p.Len())
	}
	for row, err := range p.Scan("", "id") {
		t.Errorf("%v, %v", row, err)
	}
}

// Len returns the number of rows.
func (p *Parquet) Len() (n int64) {
	for _, s := range p.shards {
		n += s.NumRows()
	}
	return n
}

// Ensure that what the parquet library decodes wrongly is refused: from pyarrow 26, in data pages
// of version 2, 20 times true and 20 times false in runs, and a null list followed by a page
// without values; and LZ4_RAW.
func TestParquetUnsupported(t *testing.T) {
	const runs = "UEFSMRUGFRQVFFwVUBUAFVAVBhUEFQASHAAAAFABBAAAACgBKAAVBBksNQAYBnNjaGVtYRUCABUA" +
		"JQIYAWIAFlAZHBkcJgAcFQAZFQYZGAFiFQAWUBZEFkQmCEkcFQAVBhUCADwpBhkmAFAAAAAWRBZQJggWRAAoIHBh" +
		"cnF1ZXQtY3BwLWFycm93IHZlcnNpb24gMjYuMC4xGRwcAAAAeQAAAFBBUjE="
	const nothing = "UEFSMRUEFQAVAEwVABUAEgAAFQYVAhUCXBUAFQAVABUQFQAVABIcAAAAABUGFQoVClwVAhUCFQIV" +
		"EBUEFQQSHAAAAAIAAgAAFQQZTDUAGAZzY2hlbWEVAgA1AhgBbBUCFQZMPAAAADUEGARsaXN0FQIAFQIlAhgHZW" +
		"xlbWVudAAWAhkcGRwmABwVAhk1AAYQGTgBbARsaXN0B2VsZW1lbnQVABYCFogBFogBJiQmCCksFQQVABUCABUA" +
		"FRAVBAA8KSYCABlGAgAAAAAAABaIARYCJggWiAEAKCBwYXJxdWV0LWNwcC1hcnJvdyB2ZXJzaW9uIDI2LjAuMR" +
		"kcHAAAALgAAABQQVIx"
	decoded := func(text string) string {
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		return file(t, "a.parquet", string(data))
	}
	lz4 := write(t, "z.parquet", samples(20), parquet.Compression(&parquet.Lz4Raw))
	for _, c := range [][3]string{
		{decoded(runs), "b", "booleans encoded as RLE, which is not supported"},
		{decoded(nothing), "l", "a data page of version 2 without values, which is not supported"},
		{lz4, "id", "compressed as LZ4_RAW, which is not supported"},
	} {
		for _, err := range open(t, c[0]).Scan("", c[1]) {
			if err == nil || !strings.Contains(err.Error(), c[2]) {
				t.Errorf("%v, want %q", err, c[2])
			}
			break
		}
	}
}

// Ensure that a picture without a path is there, though its bytes are left out, and a null is not.
func TestParquetPictureWithoutPath(t *testing.T) {
	type picture struct {
		Bytes []byte `parquet:"bytes"`
	}
	type row struct {
		Image *picture `parquet:"image,optional"`
	}
	path := filepath.Join(t.TempDir(), "p.parquet")
	if err := parquet.WriteFile(path, []row{{&picture{[]byte("png")}}, {nil}}); err != nil {
		t.Fatal(err)
	}
	var there []bool
	for r, err := range open(t, path).Scan("bytes", "image") {
		if err != nil {
			t.Fatal(err)
		}
		there = append(there, r.Value("image") != nil)
	}
	if !slices.Equal(there, []bool{true, false}) {
		t.Errorf("pictures are there: %v, want true, false", there)
	}
}

// Ensure that the lists of one struct keep their own lengths.
func TestParquetListsInStruct(t *testing.T) {
	type lists struct {
		Few  []string `parquet:"few,list"`
		Many []int64  `parquet:"many,list"`
	}
	type row struct {
		Both lists   `parquet:"both"`
		All  []lists `parquet:"all,list"`
	}
	one, none := lists{[]string{"a"}, []int64{1, 2, 3}}, lists{nil, []int64{4}}
	path := filepath.Join(t.TempDir(), "l.parquet")
	if err := parquet.WriteFile(path, []row{{one, []lists{none, one}}}); err != nil {
		t.Fatal(err)
	}
	got, err := collect(open(t, path).Scan("", "both", "all"))
	const a, b = `{"few":["a"],"many":[1,2,3]}`, `{"few":[],"many":[4]}`
	if want := `{"all":[` + b + "," + a + `],"both":` + a + "}"; err != nil ||
		strings.Join(got, " ") != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

// Ensure that numbers without a sign keep their values.
func TestParquetUnsigned(t *testing.T) {
	type row struct {
		A uint32 `parquet:"a"`
		B uint64 `parquet:"b"`
	}
	path := filepath.Join(t.TempDir(), "u.parquet")
	rows := []row{{1<<32 - 1, 1<<63 - 1}, {7, 1<<64 - 1}}
	if err := parquet.WriteFile(path, rows); err != nil {
		t.Fatal(err)
	}
	n := 0
	for r, err := range open(t, path).Scan("", "a", "b") {
		if err != nil {
			t.Fatal(err)
		}
		a, b := r.Value("a"), r.Value("b")
		if fmt.Sprint(a, " ", b) != fmt.Sprint(rows[n].A, " ", rows[n].B) {
			t.Errorf("row %d: %v and %v, want %+v", n, a, b, rows[n])
		}
		n++
	}
	if n != len(rows) {
		t.Errorf("%d rows, want %d", n, len(rows))
	}
}

// Ensure that a file that Git LFS has not fetched, and a folder in a file's place, say what they
// are.
func TestNoParquet(t *testing.T) {
	dir := t.TempDir()
	pointer := "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte(pointer), 0o600),
		os.Mkdir(filepath.Join(dir, "b"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "git lfs pull", "b": "b: is no file"} {
		_, err := OpenParquet(dir, []string{name})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
}
