// Package protocols lists the APIs whose calls are answered.
package protocols

import (
	"maps"
	"strings"

	"github.com/restore-vlm/restore/internal/anthropic"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/ollama"
	"github.com/restore-vlm/restore/internal/openai"
)

// All are the protocols. The last one has all paths that no other has.
var All = []*api.Protocol{&anthropic.Protocol, &ollama.Protocol, &openai.Protocol}

// Of returns the protocol of a path.
func Of(path string) *api.Protocol {
	for _, p := range All {
		if strings.HasPrefix(path, p.Prefix) {
			return p
		}
	}
	return All[len(All)-1] // not reached: its prefix is empty
}

// Calls are the calls of all protocols, by path.
func Calls() map[string]api.Parse {
	all := map[string]api.Parse{}
	for _, p := range All {
		maps.Copy(all, p.Calls)
	}
	return all
}

// Docs describe the calls of all protocols, by path.
func Docs() map[string]api.Doc {
	all := map[string]api.Doc{}
	for _, p := range All {
		maps.Copy(all, p.Docs())
	}
	return all
}
