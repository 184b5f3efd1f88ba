package hub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/errs"
)

// Repo is a repository in the cache.
type Repo struct {
	Name      string     `json:"name"`           // ORG/NAME
	Bytes     int64      `json:"bytes"`          // including incomplete downloads
	Cut       int64      `json:"cut"`            // bytes of incomplete downloads that Pull can continue
	Dead      int64      `json:"dead,omitempty"` // and of those that it cannot
	LastUse   time.Time  `json:"lastUse,omitzero"`
	Snapshots []Revision `json:"snapshots"`
	Problem   string     `json:"problem,omitempty"` // why it cannot be read
}

// Revision is a snapshot in the cache.
type Revision struct {
	Commit  string    `json:"commit"`
	Refs    []string  `json:"refs"` // branches and tags
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`            // of its files, which other snapshots may share
	LastUse time.Time `json:"lastUse,omitzero"` // zero: it has no files
	Quants  []string  `json:"quants,omitempty"` // quantisations of its GGUF files
}

// List returns the models in the cache, sorted by name.
func (c *Client) List() ([]Repo, error) {
	entries, err := os.ReadDir(c.cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	var repos []Repo
	for _, e := range entries {
		folder, ok := strings.CutPrefix(e.Name(), modelsPrefix)
		if !ok || !e.IsDir() {
			continue
		}
		repos = append(repos, c.describe(strings.Replace(folder, "--", "/", 1)))
	}
	return repos, nil
}

// describe reads one repository.
func (c *Client) describe(name string) Repo {
	n := Name{Repo: name}
	r := Repo{Name: name}
	refs, err := c.refs(n)
	if err != nil {
		r.Problem = err.Error()
	}
	commits, err := os.ReadDir(filepath.Join(c.repo(n), "snapshots"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Problem = err.Error()
	}
	blobs := map[string]int64{}
	for _, e := range commits {
		if !e.IsDir() {
			continue
		}
		v, err := describeSnapshot(c.snapshot(n, e.Name()), blobs)
		if err != nil {
			r.Problem = err.Error()
		}
		v.Refs = refs[v.Commit]
		if v.LastUse.After(r.LastUse) {
			r.LastUse = v.LastUse
		}
		r.Snapshots = append(r.Snapshots, v)
	}
	inBlobs, err := entries(filepath.Join(c.repo(n), "blobs"))
	if err != nil {
		r.Problem = err.Error()
	}
	for _, file := range inBlobs {
		hash, ok := strings.CutSuffix(filepath.Base(file), incomplete)
		if !ok {
			continue
		}
		st, err := os.Stat(file)
		switch {
		case err != nil: // removed in the meantime
		case strings.Contains(hash, "."), // ETAG.RANDOM, as huggingface_hub names its own
			slices.Contains(inBlobs, strings.TrimSuffix(file, incomplete)): // it was quicker
			r.Dead += st.Size()
		default:
			r.Cut += st.Size()
		}
	}
	r.Bytes = r.Cut + r.Dead
	for _, size := range blobs {
		r.Bytes += size
	}
	return r
}

// entries returns the paths of all that a folder holds. A folder that is not there holds nothing.
func entries(dir string) ([]string, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	paths := make([]string, len(list))
	for i, e := range list {
		paths[i] = filepath.Join(dir, e.Name())
	}
	return paths, err
}

// describeSnapshot reads a snapshot's folder and adds its files' sizes to blobs, by the path of the
// blob.
func describeSnapshot(dir string, blobs map[string]int64) (Revision, error) {
	v := Revision{Commit: filepath.Base(dir)}
	list, err := localFiles(dir)
	own := map[string]bool{}
	for _, file := range list {
		path := filepath.Join(dir, filepath.FromSlash(file))
		st, err2 := stat(path)
		if err2 != nil {
			if errors.Is(err2, errs.ErrNotFound) { // a link to nothing
				err = err2
			}
			continue // or removed in the meantime
		}
		blob := blobOf(path)
		if !own[blob] {
			v.Bytes += st.Size()
		}
		own[blob], blobs[blob] = true, st.Size()
		if used := accessTime(st); used.After(v.LastUse) {
			v.LastUse = used
		}
		if q := quantOf(file); q != "" && !slices.Contains(v.Quants, q) {
			v.Quants = append(v.Quants, q)
		}
	}
	v.Files = len(list)
	slices.Sort(v.Quants)
	return v, err
}

// blobOf is the target of a snapshot's file. It follows only one link, because a blob may itself be
// a link that several repositories share.
func blobOf(path string) string {
	target, err := os.Readlink(path)
	if err != nil {
		return path
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(filepath.Dir(path), target)
	}
	return filepath.Clean(target)
}

// refs returns the branches and tags of every commit.
func (c *Client) refs(n Name) (map[string][]string, error) {
	root := filepath.Join(c.repo(n), "refs")
	refs := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		commit := strings.TrimSpace(string(raw))
		refs[commit] = append(refs[commit], filepath.ToSlash(rel))
		return err
	})
	return refs, err
}

// Removed counts the deleted files and bytes.
type Removed struct {
	Files int   // deleted from snapshots
	Bytes int64 // freed
}

// Remove deletes a repository from the cache. With a revision it deletes that snapshot and the
// blobs that no other one uses; with a quantisation only its GGUF files, without the projector,
// which other quantisations need. It refuses while the repository is being downloaded.
func (c *Client) Remove(n Name) (Removed, error) {
	r, err := c.remove(n)
	if err != nil {
		return r, fmt.Errorf("hub: %s: %w", n, err)
	}
	return r, nil
}

func (c *Client) remove(n Name) (r Removed, err error) {
	if _, err := os.Stat(c.repo(n)); errors.Is(err, fs.ErrNotExist) {
		return r, &errNotCached{c.cache}
	}
	busy, err := c.busy(n)
	if err != nil {
		return r, err
	}
	if busy {
		return r, errors.New("a download of it goes on")
	}
	if n.Revision == "" && n.Quant == "" {
		return c.removeAll(n)
	}
	commit, err := c.commit(n)
	if err != nil {
		return r, err
	}
	dir := c.snapshot(n, commit)
	list, err := localFiles(dir)
	if err != nil {
		return r, err
	}
	doomed := list
	if n.Quant != "" {
		doomed = slices.DeleteFunc(slices.Clone(list), func(f string) bool {
			return !strings.EqualFold(path.Ext(f), ".gguf") || isProjector(f) ||
				!hasQuant(f, n.Quant)
		})
		if len(doomed) == 0 {
			return r, &kindError{quant: n.Quant, files: list}
		}
	}
	r, err = c.removeFiles(n, dir, doomed)
	if len(doomed) < len(list) {
		return r, err
	}
	refs, err2 := c.refs(n)
	err = errors.Join(err, err2, os.RemoveAll(dir))
	for _, ref := range refs[commit] {
		err = errors.Join(err, os.Remove(filepath.Join(c.repo(n), "refs", filepath.FromSlash(ref))))
	}
	if left, err2 := os.ReadDir(filepath.Dir(dir)); err2 == nil && len(left) == 0 {
		rest, err2 := c.removeAll(n)
		r.Bytes += rest.Bytes
		err = errors.Join(err, err2)
	}
	return r, err
}

// removeAll deletes a repository.
func (c *Client) removeAll(n Name) (r Removed, err error) {
	for _, v := range c.describe(n.Repo).Snapshots {
		r.Files += v.Files
	}
	shared, err := c.sharedBy(n)
	if err != nil {
		return r, err
	}
	if r.Bytes, err = c.ownBytes(n); err != nil {
		return r, err
	}
	err = errors.Join(os.RemoveAll(c.repo(n)),
		os.RemoveAll(filepath.Join(c.cache, locksFolder, n.folder())))
	for _, path := range shared {
		freed, err2 := c.release(path)
		r.Bytes += freed
		err = errors.Join(err, err2)
	}
	return r, err
}

// removeFiles deletes files of a snapshot, and blobs that no snapshot links to afterwards.
func (c *Client) removeFiles(n Name, dir string, files []string) (r Removed, err error) {
	blobs := map[string]bool{}
	for _, file := range files {
		path := filepath.Join(dir, filepath.FromSlash(file))
		st, err := os.Lstat(path)
		if err != nil {
			return r, err
		}
		blob := blobOf(path)
		if blob == path {
			r.Bytes += st.Size()
		} else {
			blobs[blob] = true
		}
		if err := os.Remove(path); err != nil {
			return r, err
		}
		r.Files++
	}
	others, err := entries(filepath.Join(c.repo(n), "snapshots"))
	if err != nil {
		return r, err
	}
	for _, other := range others {
		left, err := localFiles(other)
		if err != nil {
			return r, err
		}
		for _, file := range left {
			delete(blobs, blobOf(filepath.Join(other, filepath.FromSlash(file))))
		}
	}
	inBlobs := filepath.Join(c.repo(n), "blobs")
	for blob := range blobs {
		if filepath.Dir(blob) != inBlobs {
			return r, fmt.Errorf("%s: a link out of the repository's folder: %w", blob,
				errs.ErrDamaged)
		}
		st, err := os.Lstat(blob)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return r, err
		}
		shared, freed := c.shared(blob), st.Size()
		if err := os.Remove(blob); err != nil {
			return r, err
		}
		if shared != "" {
			freed, err = c.release(shared)
		}
		r.Bytes += freed
		if err != nil {
			return r, err
		}
	}
	return r, nil
}
