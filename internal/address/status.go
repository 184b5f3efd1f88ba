package address

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/restore-vlm/restore/internal/web"
)

// maxReply is how many bytes of an unsuccessful answer are read.
const maxReply = 64 << 10

// maxSkew is the difference between two clocks from which a refusal may be its fault: servers of S3
// accept 15 minutes, and signatures are valid from the moment of signing on.
const maxSkew = time.Minute

// statusError words an unsuccessful answer, with the reason that a server of S3 gives.
func statusError(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxReply)) // the status is the error
	var said struct{ Code, Message string }
	text := fmt.Sprintf("%s: %s", resp.Request.URL.Host, web.Status(resp.StatusCode))
	if xml.Unmarshal(raw, &said) == nil && said.Code != "" {
		text += fmt.Sprintf(" (%s: %s)", web.Clean(said.Code), web.Clean(said.Message))
	}
	if skew := skewOf(resp.Header); resp.StatusCode == http.StatusForbidden && skew != "" {
		text += ": " + skew
	}
	return &web.StatusError{Code: resp.StatusCode, Text: text, Pause: web.Pause(resp.Header),
		Missing: resp.StatusCode == http.StatusNotFound}
}

// skewOf says how far this machine's clock is from the server's; "" if not far.
func skewOf(h http.Header) string {
	at, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return ""
	}
	switch skew := time.Since(at).Round(time.Second); {
	case skew > maxSkew:
		return fmt.Sprintf("this machine's clock is %v ahead of the server's: set it", skew)
	case skew < -maxSkew:
		return fmt.Sprintf("this machine's clock is %v behind the server's: set it", -skew)
	}
	return ""
}
