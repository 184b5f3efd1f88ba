package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/hub"

	"github.com/restore-vlm/restore/internal/bytesize"
	"github.com/restore-vlm/restore/internal/cli"
)

func newRemove(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm ORG/NAME[@REVISION][:QUANTISATION]",
		Short: "Delete a model from the hub's cache",
		Long: `Delete a model from the hub's cache: a whole repository, or one revision without the files that other revisions share, or one GGUF
quantisation. The command refuses while the repository is being downloaded.`,
		Example: `  restore rm llava-hf/llava-1.5-7b-hf`,
		Args:    oneName,
	}
	cmd.ValidArgsFunction = cli.CachedModels(a)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name, err := hub.ParseCached(args[0])
		if err != nil {
			return &cli.UsageError{Err: err}
		}
		c, err := hub.New(a.Getenv)
		if err != nil {
			return err
		}
		r, err := c.Remove(name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Out, "%s: %s deleted, %s free\n", name, cli.Count(r.Files, "file"),
			bytesize.MB(r.Bytes))
		return err
	}
	return cmd
}
