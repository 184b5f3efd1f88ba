package hub

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/restore-vlm/restore/internal/files"
)

// huggingface_hub keeps content of several repositories once: a repository's blob is then a link to
// CACHE/blobs/HH/HASH, a read-only file. HASH.lock is locked while a link to it is made; HASH.refs
// lists the links, as a hint. The marker says that the folder is such a store.
const (
	sharedFolder  = "blobs"
	sharedMarker  = ".huggingface-shared-blobs"
	sharedVersion = "1\n"
)

// sharedPattern matches a shared file's path in the store.
var sharedPattern = regexp.MustCompile(`^[0-9a-f]{2}/[0-9a-f]{64}$`)

// shared returns the shared file that a repository's blob links to, "" if the content is its own.
func (c *Client) shared(blob string) string {
	target := blobOf(blob)
	store := filepath.Join(c.cache, sharedFolder)
	rel, err := filepath.Rel(store, target)
	if err != nil || !sharedPattern.MatchString(filepath.ToSlash(rel)) {
		return ""
	}
	version, err := os.ReadFile(filepath.Join(store, sharedMarker))
	if err != nil || string(version) != sharedVersion {
		return ""
	}
	return target
}

// sharedBy returns the shared files that a repository's blobs link to.
func (c *Client) sharedBy(n Name) ([]string, error) {
	blobs, err := entries(filepath.Join(c.repo(n), "blobs"))
	var paths []string
	for _, blob := range blobs {
		if path := c.shared(blob); path != "" {
			paths = append(paths, path)
		}
	}
	return paths, err
}

// release deletes a shared file unless a blob of any repository is still a link to it, or a process
// is just making one. It returns the bytes freed.
func (c *Client) release(path string) (freed int64, err error) {
	lock, err := files.OpenLocked(path+".lock", 0o666)
	if errors.Is(err, files.ErrInUse) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	content, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	repos, err := entries(c.cache)
	if err != nil {
		return 0, err
	}
	for _, repo := range repos {
		if !strings.Contains(filepath.Base(repo), "--") {
			continue
		}
		blobs, err := entries(filepath.Join(repo, "blobs"))
		if err != nil {
			return 0, err
		}
		for _, blob := range blobs {
			if to, err := os.Stat(blob); err == nil && os.SameFile(to, content) {
				return 0, nil
			}
		}
	}
	if err := os.Remove(path); err != nil {
		return 0, err
	}
	if err := os.Remove(path + ".refs"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return content.Size(), err
	}
	return content.Size(), nil
}

// ownBytes counts the bytes of a repository's own files.
func (c *Client) ownBytes(n Name) (bytes int64, err error) {
	for _, dir := range []string{"blobs", "snapshots"} {
		err = errors.Join(err, filepath.WalkDir(filepath.Join(c.repo(n), dir),
			func(_ string, e fs.DirEntry, err error) error {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				if err != nil || !e.Type().IsRegular() {
					return err
				}
				info, err := e.Info()
				if err == nil {
					bytes += info.Size()
				}
				return err
			}))
	}
	return bytes, err
}
