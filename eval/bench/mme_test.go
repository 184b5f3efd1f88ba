package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Ensure that a byte-order mark is no part of a question in MME's files, and that a file in another
// encoding is named.
func TestMMERelease(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "count", "1.txt")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("\ufeffIs it one?\tYes\r\nIs it two?\tNo\r\n")
	truth, err := mmeRelease(dir)
	for question, want := range map[string]string{"Is it one?": "yes", "Is it two?": "no"} {
		if got := truth[[3]string{"count", "1", mmeQuestion(question)}]; err != nil || got != want {
			t.Errorf("%s: %q, %v, want %s", question, got, err, want)
		}
	}
	write("Is it one?\tYes\nIs it caf\xe9?\tNo\n")
	if _, err = mmeRelease(dir); err == nil ||
		!strings.Contains(err.Error(), "1.txt: is not UTF-8: got 0xe9 at byte 24") {
		t.Errorf("got %v", err)
	}
}
