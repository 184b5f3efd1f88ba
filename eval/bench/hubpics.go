package bench

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"

	"github.com/restore-vlm/restore/eval"
	"github.com/restore-vlm/restore/internal/dataset"
)

// picture is picture i of a row, under a name.
type picture func(name string, i int) eval.Image

// fromHub completes b by the questions of a split of the data set on the hub. fill reads a row, of
// which it needs some columns.
func (s *source) fromHub(
	b *eval.Benchmark, split, config string, need []string,
	fill func(r *dataset.Row, q *eval.Question, at picture),
) (*eval.Benchmark, error) {
	p, err := s.hub(split, config)
	if err != nil {
		return nil, err
	}
	b.Close = p.Close
	b.Questions = number(p.Scan("bytes", need...), func(r *dataset.Row, q *eval.Question) {
		fill(r, q, func(name string, i int) eval.Image {
			return inParquet(p, name, int64(q.ID), i)
		})
	})
	return b, nil
}

// inParquet returns a picture in a row of a data set: item i of the column image, which has a
// picture or a list of them.
func inParquet(p *dataset.Parquet, name string, row int64, i int) eval.Image {
	const column = "image"
	return eval.Image{Name: name, At: p.At(column, row), Open: func() (io.ReadCloser, error) {
		data, err := p.Picture(column, row, i)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(bytes.NewReader(data)), nil
	}}
}

// pictures returns the number of pictures in a cell: one, the length of a list, or 0 if it is null.
func pictures(r *dataset.Row, column string) int {
	switch v := r.Value(column).(type) {
	case nil:
		return 0
	case []any:
		return len(v)
	case map[string]any:
		return 1
	}
	r.Fail(column, "got no picture, want a struct of bytes and path")
	return 0
}

// pictureAt names a picture by its place, because many data sets name all of theirs "image.png".
func pictureAt(r *dataset.Row) string {
	return fmt.Sprintf("%s:%d", filepath.Base(r.File()), r.Row())
}
