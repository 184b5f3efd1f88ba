// Package paper reproduces the tables and figures of the RESTORE paper (arXiv 2606.01711) from runs
// over real benchmarks or over drawn scenes, with the paper's values next to ours.
//
// A cell that was not run stays empty, with the reason. The paper's value never replaces one of
// ours.
package paper
