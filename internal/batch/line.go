package batch

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/restore-vlm/restore/internal/wire"
)

// Request is one line of the input.
type Request struct {
	Line     int    // from 0, without blank lines
	CustomID string // as in the line
	Method   string
	URL      string
	Body     json.RawMessage
	Pictures [sha256.Size]byte // hash of its pictures' URLs, in order; zero without pictures
	Key      Key               // of the line and the files that it names

	urls []string // of its pictures
}

// line is a line of the input that has been read.
type line struct {
	n           int // from 0, without blank lines
	text, files [sha256.Size]byte
	q           *Request // nil for a bad line, and for one whose content does not matter
	bad         *LineError
}

// key identifies the content of the line.
func (l *line) key() (k Key) {
	sum := sha256.Sum256(slices.Concat(l.text[:], l.files[:]))
	copy(k[:], sum[:])
	return k
}

// sums are over lines, each chained to the one before.
type sums struct {
	text, files [sha256.Size]byte
}

func (s *sums) add(l *line) {
	s.text = sha256.Sum256(slices.Concat(s.text[:], l.text[:]))
	s.files = sha256.Sum256(slices.Concat(s.files[:], l.files[:]))
}

// Response is the answer of a backend.
type Response struct {
	Status    int             `json:"status_code"`
	RequestID string          `json:"request_id"`
	Body      json.RawMessage `json:"body"`
	Code      string          `json:"-"` // of a refusal
}

// Error says why a line has no response.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Result is one line of the output.
type Result struct {
	ID       string    `json:"id"`
	CustomID *string   `json:"custom_id"` // nil for a line that cannot be read
	Response *Response `json:"response"`
	Error    *Error    `json:"error"`
}

// LineError says why a line cannot be read.
type LineError struct {
	Line          int // in the file, from 1
	Code, Message string
}

// Error implements error.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Message) }

// lines reads an input line by line.
type lines struct {
	r    *bufio.Reader
	most int // largest line in bytes
	at   int // number of the last line in the file, from 1
	buf  []byte
}

func newLines(r io.Reader, most int) *lines {
	return &lines{r: bufio.NewReaderSize(r, 1<<16), most: most}
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// next returns the next line that is not blank, without its line break, valid until the next call,
// and whether it was too long to be kept. It returns io.EOF after the last line.
func (l *lines) next() (line []byte, long bool, err error) {
	for {
		if line, long, err = l.read(); err != nil || long || len(bytes.TrimSpace(line)) > 0 {
			return line, long, err
		}
	}
}

// read returns the next line like next, or a blank one.
func (l *lines) read() (line []byte, long bool, err error) {
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		if len(l.buf)+len(part) > l.most+2 {
			long = true
		}
		if !long {
			l.buf = append(l.buf, part...)
		}
		switch {
		case err == nil:
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			if len(part) == 0 && len(l.buf) == 0 && !long {
				return nil, false, io.EOF
			}
		default:
			return nil, false, err
		}
		break
	}
	line = bytes.TrimSuffix(bytes.TrimSuffix(l.buf, []byte("\n")), []byte("\r"))
	if l.at == 0 {
		line = bytes.TrimPrefix(line, byteOrderMark)
	}
	l.at++
	return line, long || len(line) > l.most, nil
}

// parse reads the line with a number in the file. It keeps no part of line.
func parse(line []byte, number int) (*Request, *LineError) {
	o, err := wire.Parse(line)
	if err != nil {
		return nil, faultOf(err, number)
	}
	r := &Request{CustomID: o.String("custom_id"), Method: "POST", URL: o.String("url")}
	if o.Has("method") {
		r.Method = o.String("method")
	}
	o.Require("custom_id", "a string")
	o.Require("url", "a string")
	body := o.Raw("body")
	if wire.Kind(body) != "an object" {
		o.Fail("invalid_type", "body", "got %s, want an object", wire.Describe(body))
	}
	if err := o.Err(); err != nil {
		return nil, faultOf(err, number)
	}
	r.Body = bytes.Clone(body)
	r.urls = pictures(body)
	r.Pictures = sumOf(r.urls)
	return r, nil
}

// faultOf is an error of a line.
func faultOf(err error, number int) *LineError {
	var e *wire.Error
	errors.As(err, &e) // package wire returns no other errors
	text := e.Message
	if e.Code == "invalid_type" && e.Param == "" {
		text = "got JSON that is no object, want one with custom_id, method, url and body"
	}
	return &LineError{number, e.Code, text}
}

// namesFile reports whether a line may have the URL of a file in it. JSON can also write the
// letters as escapes.
func namesFile(line []byte) bool {
	return bytes.Contains(line, []byte(`\u00`)) || anyFile.Match(line)
}

var anyFile = regexp.MustCompile(`(?i)file:`)

// sumOf hashes URLs; requests with the same sum are about the same pictures. It is zero without
// URLs.
func sumOf(urls []string) (sum [sha256.Size]byte) {
	if len(urls) == 0 {
		return sum
	}
	h := sha256.New()
	for _, u := range urls {
		binary.Write(h, binary.LittleEndian, uint64(len(u)))
		io.WriteString(h, u)
	}
	h.Sum(sum[:0])
	return sum
}

// maxNesting is how deep pictures are searched; they lie at most six values deep.
const maxNesting = 8

// pictures lists the URLs of all pictures in a body, in order, for every route.
func pictures(body []byte) []string {
	o, err := wire.Parse(body)
	if err != nil {
		return nil
	}
	var s search
	s.object(o, 0)
	return s.urls
}

// search collects the URLs of pictures.
type search struct{ urls []string }

func (s *search) object(o *wire.Object, depth int) {
	for _, field := range []string{"image_url", "source"} {
		switch wire.Kind(o.Raw(field)) {
		case "a string":
			s.urls = append(s.urls, o.String(field))
			return
		case "an object":
			in := o.Object(field)
			for _, field := range []string{"url", "data"} {
				if wire.Kind(in.Raw(field)) == "a string" {
					s.urls = append(s.urls, in.String(field))
				}
			}
			return
		}
	}
	// the fields that hold pictures, over all routes
	for _, name := range []string{"messages", "input", "content"} {
		switch raw := o.Raw(name); {
		case depth == maxNesting:
		case wire.Kind(raw) == "an object":
			s.object(o.Object(name), depth+1)
		case wire.Kind(raw) == "a list":
			s.list(o.List(name), depth+1)
		}
	}
	if wire.Kind(o.Raw("images")) == "a list" {
		for item := range o.List("images").Items() {
			if wire.Kind(item.Raw()) == "a string" {
				s.urls = append(s.urls, item.Text())
			}
		}
	}
}

func (s *search) list(l *wire.List, depth int) {
	for item := range l.Items() {
		switch kind := wire.Kind(item.Raw()); {
		case depth == maxNesting:
		case kind == "an object":
			s.object(item.Object(), depth+1)
		case kind == "a list":
			s.list(item.List(), depth+1)
		}
	}
}
