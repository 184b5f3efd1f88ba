package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/cli"
)

const deployFolder = "../../deploy"

// commandsOf are the commands of a file of deploy whose flags it may name; of the compose file by
// its services.
var commandsOf = map[string][]string{
	"chart/templates/gateway.yaml": {"serve"},
	"chart/templates/worker.yaml":  {"worker"},
	"chart/templates/_helpers.tpl": {"serve", "worker"},
	"compose.yaml#gateway":         {"serve"},
	"compose.yaml#worker":          {"worker"},
}

// Patterns of names of the product.
const (
	flagName     = `[ \[]--([a-z][a-z-]+)`
	variableName = `\b(RESTORE_[A-Z_]+)`
	metricName   = `\b(restore_[a-z_]+)`
	pathName     = `(?:path: |:8642|:9464)(/[a-z0-9/]+)`
)

// deployFiles returns the text of every file of deploy, and of each service of the compose file.
func deployFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(deployFolder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		name, _ := filepath.Rel(deployFolder, path)
		files[filepath.ToSlash(name)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_, services, _ := strings.Cut(files["compose.yaml"], "\nservices:\n")
	services, _, _ = strings.Cut(services, "\nvolumes:\n")
	gateway, worker, ok := strings.Cut(services, "\n  worker:\n")
	if !ok {
		t.Fatal("compose.yaml: has no services gateway and worker")
	}
	files["compose.yaml#gateway"], files["compose.yaml#worker"] = gateway, worker
	return files
}

// unknown returns the names of a text, as a pattern finds them, for which known is false.
func unknown(text, pattern string, known func(name string) bool) (out []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		if !known(m[1]) {
			out = append(out, m[1])
		}
	}
	return out
}

// Ensure that every flag, variable, metric and path that the chart and the compose file name is the
// product's.
func TestDeploy(t *testing.T) {
	flags, variables := map[string]*pflag.FlagSet{}, map[string]bool{}
	tested.EveryCommand(t, func(c *cobra.Command, _ string) {
		flags[c.Name()] = c.LocalFlags()
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { variables[cli.EnvName(f)] = true })
	})
	source := ""
	for _, name := range []string{
		"collector.go", "face.go", "metrics.go", "openapi.go", "route.go",
	} {
		data, err := os.ReadFile(filepath.Join("../../internal/server", name))
		if err != nil {
			t.Fatal(err)
		}
		source += string(data)
	}
	quoted := func(name string) bool { return strings.Contains(source, `"`+name+`"`) }
	files := deployFiles(t)
	for name, text := range files {
		for _, c := range commandsOf[name] {
			has := func(flag string) bool { return flags[c].Lookup(flag) != nil }
			for _, flag := range unknown(text, flagName, has) {
				t.Errorf("%s: restore %s has no --%s", name, c, flag)
			}
		}
		for _, v := range unknown(text, variableName, func(v string) bool {
			return variables[v]
		}) {
			t.Errorf("%s: no flag has the variable %s", name, v)
		}
		for _, m := range unknown(text, metricName, quoted) {
			t.Errorf("%s: there is no metric %s", name, m)
		}
		for _, p := range unknown(text, pathName, quoted) {
			t.Errorf("%s: nothing answers %s", name, p)
		}
	}
	for name := range commandsOf {
		if !strings.Contains(files[name], "--") {
			t.Errorf("%s: has no flag: is it read right?", name)
		}
	}
	port := flags["serve"].Lookup("port").DefValue
	if !strings.Contains(files["chart/values.yaml"], "port: "+port) {
		t.Errorf("values.yaml: does not serve at %s", port)
	}
}

// Ensure that names which do not exist are found.
func TestDeployUnknown(t *testing.T) {
	none := func(string) bool { return false }
	for pattern, text := range map[string]string{
		flagName:     "            - --listne=:9464",
		variableName: "name: RESTORE_NAST",
		metricName:   `valueLocation: restore_queue`,
		pathName:     "httpGet: {path: /helath, port: http}",
	} {
		if got := unknown(text, pattern, none); len(got) != 1 {
			t.Errorf("%s: got %v, want one name", text, got)
		}
	}
}
