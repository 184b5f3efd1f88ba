package gguf

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/tensor"
)

// archClip is the general.architecture of encoders and projectors.
const archClip = "clip"

// architecture returns general.architecture.
func (f *file) architecture() string { return f.Text("general.architecture", "") }

// open maps the file at path and, if it is the first of several, the other parts. It adds mappings
// and paths to s, even if it fails.
func open(s *checkpoint.Store, path string, families checkpoint.Families) (_ *file, err error) {
	defer func() {
		switch {
		case err == nil:
		case strings.HasPrefix(err.Error(), path+": "): // as of a file that cannot be mapped
			err = fmt.Errorf("checkpoint: %w", err)
		default:
			err = fmt.Errorf("checkpoint: %s: %w", path, err)
		}
	}()
	f, err := openPart(s, path)
	if err != nil {
		return nil, err
	}
	count, no := f.Number("split.count", 1), f.Number("split.no", 0)
	switch {
	case no > 0:
		return nil, fmt.Errorf("part %d of %d, want the first part, %s", no+1, count,
			filepath.Base(partName(path, 1, count)))
	case count > maxParts:
		return nil, fmt.Errorf("one of %d parts, want at most %d", count, maxParts)
	}
	if err := f.checkArchitecture(families); err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, t := range f.tensors {
		names[t.name] = true
	}
	for i := 2; i <= count; i++ {
		next := partName(path, i, count)
		part, err := openPart(s, next)
		if err != nil {
			return nil, fmt.Errorf("part %d of %d: %w", i, count, err)
		}
		if no, of := part.Number("split.no", 0), part.Number("split.count", 1); no != i-1 ||
			of != count {
			return nil, fmt.Errorf("%s: part %d of %d, want part %d of %d", filepath.Base(next),
				no+1, of, i, count)
		}
		for _, t := range part.tensors {
			if names[t.name] {
				return nil, fmt.Errorf("%s: tensor %.80q is in an earlier part too",
					filepath.Base(next), t.name)
			}
			names[t.name] = true
		}
		f.tensors = append(f.tensors, part.tensors...)
	}
	if want := f.Number("split.tensors.count", len(f.tensors)); want != len(f.tensors) {
		return nil, fmt.Errorf("%d parts with %d tensors, want %d", count, len(f.tensors), want)
	}
	return f, nil
}

// maxParts is the largest number that fits the file names.
const maxParts = 99999

// openPart maps and parses one file.
func openPart(s *checkpoint.Store, path string) (*file, error) {
	m, err := checkpoint.MapFile(path)
	if err != nil {
		return nil, err
	}
	s.Maps = append(s.Maps, m)
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	s.What.Files = append(s.What.Files, abs)
	f, err := parse(m.Data)
	if err != nil {
		return nil, err
	}
	// Keys that decide what else is read must not fall back to their defaults.
	for _, key := range []string{"split.count", "split.no", f.architecture() + ".block_count"} {
		f.Number(key, 0)
	}
	return f, f.wrong
}

// partPattern matches the end of the name of a split file.
var partPattern = regexp.MustCompile(`-(\d{5})-of-(\d{5})\.gguf$`)

// partName returns the name of another part of a split file.
func partName(path string, part, of int) string {
	stem := partPattern.ReplaceAllString(path, "")
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", stem, part, of)
}

// laterPart reports whether name names a part after the first.
func laterPart(name string) bool {
	m := partPattern.FindStringSubmatch(name)
	if m == nil {
		return false
	}
	part, _ := strconv.Atoi(m[1]) // always five digits
	return part > 1
}

// checkArchitecture returns an error for models that this program does not support.
func (f *file) checkArchitecture(families checkpoint.Families) error {
	var known []string
	for _, family := range families {
		if g := family.GGUF; g != nil {
			known = append(known, g.Decoders...)
			if g.Joined != nil && !slices.Contains(known, g.Joined.Architecture) {
				known = append(known, g.Joined.Architecture)
			}
		}
	}
	known = append(known, archClip)
	switch arch := f.architecture(); {
	case !f.has("general.architecture"):
		return fmt.Errorf("general.architecture is missing, want %s", checkpoint.Either(known))
	case !slices.Contains(known, arch):
		return fmt.Errorf("general.architecture: %q: %w, want %s", arch, errs.ErrUnsupported,
			checkpoint.Either(known))
	case f.Text("general.type", "") == "adapter":
		return fmt.Errorf("general.type: an adapter (LoRA): %w, want the merged model",
			errs.ErrUnsupported)
	}
	return nil
}

// Read returns the tensors of the file at path and, if it is the first of several, of the other
// parts. They have the file's names, with axes in Hugging Face's order. Close releases them.
func Read(path string, families checkpoint.Families) (*checkpoint.Store, error) {
	s := &checkpoint.Store{What: checkpoint.About{Name: filepath.Base(path)},
		Weights: map[string]*checkpoint.Weight{}}
	f, err := open(s, path, families)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	for _, t := range f.tensors {
		s.Weights[t.name] = t.weight()
	}
	s.Seal()
	return s, nil
}

// weight returns the tensor in the file's form.
func (t *tensorInfo) weight() *checkpoint.Weight {
	if t.typ.plain {
		return &checkpoint.Weight{Tensor: tensor.Tensor{DType: t.typ.dtype, Shape: t.shape,
			Data: t.data}}
	}
	x := &checkpoint.Weight{
		Tensor: tensor.Tensor{DType: t.typ.kept, Shape: t.shape}, Stored: t.typ.name,
		Raw: [][]byte{t.data}, Read: t.values,
	}
	if t.typ.blocks != nil && len(t.shape) == 2 {
		x.Blocks = t.blocks
	}
	return x
}

// values writes the values of the rows from element at on. The type has blocks.
func (t *tensorInfo) values(dst []float32, at int) error {
	blocks := t.data[at/t.typ.values*t.typ.bytes:]
	t.typ.read(dst, blocks)
	return nil
}

// blocks reads the blocks of a row.
func (t *tensorInfo) blocks(scales, minima []float32, q []uint8, row int) error {
	each := t.typ.values / 32
	data := t.data[row*len(scales)/each*t.typ.bytes:]
	for b := 0; b < len(scales); b += each {
		var least []float32
		if minima != nil {
			least = minima[b : b+each]
		}
		t.typ.blocks(scales[b:b+each], least, q[32*b:][:t.typ.values], data[:t.typ.bytes])
		data = data[t.typ.bytes:]
	}
	return nil
}
