package programtest

import (
	"bytes"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/restore-vlm/restore/internal/fleet/natsserver"
)

// Fleet starts a NATS server in the test, and workers as separate processes. It returns the
// server's address, what each worker writes to stderr, and a function that ends the workers.
func (p *Tested) Fleet(
	t *testing.T, workers int, flags ...string,
) (url string, logs []*bytes.Buffer, stop func()) {
	t.Helper()
	s, err := natsserver.Start(natsserver.Options{Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	var all []*exec.Cmd
	var ends []func()
	for range workers {
		cmd := p.Process(append([]string{"worker", "--nats", s.URL(), "--threads", "1"},
			flags...)...)
		log := new(bytes.Buffer)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		logs = append(logs, log)
		all = append(all, cmd)
		ends = append(ends, func() {
			if err := cmd.Wait(); err != nil {
				t.Errorf("worker: %v: %s", err, log)
			}
		})
	}
	stop = func() {
		for _, cmd := range all {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		}
		for _, end := range ends {
			end()
		}
		all, ends = nil, nil
	}
	t.Cleanup(stop)
	for range 300 {
		r := p.Command("workers", "--nats", s.URL(), "--json")
		if strings.Count(r.Out, "\n") == workers {
			return s.URL(), logs, stop
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the workers did not come: %s", logs)
	return "", nil, nil
}
