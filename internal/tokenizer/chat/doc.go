// Package chat turns conversations into prompts.
//
// A checkpoint says how in a chat template, which package jinja renders: messages and options
// here become its values, and what it renders the prompt's segments.
//
// Every segment says whether its text came from the template or from the caller. The tokenizer
// finds control tokens only in what the template wrote: a user who types "</s>" has typed four
// letters.
package chat
