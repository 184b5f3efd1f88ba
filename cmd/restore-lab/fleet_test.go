package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/cli"
	"github.com/restore-vlm/restore/internal/fleet/natsserver"
)

// Ensure that a benchmark answered by workers has the answers of one machine.
func TestFleetEval(t *testing.T) {
	url, _, _ := startFleet(t, 2)
	read := func(more ...string) string {
		dir := t.TempDir()
		args := append(
			[]string{
				"eval",
				"pope",
				"--data",
				benchData + "hub",
				"--base",
				"holov",
				"--n-vis",
				"64",
				"--limit",
				"6",
				"--records",
				dir,
				"--json",
			},
			more...)
		r := commandLine(args...)
		if r.Code != cli.ExitOK {
			t.Fatalf("%v: exit %d, %s", args, r.Code, r.Err)
		}
		var out struct {
			Metrics any
			Scores  any
		}
		if err := json.Unmarshal([]byte(r.Out), &out); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if one, many := read(), read("--nats", url); one != many {
		t.Errorf("one machine:\n%s\nworkers:\n%s", one, many)
	}
}

// Ensure that drawn scenes answered by workers have the answers of one machine, and that options
// that workers cannot honour are refused.
func TestFleetScenes(t *testing.T) {
	url, _, _ := startFleet(t, 2)
	read := func(more ...string) string {
		t.Helper()
		args := append([]string{"eval", "scenes", "--n", "4", "--n-vis", "32", "--json"}, more...)
		r := commandLine(args...)
		var out map[string]any
		if err := json.Unmarshal([]byte(r.Out), &out); r.Code != cli.ExitOK || err != nil {
			t.Fatalf("%v: exit %d, %v, %s", args, r.Code, err, r.Err)
		}
		delete(out, "setup")
		data, err := json.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	one, many := read(), read("--nats", url)
	if one != many {
		t.Errorf("one machine:\n%s\nworkers:\n%s", one, many)
	}
	if !strings.Contains(many, `"pictures":4`) {
		t.Errorf("got %s, want 4 pictures", many)
	}
	for _, more := range [][]string{
		{"--all"}, {"--distance"}, {"--variant", "{}"}, {"--quant", "q8"},
		{"--fitprune-recipe", os.DevNull}, {"--budget-file", os.DevNull},
	} {
		args := append([]string{"eval", "scenes", "--n", "1", "--nats", url}, more...)
		if r := commandLine(args...); r.Code != cli.ExitUsage ||
			!strings.Contains(r.Err, more[0]+": ") {
			t.Errorf("%v: exit %d, %s", args, r.Code, r.Err)
		}
	}
}

// startFleet starts a NATS server in the test, and workers as separate processes.
func startFleet(t *testing.T, workers int) (url string, list []*bytes.Buffer, stop func()) {
	t.Helper()
	s, err := natsserver.Start(natsserver.Options{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	var ends []func()
	for range workers {
		cmd := process("worker", "--nats", s.URL(), "--threads", "1")
		log := new(bytes.Buffer)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		list = append(list, log)
		ends = append(ends, func() {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			if err := cmd.Wait(); err != nil {
				t.Errorf("worker: %v: %s", err, log)
			}
		})
	}
	stop = func() {
		for _, end := range ends {
			end()
		}
		ends = nil
	}
	t.Cleanup(stop)
	for range 300 {
		if strings.Count(commandLine("workers", "--nats", s.URL(), "--json").Out, "\n") == workers {
			return s.URL(), list, stop
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the workers did not come: %s", list)
	return "", nil, nil
}
