// Package batch answers files of requests in OpenAI's batch format and survives
// being killed at any moment.
//
// A line of the input is {"custom_id", "method", "url", "body"}; for each, one line {"id",
// "custom_id", "response", "error"} is written to the output. [Run] reads the lines one at a time,
// asks a [Backend], and writes the results in the input's order. A [Journal] stores every result on
// disk until the result is in the output. So a second run continues where the first was killed and
// asks no request twice.
//
// Memory is bounded by a window of lines that are read but not yet written, not by the length of
// the file.
package batch
