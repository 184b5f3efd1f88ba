// Oneshot asks the embedded model one question about a picture file and prints the answer while it
// is generated.
//
//	go run ./oneshot ../docs/scene.png "Describe the image."
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"

	"github.com/restore-vlm/restore"
	"github.com/restore-vlm/restore/errs"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: oneshot PICTURE QUESTION")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer, file, question string) error {
	m, err := restore.Open(ctx, "", nil) // or the folder of a Hugging Face checkpoint
	if err != nil {
		return err
	}
	defer m.Close()
	pic, err := restore.OpenPicture(file, nil)
	var bad *errs.PictureError
	switch {
	case errors.As(err, &bad) && bad.Fault == errs.TooManyPixels:
		return fmt.Errorf("%s is too large: %d x %d pixels", file, bad.Width, bad.Height)
	case err != nil:
		return err
	}
	request := restore.Request{
		Prompt:    question,
		Pictures:  []*restore.Picture{pic},
		Reduction: &restore.Reduction{Base: "holov", NVis: 64, AtMost: true},
	}
	for piece, err := range m.Stream(ctx, request) {
		if err != nil {
			return err
		}
		fmt.Fprint(w, piece.Text)
		if a := piece.Answer; a != nil {
			p := a.Pictures[0]
			fmt.Fprintf(w, "\n%d visual tokens read as %d kept and %d merged\n", p.Tokens, p.Kept,
				p.Merged)
		}
	}
	return nil
}
