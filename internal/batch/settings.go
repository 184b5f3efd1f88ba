package batch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Settings are everything that changes answers besides the input, by name: model, types of weights,
// reduction, defaults.
type Settings map[string]any

// encoded are the settings as they are in a journal.
func (s Settings) encoded() (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	for name, v := range s {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("batch: setting %s: %w", name, err)
		}
		out[name] = data
	}
	return out, nil
}

// difference lists the settings that differ, with both values; "" if there are none.
func difference(old, now map[string]json.RawMessage) string {
	names := maps.Clone(old)
	if names == nil {
		names = map[string]json.RawMessage{}
	}
	maps.Copy(names, now)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !bytes.Equal(old[name], now[name]) {
			out = append(out, fmt.Sprintf("%s was %s, now %s", name, value(old[name]),
				value(now[name])))
		}
	}
	return strings.Join(out, "; ")
}

func value(raw json.RawMessage) string {
	if raw == nil {
		return "not set"
	}
	return string(raw)
}
