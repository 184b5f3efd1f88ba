package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/calibrate"
	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/hub"
	"github.com/restore-vlm/restore/internal/kernel"
	"github.com/restore-vlm/restore/internal/machine"
	"github.com/restore-vlm/restore/internal/version"
)

const (
	littleMemory = 2e9 // bytes; the smallest published models need more
	littleSpace  = 5e9 // bytes; a 7B model takes 14 GB as published, 4 GB packed in q4
	hubPatience  = 10 * time.Second
	// serverPatience is shorter than the ten seconds after which the image's health check ends.
	serverPatience = 5 * time.Second
)

// finding is a line of the report of 'restore doctor'.
type finding struct {
	subject, text string
	wrong         bool   // something will fail
	advice        string // what to do; "" if nothing is to be done
}

func newDoctor(a *cli.App) *cobra.Command {
	var ask bool
	var server string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Print what restore would use here, and what to do about what is not well",
		Long: `Print what restore would use here: processor, kernels, memory, folders and their free space, the hub, proxies, variables. A line that
begins with "note" or "bad" is followed by what to do. Secrets are not printed. Copy the output into a report of a fault.
Nothing is sent anywhere without --hub or --server. Exit code 1 if a line is bad.`,
		Args: cli.NoArgs,
	}
	cmd.Flags().BoolVar(&ask, "hub", false, "ask the hub once whether it answers")
	cmd.Flags().StringVar(&server, "server", "", "ask the server at this `URL` whether it is ready")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var at *url.URL
		if server != "" {
			var err error
			if at, err = serverURL(server); err != nil {
				return err
			}
		}
		found := slices.Concat(findProcessor(), findMemory(), findFolders(a),
			findHub(cmd.Context(), a, ask), findProxies(a), findVariables(cmd.Root(), a))
		if at != nil {
			found = append(found, findServer(cmd.Context(), at))
		}
		return writeFindings(a, found)
	}
	return cmd
}

// writeFindings prints the report, and fails if a finding is wrong.
func writeFindings(a *cli.App, found []finding) error {
	bad := 0
	for _, f := range found {
		state := "ok"
		switch {
		case f.wrong:
			state = "bad"
			bad++
		case f.advice != "":
			state = "note"
		}
		_, err := fmt.Fprintf(a.Out, "%-5s %-10s %s\n", state, f.subject, cli.OneLine(f.text))
		if err == nil && f.advice != "" {
			_, err = fmt.Fprintf(a.Out, "%16s -> %s\n", "", cli.OneLine(f.advice))
		}
		if err != nil {
			return err
		}
	}
	if bad > 0 {
		return fmt.Errorf("doctor: %d of %d lines are bad", bad, len(found))
	}
	return nil
}

func findProcessor() []finding {
	k := finding{subject: "kernels", text: fmt.Sprintf("%s of %s", kernel.Implementation(),
		strings.Join(kernel.Implementations(), ", "))}
	switch refused := kernel.Refused(); {
	case kernel.ImplementationError() != nil:
		k.wrong, k.text = true, kernel.ImplementationError().Error()
		k.advice = "unset KERNEL, or name one of those that this processor has"
	case refused != nil:
		k.text += fmt.Sprintf(" (%v)", refused)
		k.advice = "the operating system does not let programs use what the processor has: " +
			"a newer kernel, or another setting of the virtual machine or sandbox, does"
	case kernel.Implementation() == "go" && len(kernel.Implementations()) > 1:
		k.advice = "answers are slow: unset KERNEL, which chose kernels without assembly"
	case kernel.Implementation() == "go":
		k.advice = "answers are slow: assembly needs AVX2, FMA and F16C (amd64), or NEON with " +
			"dot products (arm64)"
	}
	return []finding{
		{subject: "version", text: fmt.Sprintf("restore %s, %s, %s/%s", version.Module(),
			runtime.Version(), runtime.GOOS, runtime.GOARCH)},
		{subject: "processor", text: fmt.Sprintf("%s, %s of %d", calibrate.CPU(),
			cli.Count(runtime.GOMAXPROCS(0), "thread"), runtime.NumCPU())},
		k,
	}
}

func findMemory() []finding {
	free, ok := machine.Available()
	if !ok {
		return []finding{{subject: "memory", text: "this system does not say how much is free"}}
	}
	f := finding{subject: "memory", text: bytesize.GB(free) + " free"}
	if free < littleMemory {
		f.advice = "enough for the embedded model only: close programs, or raise the limit of " +
			"the control group; 'restore show -m MODEL' says what a model needs"
	}
	return []finding{f}
}

// findFolders reports the folders that commands write to.
func findFolders(a *cli.App) []finding {
	var found []finding
	const again = "measurements of this machine are made again by every process: " +
		"set XDG_CACHE_HOME"
	if dir, err := os.UserCacheDir(); err != nil {
		found = append(found, finding{subject: "cache", text: err.Error(),
			advice: again + " to an absolute path"})
	} else {
		found = append(found, findFolder("cache", filepath.Join(dir, "restore"), 0, again))
	}
	c, err := hub.New(a.Getenv)
	if err != nil {
		return found // findHub says why
	}
	return append(found, findFolder("models", c.Cache(), littleSpace,
		"'restore pull' may not have room for a model: set HF_HOME to a folder on another disk"))
}

// findFolder reports whether files can be written to a folder, or to the one in which it would be
// made, and the free space there. advice is what to do if it is less than enough.
func findFolder(subject, dir string, enough int64, advice string) finding {
	f := finding{subject: subject, text: dir}
	at, made := dir, true
	for {
		info, err := os.Stat(at)
		if err == nil && info.IsDir() {
			break
		}
		if err == nil || !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			f.wrong, f.advice = true, advice
			f.text += ": " + reason(dir, at, err)
			return f
		}
		at, made = filepath.Dir(at), false
	}
	probe, err := os.CreateTemp(at, ".restore-doctor-*")
	if err != nil {
		f.wrong, f.advice = true, advice
		f.text += ": " + reason(dir, at, err)
		return f
	}
	err = probe.Close()
	if removed := os.Remove(probe.Name()); err == nil {
		err = removed
	}
	free, unknown := machine.FreeSpace(at)
	if err = errors.Join(err, unknown); err != nil {
		f.wrong, f.advice = true, advice
		f.text += ": " + reason(dir, at, err)
		return f
	}
	if !made {
		f.text += ", not made yet"
	}
	f.text += ", " + bytesize.GB(free) + " free"
	if free < enough {
		f.advice = advice
	}
	return f
}

// reason says in short why at, which is dir or a folder above it, is no folder for files.
func reason(dir, at string, err error) string {
	text := "is no folder"
	var p *fs.PathError
	switch {
	case errors.As(err, &p):
		text = p.Err.Error()
	case err != nil:
		text = err.Error()
	}
	if at == dir {
		return text
	}
	return at + ": " + text
}

func findHub(ctx context.Context, a *cli.App, ask bool) []finding {
	c, err := hub.New(a.Getenv)
	if err != nil {
		return []finding{{subject: "hub", text: err.Error(), wrong: true,
			advice: "correct the variable or the file that the line names"}}
	}
	f := finding{subject: "hub", text: c.Endpoint() + ", not asked (--hub asks it)"}
	if ask {
		ctx, stop := context.WithTimeout(ctx, hubPatience)
		defer stop()
		f.text = c.Endpoint() + " answers"
		if err := c.Reach(ctx); err != nil {
			f.wrong, f.text = true, fmt.Sprintf("%s: %v", c.Endpoint(), err)
			f.advice = "name a proxy in HTTPS_PROXY or another hub in HF_ENDPOINT; " +
				"models on this disk need no hub"
		}
	}
	return []finding{f}
}

// findServer asks a server whether it is ready to answer.
func findServer(ctx context.Context, at *url.URL) finding {
	address := at.Redacted()
	f := finding{subject: "server", text: address + " is ready"}
	ctx, stop := context.WithTimeout(ctx, serverPatience)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.JoinPath("health").String(),
		nil)
	if err == nil {
		var resp *http.Response
		if resp, err = http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return f
			}
			err = errors.New(resp.Status)
		}
	}
	f.wrong, f.text = true, fmt.Sprintf("%s: %v", address, err)
	f.advice = "look at the server's log: it may still read its model, or listen elsewhere"
	return f
}

// findProxies reports the proxies that requests to hubs and for pictures use.
func findProxies(a *cli.App) []finding {
	var set []string
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"} {
		for _, name := range []string{name, strings.ToLower(name)} {
			value := a.Getenv(name)
			if value == "" {
				continue
			}
			if strings.EqualFold(name, "NO_PROXY") {
				set = append(set, name+"="+value)
				break
			}
			if !strings.Contains(value, "://") {
				value = "http://" + value // as net/http reads it
			}
			u, err := url.Parse(value)
			if err != nil || u.Host == "" {
				return []finding{{subject: "proxies", text: name + " holds no address", wrong: true,
					advice: "write it as http://HOST:PORT"}}
			}
			set = append(set, name+"="+u.Redacted())
			break
		}
	}
	if set == nil {
		return []finding{{subject: "proxies", text: "none"}}
	}
	return []finding{{subject: "proxies", text: strings.Join(set, " ")}}
}

// findVariables names the variables of flags that are set. Their values may be secrets.
func findVariables(root *cobra.Command, a *cli.App) []finding {
	var set []string
	add := func(name string) {
		if a.Getenv(name) != "" && !slices.Contains(set, name) {
			set = append(set, name)
		}
	}
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if cli.HasVariable(f) {
				add(cli.EnvName(f))
			}
		})
	}
	for _, name := range strings.Fields("KERNEL GOMAXPROCS GOMEMLIMIT GOGC HF_HOME " +
		"HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_ENDPOINT HF_TOKEN HUGGING_FACE_HUB_TOKEN " +
		"HF_TOKEN_PATH HF_HUB_DISABLE_IMPLICIT_TOKEN HF_HUB_OFFLINE TRANSFORMERS_OFFLINE " +
		"XDG_CACHE_HOME") {
		add(name)
	}
	if set == nil {
		return []finding{{subject: "variables", text: "none"}}
	}
	slices.Sort(set)
	return []finding{{subject: "variables", text: strings.Join(set, " ")}}
}
