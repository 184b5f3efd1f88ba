package main

import (
	"cmp"
	"context"
	"net/url"
	"slices"

	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/client"
	"github.com/restore-vlm/restore/reduce"
)

// remoteFlags name a server that answers instead of a model in this process.
type remoteFlags struct {
	url string
	api cli.KeyFlags
}

func (f *remoteFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.url, "server", "",
		"ask the server at this `URL` (restore serve) instead of loading a model")
	f.api.Add(fs, "key of the server, the first of several")
}

// open connects to the server.
func (f *remoteFlags) open(ctx context.Context) (*client.Client, error) {
	key, err := f.api.Key()
	if err != nil {
		return nil, err
	}
	return client.New(ctx, f.url, key)
}

// remoteUse are the flags of run that a server supports, except the reduction's.
var remoteUse = []string{"server", "api-key", "image", "prompt", "system-prompt", "n-predict",
	"temp", "top-k", "top-p", "min-p", "seed", "json", "verbose", "quiet", "history"}

// serverURL reads the value of --server.
func serverURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		u.RawQuery != "" || u.Fragment != "" {
		return nil, cli.Flagf("server", "got %q, want a URL as in http://127.0.0.1:8642", text)
	}
	return u, nil
}

// check refuses flags that do not work with --server.
func (f *remoteFlags) check(fs *pflag.FlagSet) (err error) {
	if f.url == "" {
		return cli.NoUse(fs, true, "has no effect without --server", "api-key")
	}
	if _, err := serverURL(f.url); err != nil {
		return err
	}
	fs.VisitAll(func(flag *pflag.Flag) {
		p, reduction := flag.Value.(*cli.ParameterFlag)
		local := !slices.Contains(remoteUse, flag.Name) && (!reduction || p.Kind == reduce.File)
		err = cmp.Or(err, cli.NoUse(fs, local, "has no effect with --server, got %v", flag.Name))
	})
	return err
}
