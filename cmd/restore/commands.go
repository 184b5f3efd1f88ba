package main

import "github.com/spf13/cobra"

// commands are all subcommands, in the order of the help text.
func commands(a *app) []*cobra.Command {
	return []*cobra.Command{
		newRun(a),
		newReduce(a),
		newTrace(a),
		newInspect(a),
		newScene(a),
		group("eval", "Measure answers", newEvalScenes(a), newEvalQuant(a)),
		newBench(a),
		newShow(a),
		newPack(a),
		newFitPruneRecipe(a),
		newMethods(a),
		newFLOPs(a),
		newAttention(a),
		newVersion(a),
	}
}
