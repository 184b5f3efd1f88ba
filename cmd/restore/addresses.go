package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/restore-vlm/restore/internal/address"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/files"
)

// addresses gets and puts files by address, and shows the progress.
type addresses struct {
	a *cli.App
	c *address.Client
}

func newAddresses(a *cli.App) *addresses {
	c := address.NewClient()
	c.Notice = func(reason string) { a.Note("%s", reason) }
	return &addresses{a, c}
}

// get stores the content of an address in a file.
func (s *addresses) get(ctx context.Context, from, path string) error {
	show := s.a.Meter("getting the requests")
	defer show.End()
	s.c.Progress = show.Set
	return shortened(s.c.Get(ctx, from, path))
}

// away reports whether the results are sent to an address.
func (o *batchOptions) away() bool { return o.put != "" || o.parts != nil || address.Is(o.out) }

// put sends the results to their address.
func (s *addresses) put(ctx context.Context, o *batchOptions) (err error) {
	show := s.a.Meter("sending the results")
	defer show.End()
	s.c.Progress = show.Set
	if o.parts != nil {
		err = s.c.PutParts(ctx, o.out, o.parts)
	} else {
		err = s.c.Put(ctx, o.out, o.put)
	}
	if err != nil {
		return shortened(fmt.Errorf("%w; the results are in %s, and the same command sends them",
			err, o.out))
	}
	return nil
}

// shortened words an interruption.
func shortened(err error) error {
	if errors.Is(err, cli.ErrInterrupted) {
		return cli.CutShort("batch: interrupted; the same command continues")
	}
	return err
}

// fetch turns addresses among the files of a run into files of its journal's folder. A run that
// continues reads the requests that an earlier one has got, whatever the address has now.
func (o *batchOptions) fetch(ctx context.Context, at *addresses) error {
	if !address.Is(o.in) && !o.away() {
		return nil
	}
	if err := files.MakeFolder(o.journal, 0o700); err != nil {
		return err
	}
	switch {
	case o.parts != nil:
		o.out = o.local("results", o.parts.Name())
	case address.Is(o.out):
		o.put, o.out = o.out, o.local("results", o.out)
	}
	if !address.Is(o.in) {
		return nil
	}
	from := o.in
	o.in = o.local("requests", from)
	if _, err := os.Stat(o.in); err == nil {
		return nil
	}
	return at.get(ctx, from, o.in)
}

// local is the file in the journal's folder of an address. A signature is no part of its name.
func (o *batchOptions) local(what, a string) string {
	hash := sha256.Sum256([]byte(address.Name(a)))
	return filepath.Join(o.journal, fmt.Sprintf("%s-%x.jsonl", what, hash[:4]))
}
