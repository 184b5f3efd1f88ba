package main

import (
	"os"
	"testing"

	"github.com/restore-vlm/restore/internal/cli/programtest"
	"github.com/restore-vlm/restore/internal/fleet/fleettest"
)

var tested = &programtest.Tested{Program: thisProgram}

var with, commandLine, process = tested.With, tested.Command, tested.Process

func TestMain(m *testing.M) {
	fleettest.Main(nil)
	if os.Getenv(withOwnMethod) != "" {
		registerOwn()
	}
	tested.Test(m)
}

// Ensure that a command of the other program says where it is, and is there.
func TestElsewhere(t *testing.T) { tested.NamesElsewhere(t) }
