package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// movedFlags are flags of earlier versions, with the flag and value that replace each.
var movedFlags = map[string]string{
	"alias":               "preset NAME",
	"allow-no-key":        "api-key none",
	"api-key-file":        "api-key @FILE",
	"log-prompts":         "log-format text+prompts",
	"metrics":             "disable metrics",
	"page":                "disable page",
	"presets":             "preset @FILE",
	"read-header-timeout": "read-timeout TIME",
	"tls-cert":            "tls CERT,KEY",
	"tls-key":             "tls CERT,KEY",
	"vision-tower":        "mmproj FOLDER",
}

// movedFlag says what replaces a flag that a command no longer has, "" if nothing does.
func movedFlag(fs *pflag.FlagSet, name string) string {
	now := movedFlags[name]
	flag, _, _ := strings.Cut(now, " ")
	if fs.Lookup(name) != nil || fs.Lookup(flag) == nil {
		return ""
	}
	return fmt.Sprintf("--%s is --%s now", name, now)
}

// In returns commands of another program, for [Program].Elsewhere.
func In(program string, commands ...string) map[string]string {
	in := map[string]string{}
	for _, name := range commands {
		in[name] = program
	}
	return in
}
