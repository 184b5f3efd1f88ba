package browser

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/restore-vlm/restore/tools/clients/program"
)

// Ensure that conversations stay in the browser with their pictures and drawings, open again,
// continue, and can be deleted.
func TestHistory(t *testing.T) {
	b := open(t, program.Serve(t), desk)
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	b.ask("Describe the image.")
	b.click("button", "New conversation")
	b.gone("article", "Question 1")
	b.gone("img", "Picture 1")
	b.ask("Who are you?")
	b.do(chromedp.Reload())
	b.until("the conversation after a reload", `document.querySelector('[aria-label="Question 1"] .bubble')?.textContent === 'Who are you?'`)
	entries := func() string {
		return b.call("list", "History", `function() { return [...this.children].map(e => e.querySelector('.title').textContent).join() }`)
	}
	if got := entries(); got != "Who are you?,Describe the image." {
		t.Errorf("history: got %s", got)
	}
	b.click("button", "Describe the image.")
	b.wait("img", "Picture 1: example.jpg")
	b.wait("img", drawing+": 32 kept, 32 merged of 576")
	b.ask("What number is written?")
	b.wait("article", "Answer 2")
	b.shot("history")
	b.click("button", "Delete Who are you?")
	b.until("one entry", `document.getElementById('history').children.length === 1`)
	b.click("button", "Undo")
	b.until("two entries", `document.getElementById('history').children.length === 2`)
	b.click("button", "Clear history")
	b.until("no entries", `document.getElementById('history').children.length === 0`)
	b.gone("article", "Question 1")
	b.quiet()
}

// Ensure that a conversation can be saved as a file and opened from it, and that other files are
// refused.
func TestExport(t *testing.T) {
	b := open(t, program.Serve(t), desk)
	dir := b.downloads()
	b.choose(example(t))
	b.wait("img", "Picture 1: example.jpg")
	b.ask("Describe the image.")
	b.click("button", "Export this conversation")
	var files []string
	for range 200 {
		files, _ = filepath.Glob(filepath.Join(dir, "conversation-*.json"))
		if len(files) > 0 {
			break
		}
		time.Sleep(25 * time.Millisecond)
	}
	if len(files) != 1 {
		t.Fatalf("saved %v", files)
	}
	b.click("button", "Clear history")
	b.gone("article", "Question 1")
	b.chooseIn("Conversation file", files[0])
	b.wait("img", drawing+": 32 kept, 32 merged of 576")
	b.wait("article", "Answer 1")
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"page.json":  strings.Replace(string(data), "data:image/jpeg", "data:text/html", 1),
		"empty.json": "{}", "half.json": string(data[:100]),
	} {
		b.chooseIn("Conversation file", write(t, name, []byte(text)))
		b.until("the refusal of "+name, `document.getElementById('alert').textContent.includes('`+name+` is no conversation')`)
	}
	b.quiet()
}
