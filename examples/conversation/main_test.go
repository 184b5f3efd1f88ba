package main

import (
	"context"
	"log"
	"os"
)

func Example() {
	questions := []string{
		"Is there a green star in the image?", "Where is the green star?", "What number is written?",
	}
	if err := run(context.Background(), os.Stdout, "../../docs/scene.png", questions); err != nil {
		log.Fatal(err)
	}
	// Output:
	// Is there a green star in the image?
	//   yes (read 133 tokens, 0 of them before)
	// Where is the green star?
	//   middle right (read 142 tokens, 134 of them before)
	// What number is written?
	//   22 (read 151 tokens, 144 of them before)
}
