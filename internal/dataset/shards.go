package dataset

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Shards are the parquet files below a folder, by configuration and split, in the hub's naming.
type Shards struct {
	Dir   string
	files map[[2]string][]shardFile
}

type shardFile struct {
	path      string // below Dir
	index, of int
}

// DefaultConfig is the configuration of files that are not in a folder of their own.
const DefaultConfig = "default"

// maxDepth is how deep shards are searched: data set / configuration / split / file.
const maxDepth = 3

var (
	shardName = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?\.parquet$`)
	partName  = regexp.MustCompile(`^(\d{4})\.parquet$`)
)

// FindShards lists the parquet files of the data set repo, "owner/name". place is its folder, a
// folder with folders of owners or data sets, a folder of the hub's cache, or one file. Several
// owners may have published the same data set.
func FindShards(place string, repos ...string) (*Shards, error) {
	if info, err := os.Stat(place); err != nil {
		return nil, err
	} else if !info.IsDir() {
		s := &Shards{Dir: filepath.Dir(place), files: map[[2]string][]shardFile{}}
		return s, s.add(filepath.Base(place))
	}
	dirs := snapshots(place)
	if _, err := os.Stat(filepath.Join(place, "README.md")); err == nil {
		dirs = append(dirs, place) // the data set's README
	}
	for _, repo := range repos {
		owner, name, _ := strings.Cut(repo, "/")
		cache := "datasets--" + owner + "--" + name
		dirs = append(dirs, filepath.Join(place, owner, name), filepath.Join(place, name))
		for _, d := range []string{
			filepath.Join(place, cache), filepath.Join(place, "hub", cache),
		} {
			dirs = append(dirs, snapshots(d)...)
		}
	}
	dirs = append(dirs, place)
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		s, err := list(dir)
		if err != nil || len(s.files) > 0 {
			return s, err
		}
	}
	return &Shards{Dir: place}, nil
}

// snapshots returns the snapshot folders in a folder of the hub's cache; the one that its reference
// main names is first.
func snapshots(cache string) (dirs []string) {
	if main, err := os.ReadFile(filepath.Join(cache, "refs", "main")); err == nil {
		dirs = append(dirs, filepath.Join(cache, "snapshots", strings.TrimSpace(string(main))))
	}
	entries, _ := os.ReadDir(filepath.Join(cache, "snapshots"))
	for _, e := range entries {
		dirs = append(dirs, filepath.Join(cache, "snapshots", e.Name()))
	}
	return dirs
}

func list(dir string) (*Shards, error) {
	s := &Shards{Dir: dir, files: map[[2]string][]shardFile{}}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."),
			d.IsDir() && strings.Count(name, "/") >= maxDepth:
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".parquet"):
			return s.add(name)
		}
		return nil
	})
	return s, err
}

// add adds a path: "CONFIG/SPLIT-00000-of-00003-HASH.parquet" or "CONFIG/SPLIT/0000.parquet". The
// default configuration has no folder, or one named data.
func (s *Shards) add(name string) error {
	dir, base := path.Split(name)
	config := path.Base(path.Clean("/" + dir))
	split, f := strings.TrimSuffix(base, ".parquet"), shardFile{path: name, of: 1}
	if m := shardName.FindStringSubmatch(base); m != nil {
		split = m[1]
		f.index, _ = strconv.Atoi(m[2])
		f.of, _ = strconv.Atoi(m[3])
	} else if m := partName.FindStringSubmatch(base); m != nil && strings.Count(name, "/") >= 2 {
		split, config = config, path.Base(path.Dir(path.Clean(dir)))
		f.index, _ = strconv.Atoi(m[1])
		f.of = 0
	}
	if config == "/" || config == "data" {
		config = DefaultConfig
	}
	key := [2]string{config, split}
	for _, other := range s.files[key] {
		if other.index == f.index {
			return fmt.Errorf("%s: shard %d occurs twice: %s and %s", s.Dir, f.index, other.path,
				f.path)
		}
	}
	s.files[key] = append(s.files[key], f)
	return nil
}

// Empty reports whether there are no shards.
func (s *Shards) Empty() bool { return len(s.files) == 0 }

// Splits lists the existing splits: "CONFIG/SPLIT".
func (s *Shards) Splits() (names []string) {
	for key := range s.files {
		names = append(names, key[0]+"/"+key[1])
	}
	slices.Sort(names)
	return names
}

// Open opens the shards of a split in the first of configs that exists. If the folder holds only
// one configuration, Open uses that. A missing shard is an error.
func (s *Shards) Open(split string, configs ...string) (*Parquet, error) {
	for _, config := range append(configs, DefaultConfig) {
		files := slices.Clone(s.files[[2]string{config, split}])
		if len(files) == 0 {
			continue
		}
		slices.SortFunc(files, func(a, b shardFile) int { return a.index - b.index })
		names := make([]string, len(files))
		for i, f := range files {
			if f.index != i || f.of > 0 && f.of != max(files[0].of, 1) {
				return nil, fmt.Errorf("%s: split %q: shard %d is missing", s.Dir, split, i)
			}
			names[i] = f.path
		}
		if of := files[0].of; of > len(files) {
			return nil, fmt.Errorf("%s: split %q: shard %d of %d is missing", s.Dir, split,
				len(files), of)
		}
		return OpenParquet(s.Dir, names)
	}
	return nil, fmt.Errorf("%s: split %q: no parquet files of it, got %s", s.Dir, split,
		strings.Join(s.Splits(), ", "))
}
