package checkpoint

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// maxListed is how many names an error lists.
const maxListed = 8

// PlainName reports whether name is a single path element on every system.
func PlainName(name string) bool {
	return fs.ValidPath(name) && name != "." && len(name) <= 255 &&
		!strings.ContainsAny(name, "/\\:\x00")
}

// IsBuffer reports whether a tensor is a buffer that old releases of transformers stored with the
// weights and that follows from the configuration.
func IsBuffer(name string) bool {
	return strings.HasSuffix(name, ".position_ids") || strings.HasSuffix(name, ".inv_freq")
}

// List joins the first names and counts the rest.
func List(names []string, sep string) string {
	if n := len(names) - maxListed; n > 0 {
		return fmt.Sprintf("%s%sand %d more", strings.Join(names[:maxListed], sep), sep, n)
	}
	return strings.Join(names, sep)
}

// Either lists names of which one is wanted, each once.
func Either(names []string) string {
	var once []string
	for _, name := range names {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	last := len(once) - 1
	if last < 1 {
		return strings.Join(once, "")
	}
	return strings.Join(once[:last], ", ") + " or " + once[last]
}

// AddedToken is a token that is matched as a whole, in the form of tokenizer files.
func AddedToken(text string, special bool) map[string]any {
	return map[string]any{
		"content": text, "single_word": false, "lstrip": false, "rstrip": false,
		"normalized": false, "special": special,
	}
}

// Kind names a type of file.
func Kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "directory"
	case m.IsRegular():
		return "file"
	}
	return "special file"
}
