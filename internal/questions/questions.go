// Package questions asks several questions about the same pictures.
package questions

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// together is how many questions are asked at once: as many as the engine decodes together.
const together = 8

// Each calls ask for the questions 0 … n-1. The first runs alone: it reads the pictures, and its
// times are only its own. The others then run together, up to eight at once, and use what the model
// keeps of the first. The first error cancels the others and is returned.
func Each(ctx context.Context, n int, ask func(ctx context.Context, i int) error) error {
	if n == 0 {
		return nil
	}
	if err := ask(ctx, 0); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(together)
	for i := 1; i < n; i++ {
		group.Go(func() error { return ask(ctx, i) })
	}
	return group.Wait()
}
