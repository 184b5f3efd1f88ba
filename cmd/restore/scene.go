package main

import (
	"fmt"

	"github.com/restore-vlm/restore/scene"
	"github.com/spf13/cobra"
)

func newScene(a *app) *cobra.Command {
	var seed int64
	var out string
	cmd := &cobra.Command{
		Use:   "scene",
		Short: "Draw a picture to play with, and print its questions and answers",
		Long: `Draw a scene of the kind that the embedded model knows, write it as PNG, and print its questions and answers on stdout: one a line,
task, question and answer separated by tabs. The model's training stayed below the default seed and above 10,000,000.`,
		Example: `  restore scene --seed 7 -o scene.png`,
		Args:    noArgs,
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.Int64Var(&seed, "seed", scene.EvalSeed, "`seed` of the scene: the same seed, the same picture")
	fs.StringVarP(&out, "output", "o", "", "PNG `file` to write")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := need(cmd, "output", out); err != nil {
			return err
		}
		s := scene.New(seed)
		if err := writePNG(out, s.Image()); err != nil {
			return err
		}
		for _, q := range s.Questions() {
			if _, err := fmt.Fprintf(a.out, "%s\t%s\t%s\n", q.Task, q.Text, q.Answer); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}
