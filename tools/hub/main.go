// Command hub serves folders as repositories of a Hugging Face hub. check.py runs it:
//
//	go run ./tools/hub me/scenes=internal/builtin/checkpoint
//
// It prints the hub's address and serves until its input ends.
package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/restore-vlm/restore/internal/hub/hubtest"
)

// large is the size in bytes from which a file is an LFS file, which the hub serves from a second
// host.
const large = 10_000

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hub:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	repos := map[string]*hubtest.Repo{}
	for _, arg := range args {
		name, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("got %q, want ORG/NAME=FOLDER", arg)
		}
		repo := &hubtest.Repo{Commit: strings.Repeat("0123456789", 4),
			Refs: []string{"main", "refs/pr/1"}, Large: large, Files: map[string][]byte{}}
		fsys := os.DirFS(dir)
		err := fs.WalkDir(fsys, ".", func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				repo.Files[path], err = fs.ReadFile(fsys, path)
			}
			return err
		})
		if err != nil {
			return err
		}
		repos[name] = repo
	}
	h := hubtest.New(repos)
	defer h.Close()
	if os.Getenv("SLOW") != "" {
		h.Slow = 20 * time.Millisecond
	}
	fmt.Println(h.URL)
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
