// Package jobs keeps files and batches of requests as OpenAI's API has them, in a folder, and
// answers the batches one after another.
//
//	lock                     one process uses the folder
//	files/ID, files/ID.json  the content of a file and its description
//	batches/ID/batch.json    the state of a batch
//	batches/ID/journal       answers of a batch that is not complete
//	batches/ID/results       and its output, in order of completion
//
// Every change is on disk before anybody is told of it, so a batch continues where a kill at any
// moment left it: package batch asks no line twice. When all lines have a result, the output is
// divided into a file with the answers and one with the errors; a kill while that is done repeats
// it.
//
// Errors have the types of package wire, for a client. An owner sees only its own files and
// batches.
package jobs
