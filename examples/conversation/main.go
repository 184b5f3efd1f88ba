// Conversation asks several questions about one picture. The picture is read once:
// later questions reuse its reduced tokens, keys and values.
//
//	go run ./conversation ../docs/scene.png
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/restore-vlm/restore"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: conversation PICTURE")
	}
	questions := []string{
		"Is there a green star in the image?", "Where is the green star?",
		"What number is written?",
	}
	if err := run(context.Background(), os.Stdout, os.Args[1], questions); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer, file string, questions []string) error {
	m, err := restore.Open(ctx, "", nil)
	if err != nil {
		return err
	}
	defer m.Close()
	pic, err := restore.OpenPicture(file, nil)
	if err != nil {
		return err
	}
	c, err := restore.NewConversation(m, &restore.Reduction{Base: "holov", NVis: 64})
	if err != nil {
		return err
	}
	pics := []*restore.Picture{pic} // of the first question alone
	for _, q := range questions {
		ans, err := c.Ask(ctx, restore.Request{Prompt: q, Pictures: pics})
		if err != nil {
			return err
		}
		pics = nil
		fmt.Fprintf(w, "%s\n  %s (read %d tokens, %d of them before)\n", q, ans.Text,
			ans.Usage.Prompt, ans.Usage.Cached)
	}
	return nil
}
