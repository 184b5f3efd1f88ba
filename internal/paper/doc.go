// Package paper makes the tables and figures of the RESTORE paper (arXiv 2606.01711): from
// runs over real benchmarks, or over drawn scenes, with the paper's own values next to them.
//
// What was not run stays empty and says why. No value of the paper stands in for one of ours.
package paper
