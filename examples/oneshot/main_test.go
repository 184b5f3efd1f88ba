package main

import (
	"context"
	"log"
	"os"
)

func Example() {
	if err := run(context.Background(), os.Stdout, "../../docs/scene.png",
		"What number is written?"); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 22
	// 576 visual tokens read as 32 kept and 32 merged
}
