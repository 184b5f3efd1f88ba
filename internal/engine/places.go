package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/tokenizer"
	"github.com/restore-vlm/restore/internal/tokenizer/chat"
)

// Marks stand for pictures in a question until its template is rendered. Unicode reserves these
// characters for internal use; in text from users they become U+FFFD.
const (
	pictureMark = '\uFDD0'
	videoMark   = '\uFDD1'
	leftMark    = '\uFDD2' // around a picture, to find what a template writes for it
	rightMark   = '\uFDD3'
)

// withoutMarks replaces marks in a user's text.
func withoutMarks(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= pictureMark && r <= rightMark {
			return '\uFFFD'
		}
		return r
	}, text)
}

// userMessage returns a question about pictures. They stand before its text, or at places: byte
// offsets into the text, one for each picture.
func userMessage(text string, pics []*picture, places []int) (chat.Message, error) {
	m := chat.Message{Role: "user"}
	pics = slices.DeleteFunc(slices.Clone(pics), func(p *picture) bool { return p.moment > 0 })
	if len(places) > 0 {
		marked, err := markPlaces(text, pics, places)
		m.Content = []chat.Part{{Type: "text", Text: marked}}
		return m, err
	}
	for _, p := range pics {
		m.Content = append(m.Content, chat.Part{Type: kinds[p.shape.Video]})
	}
	m.Content = append(m.Content, chat.Part{Type: "text", Text: withoutMarks(text)})
	return m, nil
}

// markPlaces inserts marks at places.
func markPlaces(text string, pics []*picture, places []int) (string, error) {
	if len(places) != len(pics) {
		return "", &errs.OptionError{
			Name:  "places",
			Got:   fmt.Sprint(len(places)),
			Fault: errs.Conflict,
			Want:  fmt.Sprintf("%d, one for each picture", len(pics)),
		}
	}
	var b strings.Builder
	from := 0
	for i, at := range places {
		if at < from || at > len(text) {
			return "", &errs.OptionError{
				Name:  "places",
				Got:   fmt.Sprint(places),
				Fault: errs.Invalid,
				Want:  fmt.Sprintf("ascending offsets up to the prompt's length of %d", len(text)),
			}
		}
		b.WriteString(withoutMarks(text[from:at]))
		if pics[i].shape.Video {
			b.WriteRune(videoMark)
		} else {
			b.WriteRune(pictureMark)
		}
		from = at
	}
	b.WriteString(withoutMarks(text[from:]))
	return b.String(), nil
}

// fillMarks replaces each mark of a rendered prompt with the template's text for a picture among
// text. That text does not come from the user, so its control tokens are recognised.
func (e *Engine) fillMarks(segs []chat.Segment) ([]tokenizer.Segment, error) {
	var out []tokenizer.Segment
	for _, s := range segs {
		text := s.Text
		for {
			at := strings.IndexAny(text, string([]rune{pictureMark, videoMark}))
			if at < 0 {
				break
			}
			written, err := e.written(strings.HasPrefix(text[at:], string(videoMark)))
			if err != nil {
				return nil, err
			}
			if at > 0 {
				out = append(out, tokenizer.Segment{Text: text[:at], User: s.User})
			}
			out = append(out, tokenizer.Segment{Text: written})
			text = text[at+len(string(pictureMark)):]
		}
		if text != "" {
			out = append(out, tokenizer.Segment{Text: text, User: s.User})
		}
	}
	return out, nil
}

// fillMoments replaces the place of each video in a rendered prompt by one place for each of its
// moments, between their texts. A model for which a video is one picture needs none. Users' text
// has no places.
func (e *Engine) fillMoments(parts []tokenizer.Segment, pics []*picture) {
	token, whole, known := e.place(true)
	if _, ok := e.m.(model.Timed); !ok || !known {
		return
	}
	var videos []string
	for _, p := range pics {
		if !p.shape.Video {
			continue
		}
		if p.moment == 0 {
			videos = append(videos, "")
		}
		videos[len(videos)-1] += p.shape.Before + token + p.shape.After
	}
	for i := range parts {
		if parts[i].User {
			continue
		}
		var b strings.Builder
		text := parts[i].Text
		for len(videos) > 0 {
			left, right, found := strings.Cut(text, whole)
			if !found {
				break
			}
			b.WriteString(left + videos[0])
			text, videos = right, videos[1:]
		}
		parts[i].Text = b.String() + text
	}
}

// frame writes the model's tokens around the place of each picture in a rendered prompt. Users'
// text has no places.
func (e *Engine) frame(parts []tokenizer.Segment) error {
	m, ok := e.m.(model.Framed)
	token, place, known := e.place(false)
	if !ok || !known {
		return nil
	}
	_, before, after := m.Frame()
	for i := range parts {
		if parts[i].User || !strings.Contains(parts[i].Text, place) {
			continue
		}
		for _, text := range []string{before, after} {
			mark := strings.TrimSpace(text)
			if _, known := e.tok.TokenID(mark); !known {
				return fmt.Errorf("engine: %s: the tokenizer has no token %q, which stands next "+
					"to a picture", e.ck.Name, mark)
			}
		}
		parts[i].Text = strings.ReplaceAll(parts[i].Text, place, before+token+after)
	}
	return nil
}

// place returns the token of a picture's or a video's place in a prompt, and what the template
// writes there; known is false if the tokenizer has no such token.
func (e *Engine) place(video bool) (token, place string, known bool) {
	id := e.m.ImageToken()
	if video {
		id = e.m.VideoToken()
	}
	token, known = e.tok.Token(id)
	if m, ok := e.m.(model.Timed); ok && video {
		place, _ = m.Clip()
	} else if m, ok := e.m.(model.Framed); ok {
		place, _, _ = m.Frame()
	}
	return token, cmp.Or(place, token), known
}

// kinds are the types of a message's parts: of a picture, and of a video.
var kinds = map[bool]string{false: "image", true: "video"}

// written returns the text that the template writes for a picture or a video between two texts. If
// the template moves it to the front, it is the place only.
func (e *Engine) written(video bool) (string, error) {
	_, place, known := e.place(video)
	if !known {
		return "", fmt.Errorf(
			"engine: %s: the tokenizer has no token for a place of the prompt (%s)",
			e.ck.Name, kinds[video])
	}
	text, _, err := e.between(video)
	if err != nil {
		return "", err
	}
	if strings.Count(text, place) == 1 {
		return strings.TrimSpace(text), nil
	}
	return place, nil
}

// templateOf returns the chat template of dialogues, with a video or without.
func (e *Engine) templateOf(video bool) *chat.Template {
	if video && e.clips != nil {
		return e.clips
	}
	return e.template
}

// between returns what the template writes for a picture or a video between two texts: between
// them, "" if nothing, and in all.
func (e *Engine) between(video bool) (text, all string, err error) {
	m := chat.Message{
		Role: "user",
		Content: []chat.Part{{Type: "text", Text: string(leftMark)}, {Type: kinds[video]},
			{Type: "text", Text: string(rightMark)}},
	}
	all, err = e.templateOf(video).Render([]chat.Message{m},
		chat.Options{SpecialTokens: e.special})
	_, right, _ := strings.Cut(all, string(leftMark))
	if left, _, ok := strings.Cut(right, string(rightMark)); ok {
		text = left
	}
	return text, all, err
}

// mostQuoted is how many characters of a rendered template an error has.
const mostQuoted = 200

// misplaced returns err, the error for a dialogue without one place for each picture, or what the
// template writes for a picture if that is the cause.
func (e *Engine) misplaced(err error, pics []*picture) error {
	for _, p := range pics {
		name := "picture"
		if p.shape.Video {
			name = "video"
		}
		_, place, known := e.place(p.shape.Video)
		_, all, failed := e.between(p.shape.Video)
		if known && failed == nil && strings.Count(all, place) != 1 {
			all = strings.NewReplacer(string(leftMark), "A", string(rightMark), "B").Replace(all)
			if r := []rune(all); len(r) > mostQuoted {
				all = string(r[len(r)-mostQuoted:])
			}
			return fmt.Errorf("engine: %s: the chat template (%s) writes %q for text A, a %s and "+
				"text B, want %q once", e.ck.Name, e.source, all, name, place)
		}
	}
	return err
}
