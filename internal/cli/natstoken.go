package cli

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/restore-vlm/restore/internal/files"
)

// A NATS server inside a process demands a token, so that other users of the machine cannot read
// what it holds. The token is in a file that only this user can read, named by the server's
// address. Other commands find it there.

// maxToken is the most bytes that are read of a token's file.
const maxToken = 1 << 10

// announce tells who may connect to the server inside this process, and stores its token, "" if it
// has a user instead.
func announce(a *App, at, token string) (remove func()) {
	if token == "" {
		a.Note("workers may connect to %s with its user and password", at)
		return func() {}
	}
	remove, err := storeToken(at, token)
	if err != nil {
		a.Note("no other process may connect to %s: its token cannot be stored, %v "+
			"(--nats embedded://USER:PASS@HOST:PORT)", at, err)
		return func() {}
	}
	a.Note("workers may connect to %s as the same user of this machine", at)
	return remove
}

// tokenFile returns the file for the token of a server at a URL of this machine.
func tokenFile(at *url.URL) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	host, port := at.Hostname(), at.Port()
	if strings.EqualFold(host, "localhost") {
		host = "127.0.0.1"
	}
	if port == "" {
		port = fmt.Sprint(natsPort)
	}
	name := strings.NewReplacer(":", "_", "%", "_").Replace(host) + "-" + port
	return filepath.Join(dir, "restore", "nats", name), nil
}

// storeToken writes a server's token. remove removes it, unless another server has replaced it.
func storeToken(at, token string) (remove func(), err error) {
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	file, err := tokenFile(u)
	if err != nil {
		return nil, err
	}
	if err := files.Write(file, []byte(token+"\n"), 0o600); err != nil {
		return nil, err
	}
	return func() {
		if readToken(file) == token {
			_ = os.Remove(file) // a token without its server is of no use
		}
	}, nil
}

// readToken returns the token in a file, "" if there is none.
func readToken(file string) string {
	data, err := ReadFile(file, maxToken)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// storedToken returns a function that returns the token of the server at the address, if it runs
// inside another process of this user. It returns nil if the address is another machine's, or has a
// user.
func (o *NatsFlags) storedToken() func() string {
	u := o.URL
	if !strings.Contains(u, "://") {
		u = "nats://" + u
	}
	at, err := url.Parse(u)
	if err != nil || o.credentials != "" || at.User != nil || !IsLoopback(at.Hostname()) {
		return nil
	}
	file, err := tokenFile(at)
	if err != nil {
		return nil
	}
	return func() string { return readToken(file) }
}
