// Package chat turns conversations into prompts.
//
// A checkpoint has a chat template for this, which package jinja renders. This package converts
// messages and options to jinja's values, and its output to the prompt's segments.
//
// Every segment tells whether its text came from the template or from the caller. The tokenizer
// finds control tokens only in text from the template: if a user types "</s>", it is four ordinary
// characters.
package chat
