package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/fleet"
	"github.com/restore-vlm/restore/internal/fleet/natsserver"
)

// NatsFlags say how to reach workers on other machines.
type NatsFlags struct {
	URL, credentials, ca string
	replicas             int

	Wait bool // for a server that cannot be reached yet, instead of an error
}

// embeddedName is the URL of a NATS server inside this process.
const embeddedName = "embedded"

// natsPort is the default port of NATS servers.
const natsPort = 4222

// Add declares the flags; what begins the help of --nats, and inside says whether a server may run
// in this process.
func (o *NatsFlags) Add(fs *pflag.FlagSet, what string, inside bool) {
	help := "`URL` of NATS servers, separated by commas, as in nats://user:pass@host:4222 or tls://host"
	if inside {
		help += "; embedded[:PORT] starts one in this process, on loopback for the same user, and embedded://USER:PASS@HOST:PORT for others"
	}
	fs.StringVar(&o.URL, "nats", "", what+" by the "+help)
	fs.StringVar(&o.credentials, "nats-creds", "",
		"sign in to NATS with this `file` of credentials")
	fs.StringVar(&o.ca, "nats-ca", "", "trust the CA certificates in this `file` for NATS servers")
	fs.IntVar(&o.replicas, "nats-replicas", 1,
		"keep queued requests on `N` NATS servers; counts when this command creates the queue")
	Within(fs, 1, 5, "nats-replicas")
}

// Check refuses wrong flags.
func (o *NatsFlags) Check(fs *pflag.FlagSet) error {
	if o.URL == "" {
		return NoUse(fs, true, "has no use without --nats",
			"nats-creds", "nats-ca", "nats-replicas", "mixed")
	}
	if err := checkFiles(fs); err != nil {
		return err
	}
	if o.Embedded() {
		if err := NoUse(fs, true, "has no use with --nats embedded",
			"nats-creds", "nats-ca"); err != nil {
			return err
		}
		_, err := o.inside()
		return err
	}
	for u := range strings.SplitSeq(o.URL, ",") {
		if !strings.Contains(u, "://") {
			u = "nats://" + u
		}
		p, err := url.Parse(u)
		if err != nil || p.Host == "" ||
			!slices.Contains([]string{"nats", "tls", "ws", "wss"}, p.Scheme) {
			return Flagf("nats", "got a URL that is none, want nats://HOST:PORT, tls://HOST:PORT or embedded")
		}
	}
	return nil
}

// Embedded reports whether the NATS server runs inside this process.
func (o *NatsFlags) Embedded() bool {
	return o.URL == embeddedName || strings.HasPrefix(o.URL, embeddedName+":")
}

// IsLoopback reports whether a port on host accepts only connections from this machine.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && a.Unmap().IsLoopback()
}

// inside returns the options of the NATS server inside this process.
func (o *NatsFlags) inside() (e natsserver.Options, err error) {
	e.Host, e.Port = "127.0.0.1", natsPort
	rest := strings.TrimPrefix(strings.TrimPrefix(o.URL, embeddedName), ":")
	if at, ok := strings.CutPrefix(rest, "//"); ok {
		u, err := url.Parse("nats://" + at)
		if err != nil || u.Hostname() == "" || u.Path != "" {
			return e, Flagf("nats", "got %q, want embedded[:PORT] or embedded://USER:PASS@HOST:PORT",
				embeddedName+"://…")
		}
		e.Host, rest = u.Hostname(), u.Port()
		e.User = u.User.Username()
		e.Password, _ = u.User.Password()
		if e.User != "" && e.Password == "" {
			return e, Flagf("nats", "got a user without a password, want embedded://USER:PASS@%s",
				u.Host)
		}
		if !IsLoopback(e.Host) && (e.User == "" || e.Password == "") {
			return e, Flagf("nats", "got %s, which others can reach, without a user, want embedded://USER:PASS@%s",
				e.Host,
				net.JoinHostPort(e.Host, strconv.Itoa(natsPort)),
			)
		}
	}
	if rest == "" {
		return e, nil
	}
	if e.Port, err = strconv.Atoi(rest); err != nil || e.Port < 0 || e.Port > 65535 {
		return e, Flagf("nats", "got port %q, want 0 to 65535", rest)
	}
	return e, nil
}

// Dial connects to the fleet. A NATS server inside this process keeps its streams in folder; if
// folder is "", in a temporary one that is removed at the end.
func (o *NatsFlags) Dial(
	ctx context.Context,
	a *App,
	name, folder string,
	log *slog.Logger,
) (c *fleet.Conn, end func(), err error) {
	fo := fleet.Options{
		URL:         o.URL,
		Credentials: o.credentials,
		CA:          o.ca,
		Name:        name,
		Wait:        o.Wait,
		Log:         log,
		Layout:      fleet.Layout{Replicas: o.replicas},
	}
	stop := func() {}
	if o.Embedded() {
		stop, err = o.start(a, folder, &fo)
	} else {
		fo.Token = o.storedToken()
	}
	if err != nil {
		return nil, nil, err
	}
	if c, err = fleet.Connect(ctx, fo); err != nil {
		stop()
		return nil, nil, NatsError(err)
	}
	return c, func() { c.Close(); stop() }, nil
}

// start starts the NATS server inside this process, and sets how to connect to it.
func (o *NatsFlags) start(a *App, folder string, fo *fleet.Options) (end func(), err error) {
	e, err := o.inside()
	if err != nil {
		return nil, err
	}
	e.Log = fo.Log
	if e.User == "" {
		e.Token = rand.Text()
		fo.Token = func() string { return e.Token }
	}
	if e.Folder = folder; folder == "" {
		if e.Folder, err = os.MkdirTemp("", "restore-nats-"); err != nil {
			return nil, err
		}
	}
	removeFolder := func() error {
		if folder != "" {
			return nil
		}
		return os.RemoveAll(e.Folder)
	}
	s, err := natsserver.Start(e)
	if err != nil {
		return nil, fmt.Errorf("%w (--nats)", errors.Join(err, removeFolder()))
	}
	removeToken := announce(a, s.URL(), e.Token)
	fo.URL, fo.Dial = s.URL(), nats.InProcessConnProvider(s)
	if e.User != "" {
		fo.URL = "nats://" + url.UserPassword(e.User, e.Password).String() + "@" +
			strings.TrimPrefix(s.URL(), "nats://")
	}
	return func() {
		removeToken()
		s.Close()
		_ = removeFolder() // a temporary folder
	}, nil
}
