package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/batch"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/files"
	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/jobs"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/openai"
)

// jobFlags are the flags of files and batches by API.
type jobFlags struct {
	folder                  string
	parallel, maxFile, days int
}

func (o *jobFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&o.folder, "batch-dir", "",
		"keep uploaded files and batches in this `folder`; one server uses it")
	cli.ShowDefault(fs, "batch-dir", "restore/batches in the user's folder for state")
	fs.IntVar(&o.parallel, "batch-parallel", 0, "ask `N` lines of a batch at once")
	cli.ShowDefault(fs, "batch-parallel", "twice --parallel, or the workers' places")
	fs.IntVar(&o.maxFile, "max-file-mb", 512, "an uploaded file has at most `N` MB")
	fs.IntVar(&o.days, "file-days", 30, "keep files and batches for `N` days")
	cli.Within(fs, 1, 4096, "batch-parallel")
	cli.Within(fs, 1, 1<<20, "max-file-mb")
	cli.Within(fs, 1, 3650, "file-days")
}

// store returns the store of files and batches. The default folder is made for the first file, and
// may be another server's: then calls about files say so.
func (o *jobFlags) store(log *slog.Logger) (*jobs.Store, error) {
	folder := o.folder
	if folder != "" {
		if err := files.MakeFolder(folder, 0o700); err != nil {
			return nil, cli.Flagf("batch-dir", "%w", err)
		}
	} else if state := cli.StateFolder(); state != "" {
		folder = filepath.Join(state, "batches")
	}
	s := jobs.New(jobs.Options{
		Folder: folder, MaxFile: int64(o.maxFile) * cli.MB, MaxLine: batchLine,
		Keep:      time.Duration(o.days) * 24 * time.Hour,
		Endpoints: slices.Sorted(maps.Keys(openai.Protocol.Calls)), Log: log,
	})
	if err := s.Open(); err != nil {
		if o.folder != "" {
			return nil, cli.Flagf("batch-dir", "%w", err)
		}
		log.Warn("no files and batches by API until this is mended (--batch-dir)", "error", err)
	}
	return s, nil
}

// batchLines answers the lines of batches in the background of a server's requests.
type batchLines struct {
	o        *serveOptions
	out      *opened
	settings *api.Settings
	loader   *media.Loader
	log      *slog.Logger
}

// prepare is a [jobs.Prepare].
func (l *batchLines) prepare(ctx context.Context, owner, journal string) (*jobs.Answering, error) {
	var service restore.Service = l.out.service
	a := &jobs.Answering{Parallel: l.o.jobs.parallel, File: fileOf(l.loader),
		Close: func(bool) error { return nil }}
	if a.Parallel == 0 {
		a.Parallel = 2 * l.o.answering.Parallel
	}
	kernel := kernel.Implementation()
	if l.out.client != nil {
		k, err := l.out.client(ctx, journal)
		if err != nil {
			return nil, err
		}
		service, kernel = k, "the workers'"
		if l.o.jobs.parallel == 0 { // workers come and go
			a.Parallel = remoteParallel
			a.Places = func() (n int) {
				for _, w := range k.Workers() {
					n += w.Capacity / 2
				}
				return n
			}
		}
		a.Close = func(done bool) (err error) {
			if done {
				forget, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
				defer cancel()
				err = k.ForgetAll(forget)
			}
			k.Close()
			return err
		}
	}
	b := batch.Service{Front: api.NewFront(service, *l.settings), Log: l.log, Background: true,
		Unable: fleet.Denied}
	if l.o.isolation == "key" {
		b.Salt = owner
	}
	a.Backend = b
	if l.out.client != nil {
		a.Backend = named{b}
	}
	a.Settings = l.o.answering.batchSettings(service.Info(), l.settings, kernel)
	return a, nil
}

// run answers batches until end is called.
func (l *batchLines) run(s *jobs.Store) (end func() error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, l.prepare)
	}()
	return func() error {
		cancel(errors.New("the server ends"))
		<-done
		return s.Close()
	}
}
