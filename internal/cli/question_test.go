package cli

import "testing"

// Ensure that every form of a marker is found, and nothing like it.
func TestMarkers(t *testing.T) {
	for _, text := range []string{
		"<image>", "<im_start><image><im_end>", "<video>", "<|image_pad|>", "<|video_pad|>",
		"<|vision_start|><|image_pad|><|image_pad|><|vision_end|>", "<__media__>", "<__image__>",
	} {
		if got := marker.FindString("a" + text + "b"); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	for _, text := range []string{"<images>", "<__video__>", "image", "< image >"} {
		if got := marker.FindString(text); got != "" {
			t.Errorf("%s: got %q, want none", text, got)
		}
	}
}
