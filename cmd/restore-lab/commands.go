package main

import (
	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/cli"
)

// thisProgram is the program of this folder.
var thisProgram = &cli.Program{
	Name:  "restore-lab",
	Short: "Measure what reading fewer visual tokens costs and keeps",
	Long: `restore-lab measures models that read few visual tokens: the quality of their answers, speed, memory, operations, and every
intermediate of a forward. restore answers questions.

Every flag can also be set by an environment variable. A flag wins over its variable, the variable over the default.
Text in files is UTF-8; a byte-order mark at its beginning is ignored.
Exit codes: 0 success, 1 failure (or cut short by Ctrl-C), 2 wrong usage.`,
	First: `restore-lab measures what restore does. First steps:

  restore-lab scene --seed 7 -o scene.png
      draws a picture, and prints its questions with their answers
  restore-lab eval scenes --all --n-vis 64
      the accuracy of every method on drawn pictures, embedded model
  restore-lab bench --shape llava-1.5-7b --n-vis 576,64
      the time of every stage in a real model's shape, random weights
  restore-lab paper list
      the tables and figures of the paper that can be made here`,
	Commands: commands,
	Elsewhere: cli.In("restore", "run", "serve", "batch", "worker", "workers", "show", "pack",
		"convert", "pull", "list", "rm", "methods"),
}

// commands are all subcommands, in the order of the help text.
func commands(a *cli.App) []*cobra.Command {
	scenes := []*cobra.Command{newEvalScenes(a), newEvalQuant(a), newEvalCompare(a)}
	return []*cobra.Command{
		cli.Group("eval", "Measure answers", append(scenes, newEvalBenches(a)...)...),
		cli.Group("paper", "Make the paper's tables and figures", newPaper(a)...),
		newBench(a),
		newLoad(a),
		newReduce(a),
		newTrace(a),
		newInspect(a),
		newScene(a),
		newAttention(a),
		newFLOPs(a),
		newBudget(a),
		newFitPruneRecipe(a),
		cli.NewVersion(a),
	}
}
