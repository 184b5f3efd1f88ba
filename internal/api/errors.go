package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/grammar"
	"github.com/restore-vlm/restore/internal/media"
	"github.com/restore-vlm/restore/internal/wire"
)

// FieldError is an error about a field of a request, under its path.
type FieldError struct {
	Path    string // of the object that holds the option, or of the field if Err is about no option
	Err     error
	Decimal bool // the option takes fractions
}

// Error returns the path and the cause.
func (e *FieldError) Error() string { return e.Path + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FieldError) Unwrap() error { return e.Err }

// Error words a fault of a call, which may be nil; it returns nil for any other error.
func (c *Call) Error(err error) *wire.Error {
	if c == nil {
		c = new(Call)
	}
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	err = c.located(err)
	if errors.As(err, &e) {
		return e
	}
	var full *errs.FullError
	if errors.As(err, &full) {
		e = wire.New(http.StatusTooManyRequests, "queue_full", "", "%v (--queue)", full)
		e.RetryAfter = max(1, full.RetryAfter)
		return e
	}
	at := new(FieldError)
	errors.As(err, &at)
	path := at.Path
	var (
		fetched *media.Error
		picture *errs.PictureError
		option  *errs.OptionError
		context *errs.ContextError
		memory  *errs.MemoryError
		schema  *grammar.Error
	)
	switch {
	case errors.As(err, &fetched):
		return wire.Bad(string(fetched.Code), path, "%s%s", fetched.Text, limitFlag(fetched))
	case errors.As(err, &schema):
		return wire.Bad("invalid_json_schema", c.FormatPath, "%v", schema)
	case errors.As(err, &picture):
		return pictureError(picture, path)
	case errors.As(err, &context):
		return contextError(context, c.Field)
	case errors.As(err, &memory):
		e := wire.Bad("context_length_exceeded", c.Field, "%v (--kv-mb)", memory)
		return e
	case errors.As(err, &option):
		return optionError(option, path, at.Decimal)
	}
	return nil
}

// limitFlag names the flag of the limit that a picture's file exceeds.
func limitFlag(e *media.Error) string {
	if e.Late {
		return " (--fetch-timeout)"
	}
	switch e.Code {
	case media.TooLarge:
		return " (--max-image-mb)"
	case media.NotAllowed:
		return " (--allowed-media-domains, --media-path)"
	}
	return ""
}

func pictureError(e *errs.PictureError, path string) *wire.Error {
	switch e.Fault {
	case errs.UnknownFormat:
		return wire.Bad("unsupported_image_media_type", path,
			"%s, want PNG, JPEG, WebP, GIF or BMP", said(e.Err))
	case errs.EmptyPicture:
		return wire.Bad("empty_image_file", path, "%s", said(e.Err))
	case errs.TooManyPixels:
		return wire.Bad("image_too_large",
			path, "got %d x %d = %d pixels, want at most %d (--max-image-pixels)", e.Width,
			e.Height, e.Got, e.Limit)
	case errs.TooManyBytes:
		return wire.Bad("image_file_too_large", path,
			"got %d bytes, want at most %d (--max-image-mb)", e.Got, e.Limit)
	case errs.BadShape:
		return wire.Bad("invalid_value", path, "%s", said(e.Err))
	}
	return wire.Bad("image_parse_error", path, "%s", said(e.Err))
}

// said is the text of an error of the package that decodes pictures, without the package's and the
// file's name and without the formats that commands read.
func said(err error) string {
	text := strings.TrimPrefix(err.Error(), "imageproc: picture: ")
	text, _, _ = strings.Cut(text, "; supported: ")
	return text
}

// contextError words a prompt beyond the context, also as OpenAI does: LiteLLM and LangChain find
// this in the message and raise an exception for which programs shorten the dialogue.
func contextError(e *errs.ContextError, field string) *wire.Error {
	known := fmt.Sprintf("This model's maximum context length is %d positions here", e.Context)
	if e.Bytes > 0 {
		w := wire.Bad("context_length_exceeded", field,
			"the prompt is too long: got %d bytes of text, want at most %d for the context of "+
				"%d positions. %s",
			e.Bytes, e.MostBytes, e.Context, known)
		w.Context = e.Context
		return w
	}
	hint := ""
	if e.Positions > e.PromptTokens {
		hint = "; with original positions a reduced picture still spans its own, " +
			"so fewer pictures or \"positions\": \"sequential\" in restore would do"
	}
	w := wire.Bad("context_length_exceeded", field,
		"the prompt is too long: got %d positions in %d tokens, want at most the context's %d%s. "+
			"%s", e.Positions, e.PromptTokens, e.Context, hint, known)
	w.PromptTokens, w.Positions, w.Context = e.PromptTokens, e.Positions, e.Context
	return w
}

// optionError words an error about an option of a reduction or of sampling; path is the path of its
// object.
func optionError(e *errs.OptionError, path string, decimal bool) *wire.Error {
	name := strings.ReplaceAll(e.Name, "-", "_")
	if path != "" {
		name = path + "." + name
	}
	code := "invalid_value"
	kind := "integer"
	if decimal {
		kind = "decimal"
	}
	switch e.Fault {
	case errs.TooSmall:
		code = kind + "_below_min_value"
	case errs.TooLarge:
		code = kind + "_above_max_value"
	case errs.Unknown:
		code = "unknown_parameter"
	case errs.Missing:
		code = "missing_required_parameter"
	}
	return wire.New(http.StatusBadRequest, code, name, "%s", e.Text(name))
}
