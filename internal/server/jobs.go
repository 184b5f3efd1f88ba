package server

import (
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/jobs"
	"github.com/restore-vlm/restore/internal/wire"
)

// jobRoutes are the routes of files and batches.
func jobRoutes() map[string]*route {
	return map[string]*route{
		"/v1/files":               {get: replies(listFiles), post: replies(upload), api: true},
		"/v1/files/{id}":          {get: replies(oneFile), delete: replies(deleteFile), api: true},
		"/v1/files/{id}/content":  {get: fileContent, api: true},
		"/v1/batches":             {get: replies(listBatches), post: newBatch, api: true},
		"/v1/batches/{id}":        {get: replies(oneBatch), api: true},
		"/v1/batches/{id}/cancel": {post: replies(cancelBatch), api: true},
	}
}

// jobDocs describe the routes of files and batches, by method and path.
func jobDocs() map[string]api.Doc {
	return map[string]api.Doc{
		"POST /v1/files": {Summary: "Upload a file of requests", Form: true,
			Body: api.Object([]string{"file", "purpose"}, `{
	"file": {"type": "string", "format": "binary"}, "purpose": {"const": "batch"},
	"expires_after[anchor]": {"const": "created_at"},
	"expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000}}`),
			Reply: jobs.File{}},
		"GET /v1/files": {Summary: "List files", Reply: fileList{},
			Query: []string{"purpose", "limit", "after", "order"}},
		"GET /v1/files/{id}":         {Summary: "Describe a file", Reply: jobs.File{}},
		"DELETE /v1/files/{id}":      {Summary: "Delete a file", Reply: deletedFile{}},
		"GET /v1/files/{id}/content": {Summary: "Content of a file, or of a range of it"},
		"POST /v1/batches": {Summary: "Begin a batch",
			Body: api.Object([]string{"input_file_id", "endpoint", "completion_window"}, `{
	"input_file_id": {"type": "string"},
	"endpoint": {"enum": ["/v1/chat/completions", "/v1/completions", "/v1/responses"]},
	"completion_window": {"const": "24h"},
	"metadata": {"type": ["object", "null"], "maxProperties": 16,
		"additionalProperties": {"type": "string", "maxLength": 512}},
	"output_expires_after": {"type": ["object", "null"], "properties": {
		"anchor": {"const": "created_at"},
		"seconds": {"type": "integer", "minimum": 3600, "maximum": 2592000}},
		"required": ["anchor", "seconds"]}}`),
			Reply: jobs.Batch{}},
		"GET /v1/batches": {Summary: "List batches", Reply: batchList{},
			Query: []string{"limit", "after"}},
		"GET /v1/batches/{id}":         {Summary: "Describe a batch", Reply: jobs.Batch{}},
		"POST /v1/batches/{id}/cancel": {Summary: "Cancel a batch", Reply: jobs.Batch{}},
	}
}

// replies answers with what f returns.
func replies(f func(x *exchange) (any, error)) func(*exchange) {
	return func(x *exchange) {
		v, err := f(x)
		if err != nil {
			x.fail(x.s.toWire(err, nil, x.id))
			return
		}
		x.json(http.StatusOK, v)
	}
}

// fileList and batchList are pages of lists.
type fileList struct {
	Object  string      `json:"object"`
	Data    []jobs.File `json:"data"`
	FirstID *string     `json:"first_id"`
	LastID  *string     `json:"last_id"`
	HasMore bool        `json:"has_more"`
}

type batchList struct {
	Object  string       `json:"object"`
	Data    []jobs.Batch `json:"data"`
	FirstID *string      `json:"first_id"`
	LastID  *string      `json:"last_id"`
	HasMore bool         `json:"has_more"`
}

// deletedFile is the reply to a deletion.
type deletedFile struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// pageOf reads the parameters of a list of at most most entries, by default usual.
func pageOf(q url.Values, usual, most int) (p jobs.Page, err error) {
	p = jobs.Page{Limit: usual, After: q.Get("after")}
	if text := q.Get("limit"); text != "" {
		if p.Limit, err = strconv.Atoi(text); err != nil || p.Limit < 1 || p.Limit > most {
			return p, wire.Bad("invalid_value", "limit", "got %s, want 1 to %d", wire.Quote(text),
				most)
		}
	}
	switch order := q.Get("order"); order {
	case "", "desc":
	case "asc":
		p.Ascending = true
	default:
		return p, wire.Bad("invalid_value", "order", "got %s, want asc or desc", wire.Quote(order))
	}
	return p, nil
}

func listFiles(x *exchange) (any, error) {
	q := x.r.URL.Query()
	p, err := pageOf(q, 10_000, 10_000)
	if err != nil {
		return nil, err
	}
	list, more, err := x.s.o.Jobs.Files(x.owner, q.Get("purpose"), p)
	out := fileList{Object: "list", Data: list, HasMore: more}
	if len(list) > 0 {
		out.FirstID, out.LastID = &list[0].ID, &list[len(list)-1].ID
	}
	return out, err
}

func oneFile(x *exchange) (any, error) { return x.s.o.Jobs.File(x.owner, x.param) }

func deleteFile(x *exchange) (any, error) {
	err := x.s.o.Jobs.DeleteFile(x.owner, x.param)
	return deletedFile{x.param, "file", true}, err
}

// fileContent answers with a file, or with the ranges of it that the client wants.
func fileContent(x *exchange) {
	in, f, err := x.s.o.Jobs.Content(x.owner, x.param)
	if err != nil {
		x.fail(x.s.toWire(err, nil, x.id))
		return
	}
	defer in.Close()
	h := x.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", strconv.Quote(f.ID)) // the content never changes
	http.ServeContent(&fileWriter{ResponseWriter: x.w, x: x, size: f.Bytes}, x.r, "",
		time.Unix(f.CreatedAt, 0), in)
}

// fileWriter writes a file. Where http.ServeContent refuses the ranges with a text, it answers with
// an error as everywhere else.
type fileWriter struct {
	http.ResponseWriter
	x       *exchange
	size    int64
	refused bool
}

// WriteHeader implements http.ResponseWriter.
func (f *fileWriter) WriteHeader(status int) {
	if status != http.StatusRequestedRangeNotSatisfiable {
		f.ResponseWriter.WriteHeader(status)
		return
	}
	f.refused = true
	f.x.fail(wire.New(status, "invalid_range", "", "Range: got %s, want a part of the file's %d "+
		"bytes", wire.Quote(f.x.r.Header.Get("Range")), f.size))
}

// Write implements http.ResponseWriter.
func (f *fileWriter) Write(b []byte) (int, error) {
	if f.refused {
		return len(b), nil
	}
	return f.ResponseWriter.Write(b)
}

// formOverhead is how many bytes an upload may have besides the file.
const formOverhead = 64 << 10

// upload reads a file from a form. It goes to the disk as it arrives, however long that takes, if
// it comes at the least rate.
func upload(x *exchange) (any, error) {
	most := x.s.o.Jobs.MaxFile()
	if x.r.ContentLength > most+formOverhead {
		x.w.Header().Set("Connection", "close")
		return nil, jobs.TooLarge(most)
	}
	p := newPace(x.s.o.ReadTimeout)
	p.long = true
	plain := &arriving{http.MaxBytesReader(x.w, x.r.Body, most+formOverhead), p, x.w}
	in, err := x.unpacked(plain)
	if err != nil {
		return nil, err
	}
	x.r.Body = io.NopCloser(in)
	parts, err := x.r.MultipartReader()
	if err != nil {
		return nil, wire.New(http.StatusUnsupportedMediaType, "unsupported_media_type", "",
			"Content-Type: got %s, want multipart/form-data with a boundary", wire.Quote(
				x.r.Header.Get("Content-Type")))
	}
	f := form{x: x}
	defer f.discard()
	if err := f.read(parts); err != nil {
		return nil, x.uploadError(err, p)
	}
	setReadDeadline(x.w, time.Time{})
	return f.commit()
}

// uploadError words an error from reading a form.
func (x *exchange) uploadError(err error, p *pace) error {
	var e *wire.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &e):
		x.w.Header().Set("Connection", "close") // the rest is not read
		return e
	case errors.As(err, &large):
		x.w.Header().Set("Connection", "close")
		return jobs.TooLarge(x.s.o.Jobs.MaxFile())
	}
	return x.bodyError(err, p)
}

// form is an upload.
type form struct {
	x             *exchange
	file          *jobs.Upload
	name, purpose string
	keep          keepTime
}

// keepTime is how long a file is kept after its creation.
type keepTime struct {
	anchor, seconds string
}

// Limits of the time that a file is kept, as OpenAI has them.
const (
	keepLeast = time.Hour
	keepMost  = 30 * 24 * time.Hour
)

// time returns the time; 0 if none is given. field is the path of its fields.
func (k *keepTime) time(field string) (time.Duration, error) {
	if k.anchor == "" && k.seconds == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(k.seconds)
	d := time.Duration(min(max(n, 0), int(keepMost/time.Second)+1)) * time.Second
	switch {
	case k.anchor != "created_at":
		return 0, wire.Bad("invalid_value", field+".anchor", "got %s, want created_at",
			wire.Quote(k.anchor))
	case err != nil || d < keepLeast || d > keepMost:
		return 0, wire.Bad("invalid_value", field+".seconds", "got %s, want %.0f to %.0f",
			wire.Quote(k.seconds), keepLeast.Seconds(), keepMost.Seconds())
	}
	return d, nil
}

// read reads the parts of the form.
func (f *form) read(parts *multipart.Reader) error {
	for {
		p, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if name := p.FormName(); name == "file" {
			err = f.receive(p)
		} else {
			err = f.field(name, p)
		}
		if err != nil {
			return err
		}
	}
}

// receive stores the file.
func (f *form) receive(p *multipart.Part) (err error) {
	if f.file != nil {
		return wire.Bad("invalid_value", "file", "got two files, want one")
	}
	if f.file, err = f.x.s.o.Jobs.Create(); err != nil {
		return err
	}
	if f.name = p.FileName(); len(f.name) > fieldMost {
		return wire.Bad("invalid_value", "file", "got a name of %d bytes, want at most %d",
			len(f.name), fieldMost)
	}
	_, err = io.Copy(f.file, p)
	return err
}

// fieldMost is the length of a field of a form, or of a file's name, in bytes.
const fieldMost = 1 << 10

// field reads a field that is not the file.
func (f *form) field(name string, p *multipart.Part) error {
	text, err := io.ReadAll(io.LimitReader(p, fieldMost+1))
	switch {
	case err != nil:
		return err
	case len(text) > fieldMost:
		return wire.Bad("invalid_value", wire.Clip(name), "got more than %d bytes, want at most "+
			"as many", fieldMost)
	}
	switch name {
	case "purpose":
		f.purpose = string(text)
	case "expires_after[anchor]":
		f.keep.anchor = string(text)
	case "expires_after[seconds]":
		f.keep.seconds = string(text)
	default:
		return wire.Bad("unknown_parameter", wire.Clip(name),
			"is no field of an upload, want file, purpose and expires_after")
	}
	return nil
}

// commit keeps the file.
func (f *form) commit() (any, error) {
	keep, err := f.keep.time("expires_after")
	switch {
	case f.file == nil:
		return nil, wire.Bad("missing_required_parameter", "file", "missing, want a file")
	case f.purpose == "":
		return nil, wire.Bad("missing_required_parameter", "purpose", "missing, want batch")
	case f.purpose != jobs.Input:
		return nil, wire.Bad("invalid_value", "purpose", "got %s, want batch",
			wire.Quote(f.purpose))
	case err != nil:
		return nil, err
	}
	return f.file.Commit(f.x.owner, f.name, f.purpose, keep)
}

func (f *form) discard() {
	if f.file != nil {
		f.file.Discard()
	}
}

func listBatches(x *exchange) (any, error) {
	p, err := pageOf(x.r.URL.Query(), 20, 100)
	if err != nil {
		return nil, err
	}
	list, more, err := x.s.o.Jobs.Batches(x.owner, p)
	out := batchList{Object: "list", Data: list, HasMore: more}
	if len(list) > 0 {
		out.FirstID, out.LastID = &list[0].ID, &list[len(list)-1].ID
	}
	return out, err
}

func oneBatch(x *exchange) (any, error) { return x.s.o.Jobs.Batch(x.owner, x.param) }

func cancelBatch(x *exchange) (any, error) { return x.s.o.Jobs.CancelBatch(x.owner, x.param) }

// newBatch begins a batch.
func newBatch(x *exchange) {
	x.handle(func(_ *api.Front, body []byte) (*api.Call, error) {
		n, err := parseBatch(body)
		if err != nil {
			return nil, err
		}
		b, err := x.s.o.Jobs.CreateBatch(x.owner, n)
		if err == nil {
			x.json(http.StatusOK, b)
		}
		return nil, err
	})
}

// parseBatch reads the body of a new batch.
func parseBatch(body []byte) (*jobs.NewBatch, error) {
	o, err := wire.Parse(body)
	if err != nil {
		return nil, err
	}
	n := &jobs.NewBatch{InputFileID: o.String("input_file_id"), Endpoint: o.String("endpoint"),
		Window: o.String("completion_window")}
	o.Require("input_file_id", "the id of a file")
	o.Require("endpoint", "a path")
	o.Require("completion_window", "24h")
	if o.Has("metadata") {
		m := o.Object("metadata")
		n.Metadata = map[string]string{}
		for _, name := range m.Names() {
			n.Metadata[name] = m.String(name)
		}
	}
	var keep keepTime
	known := []*wire.Object{o}
	if k := o.Object("output_expires_after"); k != nil {
		k.Require("anchor", "created_at")
		k.Require("seconds", "a number of seconds")
		seconds, _ := k.Int("seconds", 0, int64(keepMost/time.Second))
		keep = keepTime{k.String("anchor"), strconv.FormatInt(seconds, 10)}
		known = append(known, k)
	}
	for _, o := range known {
		for _, name := range o.Unread() {
			o.Fail("unknown_parameter", wire.Name(name), "is no field of a batch")
		}
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	n.Keep, err = keep.time("output_expires_after")
	return n, err
}
