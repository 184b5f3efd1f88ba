package hub

import (
	"fmt"
	"io/fs"
	"regexp"
	"runtime"
	"strings"
)

// mainRevision is the default revision.
const mainRevision = "main"

// Name names a repository, a revision of it, and one of its GGUF quantisations.
type Name struct {
	Repo     string // ORG/NAME
	Revision string // branch, tag or commit; empty for main
	Quant    string // as in Q4_K_M, for repositories of GGUF files; may be empty
}

// maxPart is the hub's length limit of ORG and of NAME.
const maxPart = 96

// partPattern is one of the two parts of a repository's name.
var partPattern = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?$`)

// ParseName reads ORG/NAME[@REVISION][:QUANT].
func ParseName(s string) (Name, error) { return parseName(s, false) }

// ParseCached reads what ParseName reads, and NAME alone: as other programs cache a repository of
// the hub's first years.
func ParseCached(s string) (Name, error) { return parseName(s, true) }

func parseName(s string, bare bool) (Name, error) {
	const want = "want ORG/NAME, ORG/NAME@REVISION or ORG/NAME:QUANTISATION"
	n, rest := Name{Repo: s}, ""
	if i := strings.IndexAny(s, "@:"); i >= 0 {
		n.Repo, rest = s[:i], s[i:]
	}
	org, name, ok := strings.Cut(n.Repo, "/")
	if !validPart(org) || ok && !validPart(name) || !ok && !bare {
		return Name{}, fmt.Errorf("hub: %q: no repository's name, %s", s, want)
	}
	for rest != "" {
		field, end := &n.Revision, ":"
		if rest[0] == ':' {
			field, end = &n.Quant, "@"
		}
		value, after := rest[1:], ""
		if i := strings.Index(value, end); i >= 0 {
			value, after = value[:i], value[i:]
		}
		if *field != "" || value == "" {
			return Name{}, fmt.Errorf("hub: %q: no repository's name, %s", s, want)
		}
		*field, rest = value, after
	}
	if n.Revision != "" && !validPath(n.Revision) {
		return Name{}, fmt.Errorf("hub: %q: revision %q, want a branch, a tag or a commit", s,
			n.Revision)
	}
	if strings.ContainsAny(n.Quant, `/\:`) {
		return Name{}, fmt.Errorf("hub: %q: quantisation %q, want one as in Q4_K_M", s, n.Quant)
	}
	return n, nil
}

// validPart says whether s can be ORG or NAME.
func validPart(s string) bool {
	return len(s) <= maxPart && partPattern.MatchString(s) && !strings.Contains(s, "--") &&
		!strings.Contains(s, "..") && !strings.HasSuffix(s, ".git")
}

// forbidden are characters that no file name has: separators of any system, and what Windows
// forbids there.
var forbidden = map[bool]string{false: `\`, true: `\:*?"<>|`}[runtime.GOOS == "windows"]

// validPath says whether s is a relative path with slashes that this system can keep, and that
// cannot leave the directory that it is joined to.
func validPath(s string) bool {
	if !fs.ValidPath(s) || s == "." || len(s) > 1024 || strings.ContainsAny(s, forbidden) {
		return false
	}
	for _, part := range strings.Split(s, "/") {
		if len(part) > 255 {
			return false
		}
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// String returns the name as ParseName reads it.
func (n Name) String() string {
	s := n.Repo
	if n.Revision != "" {
		s += "@" + n.Revision
	}
	if n.Quant != "" {
		s += ":" + n.Quant
	}
	return s
}

// revision is the revision to request from the hub.
func (n Name) revision() string {
	if n.Revision == "" {
		return mainRevision
	}
	return n.Revision
}

// folder is the repository's directory in the cache.
func (n Name) folder() string { return modelsPrefix + strings.Replace(n.Repo, "/", "--", 1) }

// modelsPrefix is the prefix of the directories of models.
const modelsPrefix = "models--"

// commitPattern matches a full commit hash.
var commitPattern = regexp.MustCompile(`^[0-9a-f]{40}$`)
