//go:build linux

package cli

import (
	"strings"
	"testing"

	"github.com/restore-vlm/restore/internal/cli/clitest"
)

// Ensure that a task longer than a second shows its progress and remaining time on a terminal, and
// that its end removes the line.
func TestMeter(t *testing.T) {
	t.Parallel()
	master, slave := clitest.NewTerminal(t)
	defer master.Close()
	s := &clitest.Terminal{T: t, Master: master, Closed: make(chan struct{})}
	go s.Watch()
	m := NewApp(thisProgram, nil, nil, slave, nil).Meter("pictures")
	m.Set(1, 60)
	s.Until(" left", 1)
	m.End()
	slave.Close()
	<-s.Closed
	if screen := s.Screen(); !strings.Contains(screen, "pictures, ") ||
		!strings.Contains(screen, "/60") || clitest.LastLine(screen) != "" {
		t.Errorf("screen %q, left %q", screen, clitest.LastLine(screen))
	}
}
