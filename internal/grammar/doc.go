// Package grammar keeps generated text inside a JSON schema.
//
//	schema.go      parses the supported subset of schemas, refuses all others
//	keyword.go     the keywords of a schema
//	combine.go     the keywords that depend on others
//	pattern.go     regular expressions, as automata
//	format.go      the values of the keyword format, as regular expressions
//	number.go      numbers with bounds, as automata
//	value.go       JSON values, for enum and const
//	compile.go     turns schemas into nodes, the values allowed at each place
//	regular.go     the strings and numbers that meet several demands
//	language.go    automata over characters, read byte by byte
//	account.go     counts the bytes that compiling takes
//	admits.go      checks the values of enum and const against schemas
//	prune.go       removes what has no finite value
//	node.go        nodes
//	trie.go        texts and names of nodes, byte by byte
//	automaton.go   a pushdown automaton over bytes whose stacks walk the nodes
//	cache.go       the automaton's states, with a limit in bytes
//	vocabulary.go  a tokenizer's tokens as a trie of bytes
//	matcher.go     walks both together: which tokens may come next
//
// A [Schema] is parsed once, in memory of some times its bytes. A [Grammar] is a schema compiled
// for one [Vocabulary], and is safe for concurrent use. A [Matcher] follows one text. Every text
// that a matcher accepts can be completed: compiling removes values without a finite instance. A
// small schema may stand for very many combinations, so all that is compiled or computed later is
// counted and limited.
//
// Generated text has no white space outside strings, properties in the schema's
// order, and numbers of at most 17 digits. Strings hold no control characters and
// no \uXXXX; their only escapes are \" \\ \n and \t. An absent additionalProperties
// means none.
package grammar
