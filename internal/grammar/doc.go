// Package grammar keeps generated text inside a JSON schema.
//
//	schema.go      parses the supported subset of schemas, refuses all others
//	compile.go     turns schemas into nodes, the values allowed at each place
//	automaton.go   a pushdown automaton over bytes whose stacks walk the nodes
//	vocabulary.go  a tokenizer's tokens as a trie of bytes
//	matcher.go     walks both together: which tokens may come next
//
// A [Schema] is parsed once. A [Grammar] is a schema compiled for one [Vocabulary], and is safe for
// concurrent use. A [Matcher] follows one text. Every text that a matcher accepts can be completed:
// compiling removes values without a finite instance.
//
// Generated text has no white space outside strings, properties in the schema's
// order, and numbers of at most 17 digits. Strings hold no control characters and
// no \uXXXX; their only escapes are \" \\ \n and \t. An absent additionalProperties
// means none.
package grammar
