package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/machine"
	"github.com/restore-vlm/restore/internal/web"
)

// atOnce is how many files are downloaded at once.
const atOnce = 4

// PullOptions say what to download, and receive progress.
type PullOptions struct {
	// Include are patterns for fnmatch, one of which a file must match; without patterns the files
	// that a model needs are chosen.
	Include []string
	// Verify compares the files that are in the cache with their hashes, and downloads those again
	// that differ; otherwise only their sizes are compared.
	Verify bool
	// Notice receives messages for the user; may be nil.
	Notice func(string)
	// Progress receives the bytes downloaded and the total, both without bytes from an earlier
	// call; may be nil. Calls do not overlap.
	Progress func(done, total int64)
}

// Pulled is the result of a download.
type Pulled struct {
	Snapshot
	Files int   // files of the name
	New   int   // of these, downloaded now
	Bytes int64 // downloaded now
}

// Pull downloads the files of a name that the cache lacks. It continues incomplete downloads, and
// waits while another process downloads the same file.
func (c *Client) Pull(ctx context.Context, n Name, o PullOptions) (*Pulled, error) {
	p, err := c.pull(ctx, n, o)
	if err != nil {
		return nil, fmt.Errorf("hub: %s: %w", n, err)
	}
	return p, nil
}

func (c *Client) pull(ctx context.Context, n Name, o PullOptions) (*Pulled, error) {
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	if len(o.Include) == 0 && (commitPattern.MatchString(n.Revision) || c.offline != "") {
		s, err := c.find(n)
		if o.Verify && c.offline != "" {
			return nil, fmt.Errorf("the hashes are the hub's, and %s forbids requests", c.offline)
		}
		if err == nil && !o.Verify {
			return &Pulled{Snapshot: *s}, nil
		}
		if c.offline != "" {
			return nil, fmt.Errorf("%w, and %s forbids requests", err, c.offline)
		}
	}
	i, err := c.list(ctx, n, o.Notice)
	if err != nil {
		return nil, err
	}
	ch, err := chosen(i, n, o)
	if err != nil {
		return nil, err
	}
	p := &puller{client: c, name: n, commit: i.commit, PullOptions: o}
	p.out.Snapshot = Snapshot{Name: n, Dir: c.snapshot(n, i.commit)}
	p.out.point(ch)
	if ch.index != "" && len(o.Include) == 0 {
		if err := p.fetch(ctx, []string{ch.index}); err != nil {
			return nil, err
		}
		raw, err := os.ReadFile(filepath.Join(p.out.Dir, ch.index))
		if err != nil {
			return nil, err
		}
		named, err := shards(ch.index, raw)
		if err != nil {
			return nil, err
		}
		for _, file := range named {
			if !slices.Contains(i.files, file) {
				return nil, fmt.Errorf("%s names %s, which the repository does not have: %w",
					ch.index,
					file, errs.ErrDamaged)
			}
		}
		ch.files = append(ch.files, named...)
	}
	p.out.Files = len(ch.files)
	if err := p.fetch(ctx, ch.files); err != nil {
		return nil, err
	}
	p.out.Bytes = p.received.Load()
	return &p.out, c.writeRef(n, i.commit)
}

// chosen returns the listed files to download.
func chosen(i info, n Name, o PullOptions) (choice, error) {
	list := i.files
	if len(o.Include) == 0 {
		ch, err := choose(list, n.Quant)
		if err == nil && ch.model != "" && n.Quant == "" {
			o.Notice(fmt.Sprintf("%s: no quantisation was asked for, taking %s", n.Repo, ch.model))
		}
		return ch, err
	}
	if n.Quant != "" {
		return choice{}, &errs.OptionError{Name: "include", Got: strings.Join(o.Include, ","),
			Want: "none",
			Why:  "the name has a quantisation, which chooses the files", Fault: errs.Conflict}
	}
	var ch choice
	for _, pattern := range o.Include {
		found := false
		for _, file := range i.odd {
			ok, err := glob(pattern, file)
			if err != nil {
				return choice{}, err
			}
			if ok {
				o.Notice(fmt.Sprintf("%q is left out, for no file here can have that name",
					web.Clean(file)))
			}
		}
		for _, file := range list {
			ok, err := glob(pattern, file)
			if err != nil {
				return choice{}, err
			}
			if found = found || ok; ok && !slices.Contains(ch.files, file) {
				ch.files = append(ch.files, file)
			}
		}
		if !found {
			return choice{}, fmt.Errorf("no file matches %q, got %s: %w", pattern, some(list),
				errs.ErrNotFound)
		}
	}
	return ch, nil
}

// maxPages limits the pages of a list of files.
const maxPages = 1000

// list requests a revision's commit and files.
func (c *Client) list(ctx context.Context, n Name, notice func(string)) (info, error) {
	org, name, _ := strings.Cut(n.Repo, "/")
	ask := &request{method: http.MethodGet, repo: n.Repo, revision: n.revision(),
		address: c.address("api", "models", org, name, "revision", n.revision())}
	raw, _, err := c.read(ctx, ask, maxReply, notice)
	if err != nil {
		return info{}, err
	}
	i, err := parseInfo(raw)
	if err != nil || i.files != nil {
		return i, err
	}
	i = info{commit: i.commit}
	ask.address = c.address("api", "models", org, name, "tree", i.commit) + "?recursive=true"
	for range maxPages {
		raw, header, err := c.read(ctx, ask, maxReply, notice)
		if err != nil {
			return info{}, err
		}
		if err := parseTree(&i, raw); err != nil {
			return info{}, err
		}
		next := nextPage(header)
		if next == "" {
			return i, nil
		}
		base, err := url.Parse(ask.address)
		if err == nil {
			base, err = base.Parse(next)
		}
		if err != nil || !c.isHub(base) {
			return info{}, web.Permanentf("the list of files: its next page is on another host")
		}
		ask.address = base.String()
	}
	return info{}, web.Permanentf("the list of files: more than %d pages", maxPages)
}

// puller downloads files of one commit.
type puller struct {
	PullOptions
	client *Client
	name   Name
	commit string
	out    Pulled

	received atomic.Int64 // bytes received
	mu       sync.Mutex   // guards the fields below
	done     int64
	total    int64
}

// wantedFile is a file that is not in the snapshot yet.
type wantedFile struct {
	name string
	meta metadata
}

// fetch downloads those of names that the snapshot lacks, or has damaged.
func (p *puller) fetch(ctx context.Context, names []string) error {
	var all, wanted, unknown []*wantedFile
	for _, name := range names {
		w := &wantedFile{name: name}
		if p.client.size(p.name, p.path(name)) < 0 { // missing, or of another program
			unknown = append(unknown, w)
		}
		all = append(all, w)
	}
	if err := p.heads(ctx, unknown); err != nil {
		return err
	}
	unknown = nil
	for _, w := range all {
		whole, err := p.cached(w)
		switch {
		case errors.Is(err, errs.ErrDamaged):
			p.Notice(fmt.Sprintf("%v: downloading it again", err))
			if err := p.discard(w.name); err != nil {
				return err
			}
		case err != nil:
			return err
		}
		if whole {
			continue
		}
		if wanted = append(wanted, w); w.meta.etag == "" {
			unknown = append(unknown, w)
		}
	}
	if err := p.heads(ctx, unknown); err != nil {
		return err
	}
	p.out.New += len(wanted)
	if len(wanted) == 0 { // the cache may be read-only
		return nil
	}
	if err := p.client.prepare(p.name, p.commit); err != nil {
		return err
	}
	if err := p.checkSpace(wanted); err != nil {
		return err
	}
	for _, w := range wanted {
		p.count(0, max(w.meta.size, 0))
	}
	return p.each(ctx, wanted, p.download)
}

// path is the path of a snapshot's file.
func (p *puller) path(name string) string {
	return filepath.Join(p.out.Dir, filepath.FromSlash(name))
}

// heads requests the hashes and sizes of files.
func (p *puller) heads(ctx context.Context, list []*wantedFile) error {
	return p.each(ctx, list, func(ctx context.Context, w *wantedFile) (err error) {
		t := web.Tries{Wait: p.client.wait, Notice: p.Notice}
		w.meta, err = p.head(ctx, w.name, &t)
		return err
	})
}

// each runs f for some files at the same time; the first error stops the others, but is no cause of
// theirs: it says nothing about their contents.
func (p *puller) each(ctx context.Context, files []*wantedFile,
	f func(context.Context, *wantedFile) error) error {
	g, failed := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(failed, stop)
	g.SetLimit(atOnce)
	for _, w := range files {
		g.Go(func() error {
			if err := f(ctx, w); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// count adds to the downloaded bytes and to the total.
func (p *puller) count(done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += done
	p.total += total
	if p.Progress != nil {
		p.Progress(p.done, p.total)
	}
}

// checkSpace compares the remaining bytes with the free disk space.
func (p *puller) checkSpace(wanted []*wantedFile) error {
	var need int64
	counted := map[string]bool{}
	for _, w := range wanted {
		blob := p.client.blob(p.name, w.meta.etag)
		if _, err := os.Stat(blob); err == nil || counted[w.meta.etag] {
			continue
		}
		counted[w.meta.etag] = true
		need += max(w.meta.size, 0)
		if st, err := os.Stat(blob + incomplete); err == nil {
			need -= min(st.Size(), max(w.meta.size, 0))
		}
	}
	free, err := machine.FreeSpace(p.client.repo(p.name))
	if err != nil {
		return fmt.Errorf("free space of %s: %w", p.client.cache, err)
	}
	if need > free {
		return fmt.Errorf("%s are to be downloaded, the disk of %s has room for %s",
			bytesize.MB(need), p.client.cache, bytesize.MB(free))
	}
	return nil
}

// head requests a file's hash and size until there is an answer.
func (p *puller) head(ctx context.Context, file string, t *web.Tries) (metadata, error) {
	org, name, _ := strings.Cut(p.name.Repo, "/")
	parts := append([]string{org, name, "resolve", p.commit}, strings.Split(file, "/")...)
	ask := &request{method: http.MethodHead, repo: p.name.Repo, revision: p.name.revision(),
		file:    file,
		address: p.client.address(parts...)}
	var m metadata
	err := t.Do(ctx, func() error {
		resp, err := p.client.send(ctx, ask)
		if err != nil {
			return err
		}
		resp.Body.Close()
		m, err = parseMetadata(p.commit, resp.Request.URL, resp)
		return err
	})
	return m, err
}

// download adds one file to the snapshot.
func (p *puller) download(ctx context.Context, w *wantedFile) error {
	for restarted := false; ; restarted = true {
		err := p.blob(ctx, w)
		var wrong *contentError
		if !errors.As(err, &wrong) || restarted {
			return err
		}
		// The content changed after the HEAD request, or the earlier part was damaged: download
		// once more from the beginning.
		p.Notice(fmt.Sprintf("%s: %v: from the beginning", w.name, err))
		before := w.meta
		t := web.Tries{Wait: p.client.wait, Notice: p.Notice}
		if w.meta, err = p.head(ctx, w.name, &t); err != nil {
			return err
		}
		p.count(0, max(w.meta.size, 0)-max(before.size, 0))
	}
}

// blob downloads the content of w unless it is in the cache, and links it.
func (p *puller) blob(ctx context.Context, w *wantedFile) error {
	c, etag := p.client, w.meta.etag
	unlock, err := c.lock(ctx, p.name, etag, func() {
		p.Notice(w.name + ": waiting for another download of the same content")
	})
	if err != nil {
		return err
	}
	defer unlock()
	if whole, _ := p.cached(w); whole { // another process added it before the lock was free
		p.count(0, -max(w.meta.size, 0))
		return nil
	}
	blob := c.blob(p.name, etag)
	fresh := false
	st, err := os.Stat(blob)
	if err == nil && (w.meta.size < 0 || st.Size() == w.meta.size) {
		p.count(0, -max(w.meta.size, 0))
	} else {
		if err := p.content(ctx, w, blob+incomplete); err != nil {
			return err
		}
		if err := files.Move(blob+incomplete, blob); err != nil {
			return err
		}
		fresh = true
	}
	if info, err := os.Stat(blob); err == nil {
		if err := c.keepSize(p.name, etag, info.Size()); err != nil {
			return err
		}
	}
	return c.link(p.name, p.commit, w.name, etag, fresh)
}
