package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/files"
)

// Client is a hub and the cache on this machine. It is safe for concurrent use.
type Client struct {
	cache    string
	endpoint *url.URL
	token    string
	noToken  string // the variable that keeps the token back; empty if none does
	offline  string // the variable that forbids requests; empty if none does
	http     *http.Client
	wait     func(time.Duration) <-chan time.Time
}

// publicHosts are the two names of the same hub; the second is the short form.
var publicHosts = []string{"huggingface.co", "hf.co"}

// New returns a client for the environment, with the variables of Python's huggingface_hub:
// HF_ENDPOINT, HF_HUB_CACHE, HF_HOME, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_DISABLE_IMPLICIT_TOKEN,
// HF_HUB_OFFLINE, and older names.
// Proxies come from the process's HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
func New(getenv func(string) string) (*Client, error) {
	c := &Client{wait: time.After, http: newHTTP()}
	address := getenv("HF_ENDPOINT")
	if address == "" {
		address = "https://" + publicHosts[0]
	}
	endpoint, err := url.Parse(strings.TrimRight(address, "/"))
	if err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" ||
		endpoint.Host == "" ||
		endpoint.RawQuery != "" || endpoint.Fragment != "" || endpoint.User != nil {
		if err == nil {
			address = endpoint.Redacted()
		}
		return nil, fmt.Errorf("hub: HF_ENDPOINT: got %q, want the address of a hub, as in https://huggingface.co", address)
	}
	c.endpoint = endpoint
	offline := "HF_HUB_OFFLINE"
	if getenv(offline) == "" {
		offline = "TRANSFORMERS_OFFLINE"
	}
	if isTrue(getenv(offline)) {
		c.offline = offline
	}
	home, homeless := homeFolder(getenv)
	if homeless == nil {
		c.cache = filepath.Join(home, "hub")
	}
	for _, name := range []string{"HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"} { // the last one wins
		if v := getenv(name); v != "" {
			c.cache = expand(v, getenv)
		}
	}
	if c.cache == "" {
		return nil, homeless
	}
	if c.cache, err = filepath.Abs(c.cache); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	if name := "HF_HUB_DISABLE_IMPLICIT_TOKEN"; isTrue(getenv(name)) {
		c.noToken = name
		return c, nil
	}
	c.token, err = readToken(getenv, home)
	return c, err
}

// isTrue reads a variable as huggingface_hub does.
func isTrue(value string) bool {
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(value))
}

// homeFolder is HF_HOME or its default.
func homeFolder(getenv func(string) string) (string, error) {
	if v := getenv("HF_HOME"); v != "" {
		return expand(v, getenv), nil
	}
	if v := getenv("XDG_CACHE_HOME"); v != "" {
		return filepath.Join(expand(v, getenv), "huggingface"), nil
	}
	home, err := userFolder(getenv)
	if err != nil {
		return "", fmt.Errorf("hub: no home folder for the cache: %w (HF_HOME names another)", err)
	}
	return filepath.Join(home, ".cache", "huggingface"), nil
}

// userFolder is HOME or, as on Windows, the system's folder of the user.
func userFolder(getenv func(string) string) (string, error) {
	if home := getenv("HOME"); home != "" {
		return home, nil
	}
	return os.UserHomeDir()
}

// variable matches a variable in a path.
var variable = regexp.MustCompile(`\$(\w+|\{[^}]*\})`)

// expand replaces a leading ~ and variables, as huggingface_hub does: those that are not set stay.
func expand(path string, getenv func(string) string) string {
	home := ""
	if path == "~" || len(path) > 1 && path[0] == '~' && os.IsPathSeparator(path[1]) {
		if dir, err := userFolder(getenv); err == nil {
			home, path = dir, path[1:]
		}
	}
	return home + variable.ReplaceAllStringFunc(path, func(name string) string {
		return cmp.Or(getenv(strings.Trim(name, "${}")), name)
	})
}

// tokenVariables hold a token; the first that is set wins.
var tokenVariables = []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}

// readToken returns the token of a variable, or the one that 'hf auth login' stored in home, if
// there is one.
func readToken(getenv func(string) string, home string) (string, error) {
	token, from := "", ""
	for _, from = range tokenVariables {
		if token = getenv(from); token != "" {
			break
		}
	}
	if token == "" {
		from = getenv("HF_TOKEN_PATH")
		if from == "" {
			if home == "" {
				return "", nil
			}
			from = filepath.Join(home, "token")
		}
		raw, err := os.ReadFile(expand(from, getenv))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("hub: the stored token: %w", err)
		}
		if raw, err = files.Text(raw); err != nil {
			return "", fmt.Errorf("hub: the stored token: %s: %w", from, err)
		}
		token = string(raw)
	}
	token = strings.TrimSpace(token)
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("hub: %s: holds a character that no token has", from)
	}
	return token, nil
}

// Cache returns the absolute path of the cache.
func (c *Client) Cache() string { return c.cache }

// isHub says whether u is on the hub, so that the token may be sent there.
func (c *Client) isHub(u *url.URL) bool {
	if u.Scheme != c.endpoint.Scheme {
		return false
	}
	host, hub := hostPort(u), hostPort(c.endpoint)
	if slices.Contains(publicHosts, c.endpoint.Host) && slices.Contains(publicHosts, u.Host) {
		return true
	}
	return host == hub
}

// hostPort is the normalised host and port of u.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// address is the hub's URL for parts; it escapes them, including slashes.
func (c *Client) address(parts ...string) string {
	s := c.endpoint.String()
	for _, p := range parts {
		s += "/" + url.PathEscape(p)
	}
	return s
}
