package methods

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/restore-vlm/restore/internal/files"
)

// documentBytes is the most bytes of a recipe file or a budgets file.
const documentBytes = 1 << 20

// documentHead is the beginning of a JSON file that this package writes.
type documentHead struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

// readDocument decodes one JSON object of at most 1 MiB into document, which has no other members
// and contains head. It wants the values that head has before the call. Errors begin with subject.
func readDocument(r io.Reader, subject string, head *documentHead, document any) error {
	want := *head
	data, err := io.ReadAll(io.LimitReader(r, documentBytes+1))
	if err != nil {
		return fmt.Errorf("methods: %s: %w", subject, err)
	}
	if len(data) > documentBytes {
		return fmt.Errorf("methods: %s: more than %d bytes, want a file of this program",
			subject, documentBytes)
	}
	if data, err = files.Text(data); err != nil {
		return fmt.Errorf("methods: %s: %w", subject, err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	*head = documentHead{}
	if err := dec.Decode(document); err != nil {
		return fmt.Errorf("methods: %s: %w", subject, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("methods: %s: text after the object, want one object", subject)
	}
	if *head != want {
		return fmt.Errorf("methods: %s: got format %.40q, version %d, want %q, %d",
			subject, head.Format, head.Version, want.Format, want.Version)
	}
	return nil
}
