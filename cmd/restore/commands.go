package main

import "github.com/spf13/cobra"

// commands are all subcommands, in the order of the help text.
func commands(a *app) []*cobra.Command {
	return []*cobra.Command{
		newRun(a),
		newServe(a),
		newBatch(a),
		newWorker(a),
		newWorkers(a),
		newReduce(a),
		newTrace(a),
		newInspect(a),
		newScene(a),
		group("eval", "Measure answers", append([]*cobra.Command{newEvalScenes(a), newEvalQuant(a),
			newEvalCompare(a)}, newEvalBenches(a)...)...),
		group("paper", "Make the paper's tables and figures", newPaper(a)...),
		newBench(a),
		newLoad(a),
		newShow(a),
		newPack(a),
		newConvert(a),
		newPull(a),
		newList(a),
		newRemove(a),
		newFitPruneRecipe(a),
		newBudget(a),
		newMethods(a),
		newFLOPs(a),
		newAttention(a),
		newVersion(a),
	}
}
