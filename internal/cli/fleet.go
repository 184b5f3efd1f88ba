package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/reduce"
)

// NatsError adds the flags that would help.
func NatsError(err error) error {
	if errors.Is(err, nats.ErrAuthorization) || errors.As(err, new(*fleet.PermissionError)) {
		return fmt.Errorf("%w (--nats nats://USER:PASS@HOST, --nats-creds; a server of --nats "+
			"embedded without USER:PASS admits its own user on its own machine)", err)
	}
	return err
}

// workersOwn are the flags of the engine, which the worker sets.
var workersOwn = []string{
	"mmproj",
	"pull",
	"threads",
	"quant",
	"encoder-quant",
	"cache-type",
	"ctx-size",
	"parallel",
	"memory",
	"kv-mb",
	"cache-mb",
	"cache-dir",
	"cache-dir-mb",
	"min-pixels",
	"max-pixels",
	"pad",
}

// CheckRemote refuses flags that have no effect when other machines answer.
func CheckRemote(fs *pflag.FlagSet) error {
	return NoUse(fs, true, "has no effect with --nats URL: it is for 'restore worker' to say",
		workersOwn...)
}

// checkFiles refuses parameters that are files, which workers cannot read.
func checkFiles(fs *pflag.FlagSet) (err error) {
	fs.VisitAll(func(f *pflag.Flag) {
		p, ok := f.Value.(*ParameterFlag)
		if ok && p.Kind == reduce.File && OnCommandLine(f) {
			err = Flagf(f.Name, "has no effect with --nats: workers read the one in their model's "+
				"folder")
		}
	})
	return err
}

// FleetClient returns a client of the fleet.
func FleetClient(
	ctx context.Context, a *App, c *fleet.Conn, o fleet.ClientOptions,
) (*fleet.Client, error) {
	o.Waiting = func(why string) {
		a.Note("%s: waiting for one ('restore worker --nats URL')", why)
	}
	k, err := c.Client(ctx, o)
	return k, NatsError(err)
}

// MustJSON returns v as JSON.
func MustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // numbers and strings always encode
	}
	return data
}
