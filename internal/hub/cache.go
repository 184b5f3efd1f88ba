package hub

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/web"
)

// Snapshot is the cached part of one commit of a repository.
type Snapshot struct {
	Name Name
	Dir  string // absolute path of the snapshot
	// Model is the path to open the model: Dir, or the first part of a GGUF file.
	Model string
	// Projector is the mmproj next to a GGUF file; empty if there is none.
	Projector string
}

// Find returns the snapshot of a name from the cache, without a request. The error is an
// errs.ErrNotFound if the repository, the revision or one of its files is not in the cache.
func (c *Client) Find(n Name) (*Snapshot, error) {
	s, err := c.find(n)
	if err != nil {
		return nil, fmt.Errorf("hub: %s: %w", n, err)
	}
	return s, nil
}

// Folder returns the snapshot's folder of a name, which may lack weights: of a vision tower whose
// weights are in another checkpoint, Pull has only the settings.
func (c *Client) Folder(n Name) (string, error) {
	s, err := c.find(n)
	var none *kindError
	if err != nil && !errors.As(err, &none) {
		return "", fmt.Errorf("hub: %s: %w", n, err)
	}
	return s.Dir, nil
}

// find returns the snapshot also with a kindError.
func (c *Client) find(n Name) (*Snapshot, error) {
	commit, err := c.commit(n)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Name: n, Dir: c.snapshot(n, commit)}
	list, err := localFiles(s.Dir)
	if err != nil {
		return nil, err
	}
	ch, err := choose(list, n.Quant)
	if err != nil {
		return s, err
	}
	if ch.index != "" {
		raw, err := os.ReadFile(filepath.Join(s.Dir, ch.index))
		if err != nil {
			return nil, err
		}
		named, err := shards(ch.index, raw)
		if err != nil {
			return nil, err
		}
		for _, file := range named {
			if !slices.Contains(list, file) {
				return nil, fmt.Errorf("%s is missing, the download is not complete: %w", file,
					errs.ErrNotFound)
			}
		}
		ch.files = append(ch.files, named...)
	}
	s.point(ch)
	if err := c.checkSizes(s, ch.files); err != nil {
		return nil, err
	}
	return s, nil
}

// point sets the model's path.
func (s *Snapshot) point(ch choice) {
	s.Model = s.Dir
	if ch.model != "" {
		s.Model = filepath.Join(s.Dir, filepath.FromSlash(ch.model))
	}
	if ch.projector != "" {
		s.Projector = filepath.Join(s.Dir, filepath.FromSlash(ch.projector))
	}
}

// MarkUsed sets the snapshot's time of last use to now; List and Python's tools report it. A
// read-only cache stays unchanged.
func (s *Snapshot) MarkUsed() {
	file := s.Model
	if file == s.Dir {
		file = filepath.Join(s.Dir, "config.json")
	}
	if st, err := os.Stat(file); err == nil {
		_ = os.Chtimes(file, time.Now(), st.ModTime()) // failing to set a date is harmless
	}
}

// errNotCached says that the cache has no such repository or revision.
type errNotCached struct{ cache string }

func (e *errNotCached) Error() string        { return "not in the cache " + e.cache }
func (e *errNotCached) Is(target error) bool { return target == errs.ErrNotFound }

// commit returns the commit of a name's revision. Without a revision and without refs/main it is
// the only snapshot.
func (c *Client) commit(n Name) (string, error) {
	missing := &errNotCached{c.cache}
	snapshots, err := os.ReadDir(filepath.Join(c.cache, n.folder(), "snapshots"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", missing
	}
	if err != nil {
		return "", err
	}
	var commits []string
	for _, e := range snapshots {
		if commitPattern.MatchString(e.Name()) {
			commits = append(commits, e.Name())
		}
	}
	if slices.Contains(commits, n.Revision) {
		return n.Revision, nil
	}
	raw, err := os.ReadFile(c.ref(n))
	switch {
	case errors.Is(err, fs.ErrNotExist) && n.Revision == "" && len(commits) == 1:
		return commits[0], nil
	case errors.Is(err, fs.ErrNotExist):
		return "", missing
	case err != nil:
		return "", err
	}
	commit := strings.TrimSpace(string(raw))
	if !commitPattern.MatchString(commit) {
		return "", fmt.Errorf("%s: got %q, want a commit: %w", c.ref(n), web.Clean(commit),
			errs.ErrDamaged)
	}
	if !slices.Contains(commits, commit) {
		return "", missing
	}
	return commit, nil
}

func (c *Client) repo(n Name) string { return filepath.Join(c.cache, n.folder()) }

func (c *Client) ref(n Name) string {
	return filepath.Join(c.repo(n), "refs", filepath.FromSlash(n.revision()))
}

func (c *Client) snapshot(n Name, commit string) string {
	return filepath.Join(c.repo(n), "snapshots", commit)
}

func (c *Client) blob(n Name, etag string) string {
	return filepath.Join(c.repo(n), "blobs", etag)
}

// localFiles lists a snapshot's files with slashes, sorted, including links to nothing.
func localFiles(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		files = append(files, filepath.ToSlash(rel))
		return err
	})
	slices.Sort(files)
	return files, err
}

// stat describes a snapshot's file. The error names a link to nothing.
func stat(path string) (fs.FileInfo, error) {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if target, err := os.Readlink(path); err == nil {
			return nil, fmt.Errorf("%s: a link to %s, which does not exist: %w", path, target,
				errs.ErrNotFound)
		}
	}
	return st, err
}

// cacheTag marks a folder that backups may skip (bford.info/cachedir).
const cacheTag = "Signature: 8a477f597d28d172789f06886806bc55\n" +
	"# This file is a cache directory tag created by restore.\n"

// prepare makes the folders of a repository.
func (c *Client) prepare(n Name, commit string) error {
	for _, dir := range []string{
		filepath.Join(c.repo(n), "blobs"), filepath.Join(c.repo(n), "refs"),
		c.snapshot(n, commit), filepath.Join(c.cache, locksFolder, n.folder()),
	} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	tag := filepath.Join(c.cache, "CACHEDIR.TAG")
	if _, err := os.Lstat(tag); errors.Is(err, fs.ErrNotExist) {
		return files.Write(tag, []byte(cacheTag), 0o666)
	}
	return nil
}

// writeRef stores the commit of a branch or tag.
func (c *Client) writeRef(n Name, commit string) error {
	if n.revision() == commit {
		return nil
	}
	file := c.ref(n)
	if raw, err := os.ReadFile(file); err == nil && string(raw) == commit {
		return nil
	}
	// Python takes each file next to a branch for one.
	temporary := filepath.Join(c.cache, locksFolder, n.folder())
	for _, dir := range []string{filepath.Dir(file), temporary} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	f, err := files.Create(temporary, 0o666)
	if err != nil {
		return err
	}
	if _, err = f.WriteString(commit); err == nil {
		err = f.Commit(file)
	}
	if err != nil {
		return errors.Join(err, f.Discard())
	}
	return nil
}

// link makes the snapshot's file a relative link to the blob. If the file system has no links, it
// moves or copies the blob. fresh says that the blob was just written, so nothing else refers to
// it.
func (c *Client) link(n Name, commit, file, etag string, fresh bool) error {
	pointer := filepath.Join(c.snapshot(n, commit), filepath.FromSlash(file))
	if _, err := os.Stat(pointer); !errors.Is(err, fs.ErrNotExist) {
		return err // nil: it is there
	}
	if err := os.Remove(pointer); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(pointer), 0o777); err != nil {
		return err
	}
	up := strings.Repeat("../", 2+strings.Count(file, "/"))
	err := os.Symlink(filepath.FromSlash(path.Join(up, "blobs", etag)), pointer)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	blob := c.blob(n, etag)
	if fresh {
		return files.Move(blob, pointer)
	}
	return copyFile(blob, pointer)
}

// copyFile copies a file, first under a temporary name.
func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := files.Create(filepath.Dir(to), 0o666)
	if err != nil {
		return err
	}
	if _, err = io.Copy(dst, src); err == nil {
		err = dst.Commit(to)
	}
	if err != nil {
		return errors.Join(err, dst.Discard())
	}
	return nil
}
