package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/restore-vlm/restore/eval"
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

// Ensure that a selection which cuts a picture's pair of questions is refused.
func TestMMEPairs(t *testing.T) {
	dir := t.TempDir()
	release := filepath.Join(dir, mmeFolder, "count")
	lines := ""
	for _, id := range []string{"1", "2"} {
		for _, n := range []string{"one", "two"} {
			lines += `{"question_id": "count/` + id + `.png", "image": "count/` + id +
				`.png", "text": "Is it ` + n + `?` + `\nAnswer the question using a single word ` +
				`or phrase."}` + "\n"
		}
	}
	for path, text := range map[string]string{
		filepath.Join(release, "1.txt"):       "Is it one?\tYes\nIs it two?\tNo\n",
		filepath.Join(release, "2.txt"):       "Is it one?\tYes\nIs it two?\tNo\n",
		filepath.Join(dir, "llava_mme.jsonl"): lines,
	} {
		if err := errors.Join(os.MkdirAll(release, 0o700),
			os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, protocol := range Protocols {
		b, err := Open("mme", dir, Options{Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		answers := map[int]string{0: "yes", 1: "no", 2: "yes", 3: "no"}
		for limit, odd := range map[int]bool{1: true, 2: false, 3: true, 4: false} {
			_, _, err := eval.ScoreAll(t.Context(), b, eval.Selection{Limit: limit}, answers)
			if !odd && err != nil || odd && (err == nil ||
				!strings.Contains(err.Error(), "want two for each picture")) {
				t.Errorf("%s, %d questions: got %v", protocol, limit, err)
			}
		}
	}
}
