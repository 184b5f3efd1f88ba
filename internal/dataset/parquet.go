package dataset

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/restore-vlm/restore/internal/files"
)

// Limits on the memory that a parquet file can make this program allocate.
const (
	maxFooter     = 64 << 20 // bytes of metadata
	maxPageHeader = 64 << 20 // bytes; some writers put the least and the greatest picture into it
	maxPage       = 1 << 30  // bytes of an uncompressed page, and so of a picture
	maxRatio      = 4096     // of uncompressed to compressed bytes, beyond minPage
	minPage       = 16 << 20
	maxPageValues = 1 << 20 // values of a page, in addition to 64 per byte
)

// Parquet is a split of a data set in the hub's format: shards with one schema, in order.
type Parquet struct {
	shards []*shard
	mu     sync.Mutex // guards what shards keep for Picture
}

type shard struct {
	name string // in errors
	file *os.File
	size int64
	*parquet.File

	pictures *tree  // for Picture
	column   string // of pictures
	at       int64  // the row that pictures is at
}

// OpenParquet opens the shards of a split; errors use names.
func OpenParquet(dir string, names []string) (_ *Parquet, err error) {
	p := &Parquet{}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: is no file", path) // opening a pipe would wait
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		s := &shard{name: path, file: f}
		p.shards = append(p.shards, s)
		if err := guard(s.open); err != nil {
			return nil, fmt.Errorf("%s: not a parquet file: %w", s.name, err)
		}
	}
	return p, nil
}

// Close closes the files.
func (p *Parquet) Close() error {
	var errs []error
	for _, s := range p.shards {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

// guard turns a panic of the parquet library on a malformed file into an error.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("malformed: %v", r)
		}
	}()
	return f()
}

// open checks the sizes in the file's metadata and opens it.
func (s *shard) open() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	s.size = info.Size()
	var tail [8]byte
	if s.size < 12 {
		return fmt.Errorf("%d bytes, want at least 12", s.size)
	}
	if _, err := s.file.ReadAt(tail[:], s.size-8); err != nil {
		return err
	}
	if string(tail[4:]) != "PAR1" {
		head := make([]byte, min(s.size, 64))
		if _, err := s.file.ReadAt(head, 0); err != nil {
			return err
		}
		if err := files.CheckPointer(head); err != nil {
			return err
		}
		return fmt.Errorf("ends in %q, want PAR1", tail[4:])
	}
	n := int64(binary.LittleEndian.Uint32(tail[:]))
	if n > min(maxFooter, s.size-12) {
		return fmt.Errorf("metadata of %d bytes, want at most %d", n, min(maxFooter, s.size-12))
	}
	footer := make([]byte, n)
	if _, err := s.file.ReadAt(footer, s.size-8-n); err != nil {
		return err
	}
	used, err := structLen(footer)
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if used != len(footer) {
		return fmt.Errorf("metadata: %d bytes after its end", len(footer)-used)
	}
	var meta format.FileMetaData
	if err := thrift.Unmarshal(new(thrift.CompactProtocol), footer, &meta); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	if err := s.check(&meta); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	s.File, err = parquet.OpenFile(s.file, s.size, parquet.SkipPageIndex(true),
		parquet.SkipBloomFilters(true))
	return err
}

// check checks that the metadata is consistent with the file and with itself.
func (s *shard) check(meta *format.FileMetaData) error {
	if meta.EncryptionAlgorithm.Value != nil {
		return errors.New("encrypted")
	}
	var rows int64
	for i, g := range meta.RowGroups {
		first := meta.RowGroups[0].Columns
		if g.NumRows < 0 || rows+g.NumRows < rows {
			return fmt.Errorf("row group %d: %d rows", i, g.NumRows)
		}
		if rows += g.NumRows; g.NumRows == 0 { // empty pages may be left out
			continue
		}
		for j, c := range g.Columns {
			m := &c.MetaData
			start := m.DataPageOffset
			if m.DictionaryPageOffset != 0 {
				start = min(start, m.DictionaryPageOffset)
			}
			switch {
			case c.FilePath != "":
				return fmt.Errorf("column %d is in another file", j)
			case start < 4 || m.TotalCompressedSize < 0 || m.TotalCompressedSize > s.size-start:
				return fmt.Errorf("row group %d, column %d: outside of the file", i, j)
			case j < len(first) && m.Codec != first[j].MetaData.Codec:
				return fmt.Errorf("column %d: compressed in two ways, which is not supported", j)
			}
		}
	}
	if rows != meta.NumRows {
		return fmt.Errorf("%d rows in all, %d in its groups", meta.NumRows, rows)
	}
	return nil
}

// checkPages goes over the headers of a chunk's pages and returns an error for sizes that are
// impossible for its bytes, and for what the parquet library (0.32.0) decodes wrongly: LZ4_RAW,
// runs of booleans, and data pages of version 2 without values.
func (s *shard) checkPages(m *format.ColumnMetaData) error {
	if m.Codec == format.Lz4Raw {
		return fmt.Errorf("compressed as %v, which is not supported: want one of %v, %v, %v, %v",
			m.Codec, format.Snappy, format.Gzip, format.Brotli, format.Zstd)
	}
	at := m.DataPageOffset
	if m.DictionaryPageOffset != 0 {
		at = min(at, m.DictionaryPageOffset)
	}
	end := at + m.TotalCompressedSize
	buf := make([]byte, 512)
	for at < end {
		var h format.PageHeader
		n, err := s.pageHeader(&h, &buf, at, end)
		if err != nil {
			return fmt.Errorf("page at byte %d: %w", at, err)
		}
		at += int64(n)
		size, packed := int64(h.UncompressedPageSize), int64(h.CompressedPageSize)
		values, encoding := int64(h.DataPageHeader.V.NumValues), h.DataPageHeader.V.Encoding
		if h.Type == format.DataPageV2 {
			values = int64(h.DataPageHeaderV2.V.NumValues)
			encoding = h.DataPageHeaderV2.V.Encoding
		} else if h.Type == format.DictionaryPage {
			values = int64(h.DictionaryPageHeader.V.NumValues)
		}
		switch {
		case packed < 0 || packed > end-at:
			return fmt.Errorf("page at byte %d: %d bytes, %d are left", at, packed, end-at)
		case size < 0 || size > maxPage || size > minPage && size/maxRatio > packed:
			return fmt.Errorf("page at byte %d: %d bytes from %d, want less", at, size, packed)
		case values < 0 || values > maxPageValues+64*size:
			return fmt.Errorf("page at byte %d: %d values in %d bytes", at, values, size)
		case values == 0 && h.Type == format.DataPageV2:
			return fmt.Errorf("page at byte %d: a data page of version 2 without values, which is "+
				"not supported", at)
		case m.Type == format.Boolean && encoding != format.Plain:
			return fmt.Errorf("page at byte %d: booleans encoded as %v, which is not supported: "+
				"want %v, as in data pages of version 1", at, encoding, format.Plain)
		}
		at += packed
	}
	return nil
}

// pageHeader reads the header at an offset of the file and returns its length. buf grows as needed.
func (s *shard) pageHeader(h *format.PageHeader, buf *[]byte, at, end int64) (int, error) {
	for {
		b := (*buf)[:min(int64(len(*buf)), end-at)]
		if _, err := s.file.ReadAt(b, at); err != nil && err != io.EOF {
			return 0, err
		}
		n, err := structLen(b)
		if err == nil {
			return n, thrift.Unmarshal(new(thrift.CompactProtocol), b[:n], h)
		}
		switch {
		case err != errShort || len(b) < len(*buf):
			return 0, err
		case len(b) >= maxPageHeader:
			return 0, fmt.Errorf("header of more than %d bytes", len(b))
		}
		*buf = make([]byte, min(8*len(*buf), maxPageHeader))
	}
}

// Scan yields the rows with the cells of columns. without is a member of structs to leave out, such
// as "bytes" of a picture, which is then never read unless it is the only member: without any, a
// cell would look like null. A missing column ends the sequence with an error.
func (p *Parquet) Scan(without string, columns ...string) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		for _, s := range p.shards {
			trees := make([]*tree, len(columns))
			for i, name := range columns {
				c := s.Root().Column(name)
				if c == nil {
					yield(nil, fmt.Errorf("%s: row 0, column %q: missing, got %s", s.name,
						name, s.columns()))
					return
				}
				trees[i] = s.tree(c, without)
			}
			for row := range s.NumRows() {
				cells := make(map[string]any, len(columns))
				for i, t := range trees {
					if err := guard(func() error { return t.read(row) }); err != nil {
						yield(nil,
							fmt.Errorf("%s: row %d, column %q: %w", s.name, row, columns[i], err))
						return
					}
					cells[columns[i]] = t.value()
				}
				if !yield(NewRow(s.name, row, 0, cells), nil) {
					closeAll(trees)
					return
				}
			}
			closeAll(trees)
		}
	}
}

// HasColumn reports whether the first shard has a column.
func (p *Parquet) HasColumn(name string) bool {
	return len(p.shards) > 0 && p.shards[0].Root().Column(name) != nil
}

func closeAll(trees []*tree) {
	for _, t := range trees {
		for _, l := range t.leaves() {
			l.close()
		}
	}
}

func (s *shard) columns() string {
	var names []string
	for _, c := range s.Root().Columns() {
		names = append(names, c.Name())
	}
	return strings.Join(names, ", ")
}

// tree is a column with its nested columns.
type tree struct {
	column *parquet.Column
	inside []*tree
	leaf   *leaf // nil for groups
}

func (s *shard) tree(c *parquet.Column, without string) *tree {
	t := &tree{column: c}
	if c.Leaf() {
		t.leaf = &leaf{shard: s, column: c}
		return t
	}
	for _, inner := range c.Columns() {
		if inner.Name() != without || len(c.Columns()) == 1 {
			t.inside = append(t.inside, s.tree(inner, without))
		}
	}
	return t
}

func (t *tree) leaves() (all []*leaf) {
	if t.leaf != nil {
		return []*leaf{t.leaf}
	}
	for _, i := range t.inside {
		all = append(all, i.leaves()...)
	}
	return all
}

// read reads the values of a row.
func (t *tree) read(row int64) error {
	for _, l := range t.leaves() {
		if err := l.read(row); err != nil {
			return err
		}
	}
	return nil
}

// value assembles the values that read has read.
func (t *tree) value() any {
	parts := map[*leaf][]parquet.Value{}
	for _, l := range t.leaves() {
		parts[l] = l.values
	}
	return t.assemble(parts, false)
}

// assemble builds a value from its leaves' values. item means that the column repeats and the
// values belong to one of its items.
func (t *tree) assemble(parts map[*leaf][]parquet.Value, item bool) any {
	leaves := t.leaves()
	if len(leaves) == 0 {
		return nil
	}
	first := parts[leaves[0]]
	if t.column.Repeated() && !item {
		list := []any{}
		if len(first) == 0 || first[0].DefinitionLevel() < t.column.MaxDefinitionLevel() {
			return list
		}
		for _, one := range t.split(parts) {
			list = append(list, t.assemble(one, true))
		}
		return list
	}
	if len(first) == 0 || first[0].DefinitionLevel() < t.column.MaxDefinitionLevel() {
		return nil
	}
	if t.leaf != nil {
		return scalar(first[0], unsigned(t.column))
	}
	if len(t.inside) == 1 && t.inside[0].column.Repeated() {
		// A list: its group holds the repeated group "list", which holds the items' column.
		repeated := t.inside[0]
		list, _ := repeated.assemble(parts, false).([]any)
		if len(repeated.inside) == 1 && repeated.leaf == nil {
			name := repeated.inside[0].column.Name()
			for i, v := range list {
				if group, ok := v.(map[string]any); ok {
					list[i] = group[name]
				}
			}
		}
		return list
	}
	group := make(map[string]any, len(t.inside))
	for _, inner := range t.inside {
		group[inner.column.Name()] = inner.assemble(parts, false)
	}
	return group
}

// split divides the values of a repeated column by item.
func (t *tree) split(parts map[*leaf][]parquet.Value) (items []map[*leaf][]parquet.Value) {
	for _, l := range t.leaves() {
		values := parts[l]
		n, start := 0, 0
		for i := 1; i <= len(values); i++ {
			if i < len(values) && values[i].RepetitionLevel() > t.column.MaxRepetitionLevel() {
				continue
			}
			if n == len(items) {
				items = append(items, map[*leaf][]parquet.Value{})
			}
			items[n][l] = values[start:i]
			n, start = n+1, i
		}
	}
	return items
}

// unsigned reports whether a column holds whole numbers without a sign.
func unsigned(c *parquet.Column) bool {
	l := c.Type().LogicalType()
	if l == nil {
		return false
	}
	t, ok := l.Value.(*format.IntType)
	return ok && !t.IsSigned
}

func scalar(v parquet.Value, unsigned bool) any {
	switch v.Kind() {
	case parquet.Boolean:
		return v.Boolean()
	case parquet.Int32:
		if unsigned {
			return int64(v.Uint32())
		}
		return int64(v.Int32())
	case parquet.Int64:
		if unsigned && v.Int64() < 0 {
			return json.Number(strconv.FormatUint(v.Uint64(), 10))
		}
		return v.Int64()
	case parquet.Float:
		return float64(v.Float())
	case parquet.Double:
		return v.Double()
	}
	return string(v.ByteArray())
}

// leaf reads the values of a column without nested columns, row after row.
type leaf struct {
	shard  *shard
	column *parquet.Column

	values []parquet.Value // of the last row that was read

	end    int64 // the row after the group's last
	next   int64 // the row that is read next
	pages  parquet.Pages
	page   parquet.Page
	reader parquet.ValueReader
	buf    [16]parquet.Value
	have   []parquet.Value // of buf, not used yet
}

func (l *leaf) close() {
	if l.pages != nil {
		parquet.Release(l.page)
		l.pages.Close()
	}
	l.pages, l.page, l.reader, l.have = nil, nil, nil, nil
}

// read reads the values of row, which must not be before the last row that was read.
func (l *leaf) read(row int64) error {
	if l.pages == nil || row >= l.end {
		if err := l.seek(row); err != nil {
			return err
		}
	}
	for l.next <= row {
		l.values = l.values[:0]
		for {
			v, err := l.peek()
			if err == io.EOF && len(l.values) > 0 {
				break
			}
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
			if len(l.values) > 0 && v.RepetitionLevel() == 0 {
				break
			}
			if l.next == row {
				v = v.Clone()
			}
			l.values = append(l.values, v)
			l.have = l.have[1:]
		}
		l.next++
	}
	return nil
}

// peek returns the next value without consuming it.
func (l *leaf) peek() (parquet.Value, error) {
	for len(l.have) == 0 {
		if l.reader == nil {
			page, err := l.pages.ReadPage()
			if err != nil {
				return parquet.Value{}, err
			}
			parquet.Release(l.page)
			l.page, l.reader = page, page.Values()
		}
		n, err := l.reader.ReadValues(l.buf[:])
		l.have = l.buf[:n]
		if err != nil {
			l.reader = nil
			if err != io.EOF {
				return parquet.Value{}, err
			}
		}
	}
	return l.have[0], nil
}

// seek opens the pages of the row group that holds row, at that row.
func (l *leaf) seek(row int64) error {
	l.close()
	start := int64(0)
	for i, g := range l.shard.RowGroups() {
		if row >= start+g.NumRows() {
			start += g.NumRows()
			continue
		}
		chunk := g.ColumnChunks()[l.column.Index()]
		meta := &l.shard.Metadata().RowGroups[i].Columns[l.column.Index()].MetaData
		if err := l.shard.checkPages(meta); err != nil {
			return err
		}
		l.pages, l.end = chunk.Pages(), start+g.NumRows()
		l.next = row
		if row > start {
			return l.pages.SeekToRow(row - start)
		}
		return nil
	}
	return io.ErrUnexpectedEOF
}

// At names a cell, for errors.
func (p *Parquet) At(column string, row int64) string {
	for _, s := range p.shards {
		if row < s.NumRows() {
			return fmt.Sprintf("%s: row %d, column %q", s.name, row, column)
		}
		row -= s.NumRows()
	}
	return fmt.Sprintf("row %d, column %q", row, column)
}

// Picture returns the encoded bytes of picture i in the cell of a column that holds a picture,
// {bytes, path}, or a list of them. It is fast if rows are read in order.
func (p *Parquet) Picture(column string, row int64, i int) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shards {
		if row >= s.NumRows() {
			row -= s.NumRows()
			continue
		}
		var data []byte
		err := guard(func() (err error) {
			data, err = s.picture(column, row, i)
			return err
		})
		if err != nil {
			err = fmt.Errorf("%s: row %d, column %q: %w", s.name, row, column, err)
		}
		return data, err
	}
	return nil, fmt.Errorf("row %d: not there", row)
}

func (s *shard) picture(column string, row int64, i int) ([]byte, error) {
	if s.pictures == nil || s.column != column {
		c := s.Root().Column(column)
		if c == nil {
			return nil, fmt.Errorf("missing, got %s", s.columns())
		}
		s.pictures, s.column, s.at = s.tree(c, "path"), column, -1
	}
	if row != s.at {
		if row < s.at {
			closeAll([]*tree{s.pictures})
		}
		if err := s.pictures.read(row); err != nil {
			s.pictures = nil
			return nil, err
		}
		s.at = row
	}
	v := s.pictures.value()
	if list, ok := v.([]any); ok {
		if i >= len(list) {
			return nil, fmt.Errorf("%d pictures, want at least %d", len(list), i+1)
		}
		v = list[i]
	}
	group, _ := v.(map[string]any)
	data, ok := group["bytes"].(string)
	if !ok || data == "" {
		return nil, errors.New("holds no picture")
	}
	return []byte(data), nil
}
