// Package grammar keeps generated text inside a JSON schema.
//
//	schema.go      reads a schema of the supported subset, refuses all else
//	compile.go     makes nodes of it: what a value may be
//	automaton.go   a pushdown automaton over bytes whose stacks walk the nodes
//	vocabulary.go  a tokenizer's tokens as a trie of bytes
//	matcher.go     walks both at once: which tokens may come next
//
// A [Schema] is parsed once, a [Grammar] is a schema compiled for one [Vocabulary]
// and is safe for concurrent use, a [Matcher] follows one text. Every text that a
// matcher lets through can be completed: values without a finite instance are
// removed while compiling.
//
// Generated text has no white space outside strings, properties in the schema's
// order, and numbers of at most 17 digits. Strings hold no control characters and
// no \uXXXX; their only escapes are \" \\ \n and \t. An absent additionalProperties
// means none.
package grammar
