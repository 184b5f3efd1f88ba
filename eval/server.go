package eval

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/api"
	"github.com/restore-vlm/restore/internal/web"
)

// Server asks a model through a server that uses OpenAI's protocol.
type Server struct {
	URL   string // of the server, of its /v1, or of its /chat/completions
	Model string // the server's name of the model
	Key   string // API key; may be empty
	// System is the system prompt before each question; "" means none.
	System string
	// Reduction is the request's extension "restore", for servers of this project. An answer
	// without this extension is an error. "" sends plain requests.
	Reduction json.RawMessage

	Client *http.Client // nil: a client without a time limit
}

// Settings implements Answerer.
func (s *Server) Settings() map[string]any {
	out := map[string]any{"server": s.URL, "model": s.Model, "system": s.System}
	if len(s.Reduction) > 0 {
		out["reduction"] = s.Reduction
	}
	return out
}

// chatRequest is the body of a request.
type chatRequest struct {
	Model       string          `json:"model"`
	Messages    []chatMessage   `json:"messages"`
	Temperature float64         `json:"temperature"`
	MaxTokens   int             `json:"max_tokens"`
	Restore     json.RawMessage `json:"restore,omitempty"`
}

type chatMessage struct {
	Role    string `json:"role"`
	Content any    `json:"content"`
}

type chatPart struct {
	Type  string    `json:"type"`
	Text  string    `json:"text,omitempty"`
	Image *chatLink `json:"image_url,omitempty"`
}

type chatLink struct {
	URL string `json:"url"`
}

// chatReply holds the fields of a reply that are read.
type chatReply struct {
	Choices []struct {
		Message struct{ Content string }
		Finish  string `json:"finish_reason"`
	}
	Usage struct {
		Prompt  int `json:"prompt_tokens"`
		Tokens  int `json:"completion_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Timings api.Timings // of a server of this project, as Restore
	Restore *api.Extension
}

// Answer implements Answerer. It repeats requests a few times if a server is busy or fails.
func (s *Server) Answer(
	ctx context.Context, questions []*Question, done func(i int, a Answer) error,
) error {
	var pictures []chatPart
	for i := range questions[0].Images {
		data, err := questions[0].Images[i].Bytes()
		if err != nil {
			return err
		}
		link := "data:" + http.DetectContentType(data) + ";base64," +
			base64.StdEncoding.EncodeToString(data)
		pictures = append(pictures, chatPart{Type: "image_url", Image: &chatLink{link}})
	}
	for i, q := range questions {
		a, err := s.ask(ctx, q, pictures)
		if picture := new(*errs.PictureError); errors.As(err, picture) {
			return fmt.Errorf("%s: %w", strings.Join(namesOf(q.Images), ", "), err)
		}
		if err != nil {
			return err
		}
		if err := done(i, *a); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) ask(ctx context.Context, q *Question, pictures []chatPart) (*Answer, error) {
	r := chatRequest{Model: s.Model, MaxTokens: q.MaxTokens, Restore: s.Reduction}
	if s.System != "" {
		r.Messages = append(r.Messages, chatMessage{"system", s.System})
	}
	var content any = q.Text
	if len(pictures) > 0 {
		content = append(pictures[:len(pictures):len(pictures)],
			chatPart{Type: "text", Text: q.Text})
	}
	r.Messages = append(r.Messages, chatMessage{"user", content})
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	wait := serverWait
	for try := 1; ; try++ {
		reply, again, err := s.post(ctx, body)
		if err == nil {
			a, err := s.answer(reply)
			if err != nil {
				err = fmt.Errorf("question %d: %s: %w", q.ID, s.URL, err)
			}
			return a, err
		}
		if again < 0 || try == serverTries || ctx.Err() != nil {
			return nil, fmt.Errorf("question %d: %s: %w", q.ID, s.URL, err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(max(wait, again)):
		}
		wait *= 2
	}
}

// How often a request is sent, and the first wait between two attempts.
const (
	serverTries = 8
	serverWait  = 200 * time.Millisecond
)

// maxServerReply is the most bytes of a reply.
const maxServerReply = 16 << 20

// post sends a request. again is how long to wait before trying again after a failure; it is
// negative if that would not help.
func (s *Server) post(
	ctx context.Context,
	body []byte,
) (_ *chatReply, again time.Duration, err error) {
	address, err := web.Chat(s.URL)
	if err != nil {
		return nil, -1, fmt.Errorf("server: %w", err)
	}
	req, err := web.JSON(ctx, http.MethodPost, address, s.Key, body)
	if err != nil {
		return nil, -1, err
	}
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		var bad *url.Error
		if errors.As(err, &bad) { // its text repeats the address
			err = bad.Err
		}
		return nil, 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxServerReply))
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode != http.StatusOK {
		text, code := failure(data)
		err := fmt.Errorf("status %s: %s", resp.Status, text)
		if slices.Contains(pictureCodes, code) {
			err = &errs.PictureError{Index: -1, Err: err}
		}
		return nil, retryAfter(resp), err
	}
	var reply chatReply
	if err := json.Unmarshal(data, &reply); err != nil {
		return nil, -1, fmt.Errorf("got %.80q, want a chat completion", data)
	}
	return &reply, 0, nil
}

// retryAfter returns how long to wait after a refusal, negative if waiting does not help.
func retryAfter(resp *http.Response) time.Duration {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < 500 {
		return -1
	}
	if wait := web.Pause(resp.Header); wait <= time.Hour {
		return wait
	}
	return 0
}

// pictureCodes are OpenAI's codes of errors about a picture's content.
var pictureCodes = []string{
	"empty_image_file", "image_file_too_large", "image_parse_error", "image_too_large",
	"image_too_small", "invalid_image", "invalid_image_format", "unsupported_image_media_type",
}

// failure returns the message and the code in the body of a refusal.
func failure(data []byte) (text, code string) {
	var body struct {
		Error struct {
			Message string
			Code    any // a number of some servers
		}
	}
	if json.Unmarshal(data, &body) == nil && body.Error.Message != "" {
		code, _ = body.Error.Code.(string)
		return body.Error.Message, code
	}
	return fmt.Sprintf("%.80q", data), ""
}

// answer reads a reply.
func (s *Server) answer(r *chatReply) (*Answer, error) {
	if len(r.Choices) == 0 {
		return nil, errors.New("a reply without an answer")
	}
	if len(s.Reduction) > 0 && r.Restore == nil {
		return nil, errors.New(
			"a reply without a reduction, want a server of this project, or " + "no reduction")
	}
	own := r.Restore
	if own == nil {
		own = new(api.Extension)
	}
	a := answerOf(api.Report(own, &r.Timings))
	c := r.Choices[0]
	a.Text, a.Finish = c.Message.Content, c.Finish
	a.Prompt, a.Cached, a.Tokens = r.Usage.Prompt, r.Usage.Details.Cached, r.Usage.Tokens
	return &a, nil
}
