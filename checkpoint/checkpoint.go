package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/tensor"
)

const (
	configFile = "config.json"
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"

	// maxFile bounds the files read whole. The largest known tokenizer.json has
	// about 35 MB.
	maxFile = 256 << 20
	// maxListed is how many names an error lists.
	maxListed = 8
)

// Checkpoint is an open model directory. It is immutable and safe for concurrent
// use until Close, which invalidates the tensors' bytes.
type Checkpoint struct {
	// Name says where the weights are from: the last element of the path, or
	// org/name for a folder of the hub's cache.
	Name string

	dir      fs.FS             // nil when inMemory is not
	inMemory map[string][]byte // the directory's files but for weights
	config   json.RawMessage
	tensors  map[string]*tensor.Tensor
	names    []string
	bytes    int64
	files    []*mapping
	root     string  // absolute path of the directory, "" when it is not one of the system's
	pack     *packed // nil for a directory
}

// Open opens the directory at path: one with config.json and weights, a folder of
// the hub's cache (models--org--name, of which the snapshot of refs/main, or the
// only one, is taken), or one of its snapshots; or the packed file at path, whose
// weights must be checked by Load before they are computed with. Weight files are
// mapped; changing them before Close is undefined.
func Open(path string) (*Checkpoint, error) {
	const want = "want a model directory (config.json and model.safetensors) or a packed file"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("checkpoint: %s: no such directory, %s", path, want)
	case err != nil:
		return nil, fmt.Errorf("checkpoint: %w", err)
	case info.Mode().IsRegular():
		c, err := openPack(path)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %s: %w", path, err)
		}
		return c, nil
	case !info.IsDir():
		return nil, fmt.Errorf("checkpoint: %s: got a %s, %s", path, kind(info.Mode()), want)
	}
	dir := path
	snapshot, err := hubSnapshot(os.DirFS(path))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	if snapshot != "" {
		dir = filepath.Join(path, filepath.FromSlash(snapshot))
	}
	name, root := path, ""
	if abs, err := filepath.Abs(dir); err == nil {
		name, root = displayName(filepath.ToSlash(abs)), abs
	}
	c, err := open(name, os.DirFS(dir), func(file string) (*mapping, error) {
		return mapFile(filepath.Join(dir, file))
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", path, err)
	}
	c.root = root
	return c, nil
}

// OpenFS opens the directory name ("." is the root) of fsys, which has the layout
// that Open describes; cache folders are not looked for. Weights are read into
// memory: a file system with a ReadFile method may hand out its own bytes, which
// are then used without a copy and never written to.
func OpenFS(fsys fs.FS, name string) (*Checkpoint, error) {
	dir, err := fs.Sub(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if info, err := fs.Stat(dir, "."); err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", name, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("checkpoint: %s: got a %s, want a model directory", name, kind(info.Mode()))
	}
	c, err := open(path.Base(name), dir, func(file string) (*mapping, error) {
		data, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		return &mapping{data: data}, nil
	})
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %w", name, err)
	}
	return c, nil
}

// FromConfig is a checkpoint without weights and with no other file than
// config.json, for benchmarks of a shape. config is not copied.
func FromConfig(name string, config []byte) (*Checkpoint, error) {
	if err := checkObject(config); err != nil {
		return nil, fmt.Errorf("checkpoint: %s: %s: %w", name, configFile, err)
	}
	return &Checkpoint{Name: name, inMemory: map[string][]byte{configFile: config}, config: config}, nil
}

// open reads config and weights of dir; load gives the bytes of a weight file.
func open(name string, dir fs.FS, load func(file string) (*mapping, error)) (_ *Checkpoint, err error) {
	c := &Checkpoint{Name: name, dir: dir, tensors: map[string]*tensor.Tensor{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	config, ok, err := readBounded(dir, configFile)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s missing: %s, want %s and %s of a Hugging Face model", configFile, contents(dir), configFile, singleFile)
	}
	if err := checkObject(config); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	c.config = config

	single, err := exists(dir, singleFile)
	if err != nil {
		return nil, err
	}
	if single {
		f, err := c.load(singleFile, load)
		if err != nil {
			return nil, err
		}
		c.tensors = f.Tensors
	} else if err := c.loadShards(load); err != nil {
		return nil, err
	}
	for name, t := range c.tensors {
		c.names = append(c.names, name)
		c.bytes += int64(len(t.Data))
	}
	slices.Sort(c.names)
	return c, nil
}

// load parses one weight file and keeps its bytes until Close.
func (c *Checkpoint) load(file string, load func(string) (*mapping, error)) (*File, error) {
	mem, err := load(file)
	if err != nil {
		return nil, err
	}
	c.files = append(c.files, mem)
	f, err := parseSafetensors(mem.data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return f, nil
}

// loadShards loads the files that the index names. Index and shards must agree;
// of a tensor that is in two shards, the index says which copy counts.
func (c *Checkpoint) loadShards(load func(string) (*mapping, error)) error {
	raw, ok, err := readBounded(c.dir, indexFile)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("no weights: %s, want %s or %s with its shards", contents(c.dir), singleFile, indexFile)
	}
	weightMap, err := parseIndex(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", indexFile, err)
	}
	var shards []string
	for _, shard := range weightMap {
		shards = append(shards, shard)
	}
	slices.Sort(shards)
	shards = slices.Compact(shards)
	for _, shard := range shards {
		if ok, err := exists(c.dir, shard); err != nil {
			return err
		} else if !ok {
			return fmt.Errorf("%s: shard %s missing (incomplete download?)", indexFile, shard)
		}
	}
	files := make(map[string]*File, len(shards))
	for _, shard := range shards {
		if files[shard], err = c.load(shard, load); err != nil {
			return err
		}
	}
	var problems []string
	for name, shard := range weightMap {
		t, ok := files[shard].Tensors[name]
		if !ok {
			problems = append(problems, fmt.Sprintf("tensor %q is not in %s", name, shard))
			continue
		}
		c.tensors[name] = t
	}
	for _, shard := range shards {
		for name := range files[shard].Tensors {
			if _, ok := weightMap[name]; !ok {
				problems = append(problems, fmt.Sprintf("tensor %q of %s is not in the index", name, shard))
			}
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return fmt.Errorf("%s: %s", indexFile, list(problems, "; "))
	}
	return nil
}

// parseIndex returns the weight map of a model.safetensors.index.json: the file
// of every tensor. File names are plain: they cannot leave the directory.
func parseIndex(raw []byte) (map[string]string, error) {
	if err := checkObject(raw); err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	const key = "weight_map"
	if fields[key] == nil {
		return nil, fmt.Errorf("%s missing, want an object from tensor to file", key)
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(fields[key], &values); err != nil || len(values) == 0 {
		return nil, fmt.Errorf("%s: got %s, want an object from tensor to file", key, excerpt(fields[key]))
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	files := make(map[string]string, len(values))
	for _, name := range names {
		var file string
		if err := json.Unmarshal(values[name], &file); err != nil {
			return nil, fmt.Errorf("%s: %q: got %s, want a file name", key, name, excerpt(values[name]))
		}
		if !plainName(file) {
			return nil, fmt.Errorf("%s: %q: got %s, want a plain file name of this directory", key, name, excerpt(fmt.Appendf(nil, "%q", file)))
		}
		files[name] = file
	}
	return files, nil
}

// plainName says whether name is a single element of a path on every system.
func plainName(name string) bool {
	return fs.ValidPath(name) && name != "." && len(name) <= 255 && !strings.ContainsAny(name, "/\\:\x00")
}

// hubSnapshot returns the snapshot directory of a hub cache folder, "" when dir is
// not one.
func hubSnapshot(dir fs.FS) (string, error) {
	if ok, err := exists(dir, configFile); ok || err != nil {
		return "", err
	}
	entries, err := fs.ReadDir(dir, "snapshots")
	if err != nil {
		return "", nil // not a cache folder: what is wrong with it is told later
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	ref, ok, err := readBounded(dir, "refs/main")
	if err != nil {
		return "", err
	}
	if !ok {
		if len(names) != 1 {
			return "", fmt.Errorf("hub cache without refs/main: got %d snapshots, want one (give the path of a snapshot)", len(names))
		}
		return "snapshots/" + names[0], nil
	}
	commit := strings.TrimSpace(string(ref))
	if !plainName(commit) {
		return "", fmt.Errorf("refs/main: got %s, want the name of a snapshot", excerpt(fmt.Appendf(nil, "%q", commit)))
	}
	if !slices.Contains(names, commit) {
		return "", fmt.Errorf("refs/main: snapshot %s missing (incomplete download?)", commit)
	}
	return "snapshots/" + commit, nil
}

// displayName is the last element of an absolute path, or org/name when the path
// is a snapshot in the hub's cache.
func displayName(dir string) string {
	parts := strings.Split(dir, "/")
	if n := len(parts); n >= 3 && parts[n-2] == "snapshots" {
		if repo, ok := strings.CutPrefix(parts[n-3], "models--"); ok {
			return strings.Replace(repo, "--", "/", 1)
		}
	}
	return path.Base(dir)
}

// Config returns the bytes of config.json, a JSON object without repeated keys.
// The caller must not change them.
func (c *Checkpoint) Config() json.RawMessage { return c.config }

// File returns the content of another file of the directory, such as
// tokenizer.json; ok is false when there is none. Files above 256 MiB are an error.
// The caller must not change them.
func (c *Checkpoint) File(name string) (data []byte, ok bool, err error) {
	if c.inMemory != nil {
		data, ok = c.inMemory[name]
		return data, ok, nil
	}
	data, ok, err = readBounded(c.dir, name)
	if err != nil {
		err = fmt.Errorf("checkpoint: %s: %w", c.Name, err)
	}
	return data, ok, err
}

// Tensor returns the tensor called name. Its bytes are valid until Close and must
// not be written to.
func (c *Checkpoint) Tensor(name string) (*tensor.Tensor, bool) {
	t, ok := c.tensors[name]
	return t, ok
}

// Names returns the names of all tensors, sorted. The caller must not change it.
func (c *Checkpoint) Names() []string { return c.names }

// Bytes returns the size of all tensors as they are stored.
func (c *Checkpoint) Bytes() int64 { return c.bytes }

// Close releases the mapped files. The tensors must not be used afterwards.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, m := range c.files {
		errs = append(errs, m.close())
	}
	c.files = nil
	return errors.Join(errs...)
}

// readBounded reads a file of at most maxFile bytes; ok is false when it is absent.
func readBounded(dir fs.FS, name string) (data []byte, ok bool, err error) {
	f, err := dir.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	if !info.Mode().IsRegular() {
		return nil, false, fmt.Errorf("%s: got a %s, want a file", name, kind(info.Mode()))
	}
	// The size is only a hint: what counts is how much comes.
	data = make([]byte, 0, min(max(info.Size(), 0)+1, maxFile+1))
	for {
		n, err := f.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		if len(data) > maxFile {
			return nil, false, fmt.Errorf("%s: got more than %d bytes, want fewer", name, maxFile)
		}
		if err == io.EOF {
			return data, true, nil
		}
		if err != nil {
			return nil, false, fmt.Errorf("%s: %w", name, err)
		}
		if len(data) == cap(data) {
			data = slices.Grow(data, len(data)+512)
		}
	}
}

// exists says whether a name is there. A link to nothing counts as absent.
func exists(dir fs.FS, name string) (bool, error) {
	_, err := fs.Stat(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// contents describes a directory that lacks something, for an error.
func contents(dir fs.FS) string {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil || len(entries) == 0 {
		return "got an empty directory"
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			name += "/"
		}
		names = append(names, name)
	}
	return "got " + list(names, ", ")
}

// list joins the first names and counts the rest.
func list(names []string, sep string) string {
	if n := len(names) - maxListed; n > 0 {
		return fmt.Sprintf("%s%sand %d more", strings.Join(names[:maxListed], sep), sep, n)
	}
	return strings.Join(names, sep)
}

// kind names what is not a regular file.
func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m.IsRegular():
		return "file"
	}
	return "special file"
}
