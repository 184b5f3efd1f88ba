package wire

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error is an error for a client. Its codes are strings, as in OpenAI's API.
type Error struct {
	Status  int
	Type    string
	Code    string
	Param   string // path of the field; "" if none
	Message string

	// For context_length_exceeded; 0 otherwise.
	PromptTokens, Positions, Context int

	RetryAfter int    // seconds; 0: none
	Allow      string // methods, for method_not_allowed
	RequestID  string // "" if the error is not a reply yet
}

func (e *Error) Error() string { return e.Message }

// The types of errors.
const (
	InvalidRequest = "invalid_request_error"
	Authentication = "authentication_error"
	Permission     = "permission_error"
	NotFound       = "not_found_error"
	RateLimit      = "rate_limit_error"
	APIError       = "api_error"
	Unavailable    = "unavailable_error"
)

// New returns an error with the type that belongs to the status.
func New(status int, code, param, format string, args ...any) *Error {
	kind := InvalidRequest
	switch status {
	case http.StatusUnauthorized:
		kind = Authentication
	case http.StatusForbidden:
		kind = Permission
	case http.StatusNotFound:
		kind = NotFound
	case http.StatusTooManyRequests:
		kind = RateLimit
	case http.StatusInternalServerError, http.StatusGatewayTimeout,
		http.StatusInsufficientStorage:
		kind = APIError
	case http.StatusServiceUnavailable:
		kind = Unavailable
	}
	return &Error{
		Status:  status,
		Type:    kind,
		Code:    code,
		Param:   param,
		Message: fmt.Sprintf(format, args...),
	}
}

// Bad is an error with status 400 about a field. The message begins with the field's path.
func Bad(code, param, format string, args ...any) *Error {
	message := fmt.Sprintf(format, args...)
	if param != "" {
		message = param + ": " + message
	}
	return New(http.StatusBadRequest, code, param, "%s", message)
}

// body is the error in JSON.
type body struct {
	Error inner `json:"error"`
}

type inner struct {
	Message      string  `json:"message"`
	Type         string  `json:"type"`
	Param        *string `json:"param"`
	Code         string  `json:"code"`
	PromptTokens int     `json:"n_prompt_tokens,omitempty"`
	Positions    int     `json:"n_positions,omitempty"`
	Context      int     `json:"n_ctx,omitempty"`
}

// JSON returns {"error":{…}} as OpenAI's clients read it.
func (e *Error) JSON() any {
	b := body{inner{Message: e.Message, Type: e.Type, Code: e.Code,
		PromptTokens: e.PromptTokens, Positions: e.Positions, Context: e.Context}}
	if e.Param != "" {
		b.Error.Param = &e.Param
	}
	return b
}

// clipRunes is the length of a text that Clip leaves as it is; no longer text has fewer bytes than
// clipBytes.
const (
	clipRunes = 60
	clipBytes = utf8.UTFMax * (clipRunes + 1)
)

// Clip shortens a text that an error quotes.
func Clip(s string) string {
	if r := []rune(s[:min(len(s), clipBytes)]); len(r) > clipRunes {
		return string(r[:clipRunes-3]) + "..."
	}
	return s
}

// Name is Clip of a field's name, in quotes if an error would not show it in one line.
func Name(s string) string {
	s = Clip(s)
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// Quote is Clip in quotes.
func Quote(s string) string { return strconv.Quote(Clip(s)) }
