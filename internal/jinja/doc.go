// Package jinja renders the chat templates of published models. It supports the part of Jinja that
// such templates use, with the settings of the reference implementation: trim_blocks and
// lstrip_blocks on, loop controls, generation tags, tojson without HTML escapes, raise_exception
// and strftime_now. There is no access to anything outside: no include, no import, no attribute
// that is not listed here, no change to the caller's values.
//
// Templates are not trusted. The size and nesting of a template, the steps of a rendering and the
// size of every text are limited, so that a hostile template ends in an error and not in a loop.
//
// Every text records for each byte whether it came from the template or from the caller.
//
// Departures from the reference: integers have 64 bits; autoescape and recursive loops are not
// supported, nor filters that no published template uses, nor formatting by %; a generator's items
// are computed at once; an inner block that reads a name before its outer block sets it gets the
// caller's value, which the reference hides from the block's start.
package jinja
