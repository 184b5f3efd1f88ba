package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/kernel"
)

// Ensure that the report of a machine where all is well names every subject, prints no secret and
// asks nobody.
func TestDoctor(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("got a token, want none")
		}
		asked++
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	env := map[string]string{
		"HF_HOME": home, "HF_ENDPOINT": server.URL, "HF_TOKEN": "hf_secret",
		"HTTPS_PROXY": "http://me:secret@proxy:3128", "no_proxy": "localhost",
		"RESTORE_API_KEY": "secret",
	}
	r := with(context.Background(), env, "", "doctor")
	if r.Code != cli.ExitOK || r.Err != "" {
		t.Fatalf("exit %d, stderr %q, output:\n%s", r.Code, r.Err, r.Out)
	}
	if strings.Contains(r.Out, "secret") {
		t.Errorf("got a secret in:\n%s", r.Out)
	}
	for _, want := range []string{
		"version", "processor", "kernels", "memory", "cache", "models", "hub", "proxies", "variables",
		"HTTPS_PROXY=http://me:xxxxx@proxy:3128 no_proxy=localhost",
		"HF_ENDPOINT HF_HOME HF_TOKEN RESTORE_API_KEY", server.URL + ", not asked",
		filepath.Join(home, "hub") + ", not made yet, ",
	} {
		if !strings.Contains(r.Out, want) {
			t.Errorf("want %q in:\n%s", want, r.Out)
		}
	}
	if asked != 0 {
		t.Errorf("got %d requests without --hub, want none", asked)
	}
	r = with(context.Background(), env, "", "doctor", "--hub")
	if r.Code != cli.ExitOK || asked != 1 || !strings.Contains(r.Out, server.URL+" answers") {
		t.Errorf("--hub: exit %d, %d requests, output:\n%s", r.Code, asked, r.Out)
	}
	ready := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			t.Errorf("got %s, want /health", r.URL.Path)
		}
	}))
	defer ready.Close()
	r = with(context.Background(), env, "", "doctor", "--server", ready.URL+"/")
	if r.Code != cli.ExitOK || !strings.Contains(r.Out, ready.URL+"/ is ready") {
		t.Errorf("--server: exit %d, output:\n%s", r.Code, r.Out)
	}
	r = with(context.Background(), env, "", "doctor", "--server", server.URL)
	if r.Code != cli.ExitFailure || !strings.Contains(r.Out, server.URL+": 404 Not Found") {
		t.Errorf("--server that is not ready: exit %d, output:\n%s", r.Code, r.Out)
	}
	hidden := "://me:xxxxx@"
	r = with(context.Background(), env, "", "doctor", "--server",
		strings.Replace(ready.URL, "://", "://me:secret@", 1))
	if strings.Contains(r.Out, "secret") || !strings.Contains(r.Out, hidden) {
		t.Errorf("--server with a password: got it in\n%s", r.Out)
	}
	env["HF_ENDPOINT"] = "https://me:secret@hub"
	r = with(context.Background(), env, "", "doctor")
	if strings.Contains(r.Out, "secret") || !strings.Contains(r.Out, hidden) {
		t.Errorf("a hub with a password: got it in\n%s", r.Out)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("got %v left in the folder, %v", left, err)
	}
}

// Ensure that who named a cache folder by a relative path is told to name it by an absolute one.
func TestDoctorRelativeCache(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "relative")
	if _, err := os.UserCacheDir(); err == nil {
		t.Skip("left out: this system's cache folder has no variable")
	}
	r := with(context.Background(), map[string]string{"HF_HOME": t.TempDir()}, "", "doctor")
	const want = "set XDG_CACHE_HOME to an absolute path"
	if text := strings.Join(strings.Fields(r.Out), " "); !strings.Contains(text, want) {
		t.Errorf("exit %d, want %q in:\n%s", r.Code, want, r.Out)
	}
}

// Ensure that who chose slow kernels is not told that the processor lacks the others.
func TestDoctorSlowKernels(t *testing.T) {
	all := kernel.Implementations()
	if len(all) == 1 {
		t.Skip("this processor or build has no others")
	}
	defer func(before string) {
		if err := kernel.SetImplementation(before); err != nil {
			t.Error(err)
		}
	}(kernel.Implementation())
	for name, want := range map[string]bool{"go": true, all[1]: false} {
		if err := kernel.SetImplementation(name); err != nil {
			t.Fatal(err)
		}
		r := with(context.Background(), map[string]string{"HF_HOME": t.TempDir()}, "", "doctor")
		got := strings.Contains(r.Out, "slow: unset KERNEL")
		if got != want || strings.Contains(r.Out, "assembly needs") {
			t.Errorf("kernels %s: want advice to unset KERNEL %t, output:\n%s", name, want, r.Out)
		}
	}
}

// Ensure that what is not well is bad, is followed by advice, and fails the command.
func TestDoctorBad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"a file as folder": {
			map[string]string{"HF_HOME": t.TempDir(), "HF_HUB_CACHE": file},
			"bad   models     " + file + ": is no folder",
		},
		"no address": {
			map[string]string{"HF_ENDPOINT": "hub"}, "bad   hub        hub: HF_ENDPOINT: got",
		},
		"nobody answers": {
			map[string]string{"HF_ENDPOINT": gone.URL}, "bad   hub        " + gone.URL + ": ",
		},
		"offline": {
			map[string]string{"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids requests",
		},
		"no proxy": {
			map[string]string{"HTTPS_PROXY": "http://"}, "bad   proxies    HTTPS_PROXY holds no",
		},
	} {
		env := map[string]string{"HF_HOME": t.TempDir(), "HF_ENDPOINT": gone.URL}
		for k, v := range c.env {
			env[k] = v
		}
		args := []string{"doctor"}
		if strings.Contains(c.want, "bad   hub") || name == "offline" {
			args = append(args, "--hub")
		}
		r := with(context.Background(), env, "", args...)
		_, after, ok := strings.Cut(r.Out, c.want)
		if r.Code != cli.ExitFailure || !ok || !strings.Contains(r.Err, "doctor: 1 of ") {
			t.Errorf("%s: exit %d, stderr %q, want %q in:\n%s", name, r.Code, r.Err, c.want, r.Out)
			continue
		}
		_, next, _ := strings.Cut(after, "\n")
		if !strings.HasPrefix(strings.TrimSpace(next), "-> ") {
			t.Errorf("%s: no advice:\n%s", name, r.Out)
		}
	}
}
