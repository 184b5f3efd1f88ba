// Package program runs `restore serve` for the tests of its clients.
package program

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Root is the module of the program, from a package of clients.
const Root = "../../.."

// binary is the program that Main made.
var binary string

// Main makes the program and runs a package's tests.
func Main(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "restore-clients-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "restore")
	build := exec.Command("go", "build", "-o", binary, "./cmd/restore")
	build.Dir, build.Stderr = Root, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Serve serves the embedded model until the test ends, and returns the server's URL.
func Serve(t *testing.T, flags ...string) string {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"serve", "--port", "0"}, flags...)...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("the server says %q, %v", line, err)
	}
	return url
}
