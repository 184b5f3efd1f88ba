package browser

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/restore-vlm/restore/tools/clients/program"
)

// paint writes a PNG of one colour.
func paint(t *testing.T, name string, width, height int, c color.Color) string {
	t.Helper()
	m := image.NewRGBA(image.Rect(0, 0, width, height))
	for i := range width * height {
		m.Set(i%width, i/width, c)
	}
	var out bytes.Buffer
	if err := png.Encode(&out, m); err != nil {
		t.Fatal(err)
	}
	return write(t, name, out.Bytes())
}

func write(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Ensure that pictures come by the dialog, from the clipboard and by drop anywhere, several at
// once, that other files are refused and change nothing, and that pictures can be removed.
func TestPictures(t *testing.T) {
	b := open(t, program.Serve(t, "--max-image-mb", "1"), desk)
	b.do(page.SetInterceptFileChooserDialog(true))
	opened := make(chan bool, 9)
	chromedp.ListenTarget(b.ctx, func(e any) {
		if _, ok := e.(*page.EventFileChooserOpened); ok {
			opened <- true
		}
	})
	b.focus("button", "Choose pictures")
	for _, key := range []string{kb.Enter, " "} {
		b.do(chromedp.KeyEvent(key))
		<-opened
	}
	b.click("button", "Choose pictures")
	<-opened

	red := paint(t, "red.png", 200, 100, color.RGBA{R: 255, A: 255})
	text := write(t, "text.png", []byte("no picture"))
	b.write("Question", "typed")
	b.choose(example(t), text, red)
	b.wait("img", "Picture 1: example.jpg")
	b.wait("img", "Picture 2: red.png")
	b.says("alert", "", "text.png is no picture")
	if got := b.value("textbox", "Question"); got != "typed" {
		t.Errorf("the question became %q", got)
	}
	b.choose(write(t, "large.png", make([]byte, 1_200_000)))
	b.until("the refusal", `document.getElementById('alert').textContent.includes('large.png is too large: it has 1.20 MB, this server takes 1.00 MB')`)
	b.absent("img", "Picture 3")

	// The two ways that need no dialog, anywhere on the page.
	const data = `const data = new DataTransfer()
		data.items.add(new File([await (await fetch('assets/example.jpg')).blob()], 'moved.jpg', { type: 'image/jpeg' }))`
	b.eval(data + `; document.getElementById('log').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })); 0`)
	b.wait("img", "Picture 3: moved.jpg")
	b.eval(`{ ` + data + `; document.getElementById('question').dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true })) }`)
	b.wait("img", "Picture 4: moved.jpg")
	b.shot("pictures")
	b.click("button", "Remove picture 3")
	b.gone("img", "Picture 4")
	b.click("button", "Remove picture 1")
	b.wait("img", "Picture 1: red.png")
	b.ask("Describe the image.")
	b.wait("img", "Kept and merged tokens of picture 1: ")
	b.wait("img", "Kept and merged tokens of picture 2: 32 kept, 32 merged of 576")
	b.shot("two")

	// A picture that was asked about can go, and the next question does without it.
	b.click("button", "Remove picture 1")
	b.gone("button", "Remove picture 2")
	b.ask("What number is written?")
	b.says("article", "Answer 2", "64 of 576 visual tokens")
	b.click("button", "Use the example")
	b.wait("img", "Picture 2: example.jpg")
	b.quiet()
}

// Ensure that Use camera is there where there is a camera, and takes its picture.
func TestCamera(t *testing.T) {
	b := open(t, program.Serve(t), look{width: 1280, height: 900, camera: true})
	b.eval(`{
		const film = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices)
		navigator.mediaDevices.getUserMedia = async (wants) => window.film = await film(wants)
	}`)
	b.click("button", "Use camera")
	b.until("the film", `document.getElementById('video').videoWidth > 0`)
	b.click("button", "Take the picture")
	b.wait("img", "Picture 1: camera.jpg")
	if got := b.eval(`window.film.getTracks()[0].readyState`); got != "ended" {
		t.Errorf("the camera is %s, want it off", got)
	}
	b.eval(`navigator.mediaDevices.getUserMedia = async () => { throw new DOMException('no', 'NotAllowedError') }`)
	b.click("button", "Use camera")
	b.says("alert", "", "Allow it in the browser")
	b.quiet()
}
