package files_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/restore-vlm/restore/internal/files"
)

const bom = "\ufeff"

// texts are inputs with the text in them, or the error's text.
var texts = []struct{ in, want, err string }{
	{"", "", ""},
	{"a", "a", ""},
	{"né 图 🖼\n", "né 图 🖼\n", ""},
	{bom, "", ""},
	{bom + "né", "né", ""},
	{bom + bom + "a", bom + "a", ""},
	{"a" + bom, "a" + bom, ""},
	{"\ufffd", "\ufffd", ""},
	{"ab\x00", "ab\x00", ""},
	{"caf\xe9", "", "is not UTF-8: got 0xe9 at byte 3, want UTF-8"},
	{"caf\xe9 noir", "", "is not UTF-8: got 0xe9 at byte 3, want UTF-8"},
	{bom + "a\xff", "", "is not UTF-8: got 0xff at byte 4, want UTF-8"},
	{"a\xe2\x82", "", "is not UTF-8: got 0xe2 at byte 1, want UTF-8"},
	{"\xed\xa0\x80", "", "is not UTF-8: got 0xed at byte 0, want UTF-8"}, // half of a pair
	{"\xef\xbb", "", "is not UTF-8: got 0xef at byte 0, want UTF-8"},
	{"\xff\xfea\x00", "", "is UTF-16: got the byte-order mark FF FE, want UTF-8"},
	{"\xfe\xff\x00a", "", "is UTF-16: got the byte-order mark FE FF, want UTF-8"},
	{"\xff\xfe", "", "is UTF-16: got the byte-order mark FF FE, want UTF-8"},
	{"\xff\xfe\x00\x00a\x00\x00\x00", "",
		"is UTF-32: got the byte-order mark FF FE 00 00, want UTF-8"},
	{"\x00\x00\xfe\xff", "", "is UTF-32: got the byte-order mark 00 00 FE FF, want UTF-8"},
	{"a\x00b\x00", "", "is not text: got a zero byte at byte 1, as in UTF-16, want UTF-8"},
	{"\x00a\x00b", "", "is not text: got a zero byte at byte 0, as in UTF-16, want UTF-8"},
}

// Ensure that a byte-order mark is removed, and that an error names encoding, byte and place.
func TestText(t *testing.T) {
	for _, c := range texts {
		got, err := files.Text([]byte(c.in))
		if err == nil && c.err != "" || err != nil && err.Error() != c.err ||
			err == nil && string(got) != c.want {
			t.Errorf("%q: got %q, %v, want %q, %s", c.in, got, err, c.want, c.err)
		}
		text, again := files.TextString(c.in)
		if (err == nil) != (again == nil) || err == nil && text != c.want {
			t.Errorf("%q: a string gives %q, %v", c.in, text, again)
		}
	}
}

// Ensure that a stream gives the same text and errors, however it is cut, and all text before the
// error.
func TestTextReader(t *testing.T) {
	long := strings.Repeat("é", 100_000)
	for _, c := range append(texts, []struct{ in, want, err string }{
		{"a" + long, "a" + long, ""},
		{bom + long + "\xff", "", "is not UTF-8: got 0xff at byte 200003, want UTF-8"},
	}...) {
		for name, cut := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r },
			"bytes": iotest.OneByteReader, "halves": iotest.HalfReader,
			"error with data": iotest.DataErrReader,
		} {
			r := files.NewTextReader(cut(strings.NewReader(c.in)))
			marked := r.Marked()
			got, err := io.ReadAll(r)
			if err == nil && c.err != "" || err != nil && err.Error() != c.err ||
				err == nil && string(got) != c.want {
				t.Errorf("%.20q by %s: got %.20q, %v, want %.20q, %s", c.in, name, got, err, c.want,
					c.err)
			}
			if err != nil && !strings.Contains(c.in, string(got)) {
				t.Errorf("%.20q by %s: text %.20q before the error", c.in, name, got)
			}
			if err == nil && marked != int64(len(c.in)-len(c.want)) {
				t.Errorf("%.20q by %s: a mark of %d bytes", c.in, name, marked)
			}
		}
	}
	broken := errors.New("broken")
	r := files.NewTextReader(io.MultiReader(strings.NewReader("ab\xc3"), iotest.ErrReader(broken)))
	if got, err := io.ReadAll(r); string(got) != "ab" || !errors.Is(err, broken) {
		t.Errorf("a stream that breaks: %q, %v", got, err)
	}
}

// Ensure that a scanner returns whole lines, and no line that an error cuts.
func TestLines(t *testing.T) {
	for _, c := range []struct{ in, lines, err string }{
		{bom + "a\r\nb\n\nc", "a|b||c|", ""},
		{"a\nb\xff\nc\n", "a|", "is not UTF-8: got 0xff at byte 3"},
		{"a\n{}\xff", "a|", "is not UTF-8: got 0xff at byte 4"},
		{"\xff\xfea\x00\n\x00", "", "is UTF-16"},
		{"a\n" + strings.Repeat("b", 100), "a|", "too long"},
	} {
		var lines strings.Builder
		s := files.NewLines(strings.NewReader(c.in), 50)
		for s.Scan() {
			lines.WriteString(s.Text() + "|")
		}
		if err := s.Err(); lines.String() != c.lines || (err == nil) != (c.err == "") ||
			err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%.20q: %q, %v, want %q, %s", c.in, lines.String(), err, c.lines, c.err)
		}
	}
}

// A stream and its bytes give the same text and error, however the stream is cut.
func FuzzTextReader(f *testing.F) {
	for _, c := range texts {
		f.Add([]byte(c.in))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		want, wantErr := files.Text(in)
		for _, cut := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader} {
			got, err := io.ReadAll(files.NewTextReader(cut(bytes.NewReader(in))))
			if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() ||
				err == nil && !bytes.Equal(got, want) {
				t.Fatalf("a stream gives %q, %v, bytes %q, %v", got, err, want, wantErr)
			}
		}
	})
}
