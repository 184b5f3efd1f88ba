package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/restore-vlm/restore/internal/methods"
	"github.com/restore-vlm/restore/internal/model"
	"github.com/restore-vlm/restore/internal/tokenizer"
	"github.com/restore-vlm/restore/reduce"
)

// A method after the encoder may read the text of the prompt, or its question alone
// ([reduce.PromptText], [reduce.QuestionText]). Its choice holds for that text only. So caches of
// features keep the encoder's output of such a picture, the same for every text, and the text is
// part of the key of what the decoder makes of the picture.

// asks reports whether the picture's method reads a text after the encoder.
func (p *picture) asks() bool {
	return p.text != "" && (p.late != nil || p.plan.BeforeDecoder().NVis != p.plan.N)
}

// setWords gives the pictures of a prompt the text that their methods read. ids is the whole
// prompt.
func (e *Engine) setWords(d *dialogue, ids []int32, salt string) error {
	for _, p := range d.pics {
		if !p.asks() {
			continue
		}
		p.words = nil
		if p.text == reduce.QuestionText && d.tokens == nil {
			var err error
			if p.words, err = e.questionIDs(d.question); err != nil {
				return err
			}
		} else {
			if _, framed := e.m.(model.Framed); framed && e.tok == nil {
				return e.lacks(&e.ck.Parts().Tokenizer,
					"which a method needs that reads the text around pictures")
			}
			for _, id := range ids {
				if !e.visualToken(id) && !e.markToken(id) {
					p.words = append(p.words, id)
				}
			}
		}
		key := e.featuresKey(p, salt)
		p.id = keyOf([]byte("text"), key[:], e.how(p), int32Bytes(p.words))
	}
	return nil
}

// how describes the reduction of p.
func (e *Engine) how(p *picture) []byte {
	var how []byte
	if p.late != nil {
		how, _ = json.Marshal(p.late)
	} else {
		how, _ = json.Marshal(p.plan.Resolved) // numbers, texts and lists of them
	}
	if p.draws {
		how = fmt.Append(how, " picture ", p.index)
	}
	return how
}

// questionIDs returns the tokens of a question alone.
func (e *Engine) questionIDs(question string) ([]int32, error) {
	return e.tok.EncodeSegments([]tokenizer.Segment{
		{Text: methods.BareQuestion(question), User: true},
	}, tokenizer.EncodeOptions{})
}

// markToken reports whether id stands next to a picture and says only that there is one.
func (e *Engine) markToken(id int32) bool {
	switch m := e.m.(type) {
	case model.Marked:
		before, after := m.Marks()
		return id >= 0 && (id == before || id == after)
	case model.Framed:
		text, _ := e.tok.Token(id)
		_, before, after := m.Frame()
		return text != "" && (text == strings.TrimSpace(before) || text == strings.TrimSpace(after))
	}
	return false
}

// textOf returns the embeddings of the text that p's method reads, which may have no rows.
func (e *Engine) textOf(p *picture) ([]float32, error) {
	text := make([]float32, len(p.words)*e.shape.Hidden)
	return text, e.m.Decoder().Embed(text, p.words)
}

func int32Bytes(v []int32) []byte {
	out := make([]byte, 0, 4*len(v))
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, uint32(x))
	}
	return out
}
