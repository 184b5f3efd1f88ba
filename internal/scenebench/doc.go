// Package scenebench measures what a reduction costs on drawn scenes: it asks a model the
// same questions about the same pictures twice, with and without the reduction, and reports
// the accuracy of both.
//
//	score      an answer is right when the whole of it, its end included, equals the true one;
//	           nothing is parsed leniently
//	accuracy   right answers / questions, per task and over all questions ("all"), in percent
//	vs_full    mean over tasks of reduced accuracy / unreduced accuracy, in percent: the paper's
//	           score
//	intervals  95 %: Wilson's score interval for an accuracy, a bootstrap over pictures for paired
//	           quantities
//
// Run takes any Ask, so that the metrics do not depend on a model; Scenes connects it to a
// restore.Model.
package scenebench
