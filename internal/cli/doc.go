// Package cli is what the programs share: how a command line runs and ends, the flags of models,
// reductions, questions and NATS servers, the terminal with its progress, and the files that
// commands read and write.
package cli
