// Folder asks one question about every picture in a folder, eight requests at once. The model
// decodes them together; each answer is the same as for the request alone.
//
//	go run ./folder PICTURES "Describe the image."
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/restore-vlm/restore"
)

const atOnce = 8

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: folder FOLDER QUESTION")
	}
	if err := run(context.Background(), os.Stdout, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer, dir, question string) error {
	m, err := restore.Open(ctx, "", nil)
	if err != nil {
		return err
	}
	defer m.Close()
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	answers := make([]string, len(files))
	free := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, f := range files {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			answers[i] = ask(ctx, m, filepath.Join(dir, f.Name()), question)
		})
	}
	all.Wait()
	for i, f := range files {
		fmt.Fprintf(w, "%s: %s\n", f.Name(), answers[i])
	}
	return nil
}

// ask returns the answer, or the reason why there is none.
func ask(ctx context.Context, m *restore.Model, file, question string) string {
	pic, err := restore.OpenPicture(file, nil)
	if err != nil {
		return err.Error()
	}
	ans, err := m.Ask(ctx, restore.Request{
		Prompt:    question,
		Pictures:  []*restore.Picture{pic},
		Reduction: &restore.Reduction{Base: "holov", NVis: 64, AtMost: true},
	})
	if err != nil {
		return err.Error()
	}
	return ans.Text
}
