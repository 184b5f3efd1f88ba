package cli

import (
	"slices"
	"testing"

	"github.com/restore-vlm/restore"
)

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

// Ensure that markers say whether a video stands before, between or after pictures, and that one
// marker stands for each.
func TestPlaceVideo(t *testing.T) {
	for prompt, want := range map[string]int{
		"What moves?": 0, "<video>What <image>moves?": 0, "<image>What<video> moves?": 1,
		"<__media__>What<__media__> moves?":                         0,
		"<|vision_start|><|image_pad|><|vision_end|><|video_pad|>?": 1,
		"<image>What <image>":                                       -1,
		"<video>What <video>":                                       -1,
		"<video>?":                                                  -1,
		"?<image><video><image>":                                    -1,
	} {
		q := &Question{Prompt: prompt, Video: new(restore.Video), videoName: "v",
			Pictures: []ShownPicture{{Name: "p"}}}
		err := q.Place(1, true)
		if want < 0 {
			if err == nil {
				t.Errorf("%s: no error", prompt)
			}
			continue
		}
		names := []string{"v", "p"}
		if want == 1 {
			slices.Reverse(names)
		}
		if err != nil || q.VideoAfter != want || !slices.Equal(q.Names(), names) {
			t.Errorf("%s: got %d, %v, %v, want %d", prompt, q.VideoAfter, q.Names(), err, want)
		}
	}
}
