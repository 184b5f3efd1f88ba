package main

import (
	"github.com/spf13/cobra"

	"github.com/restore-vlm/restore/internal/cli"
)

// thisProgram is the program of this folder.
var thisProgram = &cli.Program{
	Name:  "restore",
	Short: "Ask about pictures; read 64 visual tokens instead of 576",
	Long: `restore answers questions about pictures with LLaVA-like models that read few visual tokens.
restore-lab measures them.

Every flag can also be set by an environment variable. A flag wins over its variable, the variable over the default.
Text in files is UTF-8; a byte-order mark at its beginning is ignored.
Exit codes: 0 success, 1 failure (or cut short by Ctrl-C), 2 wrong usage.`,
	First: `restore answers questions about pictures. First steps:

  restore run --image scene.png -p "Describe the image."
      asks the embedded model, which knows only drawn scenes;
      'restore-lab scene --seed 7 -o scene.png' draws one
  restore pull llava-hf/llava-1.5-7b-hf
      downloads a real model (14 GB) from the Hugging Face hub
  restore show -m llava-hf/llava-1.5-7b-hf
      says what memory and time it takes on this machine
  restore run -m llava-hf/llava-1.5-7b-hf --quant q4 --image cat.jpg
      starts a conversation about a picture; -p "…" asks one question
  restore serve -m llava-hf/llava-1.5-7b-hf --quant q4
      answers over HTTP, with a page for the browser`,
	Commands: commands,
	Elsewhere: cli.In("restore-lab", "reduce", "trace", "inspect", "scene", "eval", "paper",
		"bench",
		"load", "fitprune-recipe", "budget", "flops", "attention"),
}

// commands are all subcommands, in the order of the help text.
func commands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{
		newRun(a),
		newServe(a),
		newBatch(a),
		newWorker(a),
		newWorkers(a),
		newShow(a),
		newPack(a),
		newConvert(a),
		newPull(a),
		newList(a),
		newRemove(a),
		newMethods(a),
		newDoctor(a),
		cli.NewVersion(a),
	}
}
