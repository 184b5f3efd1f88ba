package cli

import (
	"bufio"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// KeyFlags are the keys of a server: all that it accepts, or the first, which a client sends.
type KeyFlags struct {
	given []string
}

// Add declares --api-key, the same for servers and clients, so that its variable suits both.
func (k *KeyFlags) Add(fs *pflag.FlagSet, usage string) {
	fs.StringSliceVar(&k.given, "api-key", nil, usage+"; @FILE is a file with one key per line, "+
		"# begins a comment; `keys` are separated by commas; none is no key")
}

// None reports whether no key is wanted, and not just none given.
func (k *KeyFlags) None() bool { return slices.Equal(k.given, []string{"none"}) }

// Keys returns the keys, also those in files.
func (k *KeyFlags) Keys() (keys []string, err error) {
	if k.None() {
		return nil, nil
	}
	for _, key := range k.given {
		key = strings.TrimSpace(key) // as in a request
		file, isFile := strings.CutPrefix(key, "@")
		switch {
		case key == "":
			return nil, Flagf("api-key", "got an empty key, want none or keys separated by commas")
		case key == "none":
			return nil, Flagf("api-key", "got none together with other keys, want one of both")
		case !isFile:
			keys = append(keys, key)
			continue
		}
		lines, err := readKeys(file)
		if err != nil {
			return nil, err
		}
		keys = append(keys, lines...)
	}
	return keys, nil
}

// Key returns the key that a client sends, "" for none.
func (k *KeyFlags) Key() (string, error) {
	keys, err := k.Keys()
	return strings.Join(keys[:min(1, len(keys))], ""), err
}

// readKeys returns the keys in a file, of which each line has one.
func readKeys(file string) (keys []string, err error) {
	data, err := ReadText(file)
	if err != nil {
		return nil, fmt.Errorf("--api-key: %w", err)
	}
	lines := bufio.NewScanner(strings.NewReader(string(data)))
	for lines.Scan() {
		if key, _, _ := strings.Cut(lines.Text(), "#"); strings.TrimSpace(key) != "" {
			keys = append(keys, strings.TrimSpace(key))
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--api-key: %s: %w", file, err)
	}
	if len(keys) == 0 {
		return nil, Flagf("api-key", "%s: got no key, want at least one line with a key", file)
	}
	return keys, nil
}
