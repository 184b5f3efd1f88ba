package clitest

import (
	"bytes"
	"context"
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
		r := p.Command(context.Background(), nil, nil, "workers", "--nats", s.URL(), "--json")
		if strings.Count(r.Out, "\n") == workers {
			return s.URL(), logs, stop
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the workers did not come: %s", logs)
	return "", nil, nil
}
