package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// llamaSettings are the keys of a tokenizer_config.json that control how a tokenizer.model is used,
// with the defaults of transformers' LlamaTokenizer.
type llamaSettings struct {
	AddBOS  bool              `json:"add_bos_token"`
	AddEOS  bool              `json:"add_eos_token"`
	Prefix  *bool             `json:"add_prefix_space"`
	Legacy  *bool             `json:"legacy"`
	BOS     json.RawMessage   `json:"bos_token"`
	EOS     json.RawMessage   `json:"eos_token"`
	Unknown json.RawMessage   `json:"unk_token"`
	Padding json.RawMessage   `json:"pad_token"`
	Others  []json.RawMessage `json:"additional_special_tokens"`
	Added   addedByID         `json:"added_tokens_decoder"`
}

// addedByID are tokens that a tokenizer_config.json adds to the vocabulary.
type addedByID map[string]addedToken

// list returns the tokens in the order of their ids.
func (m addedByID) list() ([]addedToken, error) {
	list := make([]addedToken, 0, len(m))
	for key, a := range m {
		id, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("added_tokens_decoder: %.40q is not an id", key)
		}
		a.ID = int32(id)
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b addedToken) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Content, b.Content))
	})
	return list, nil
}

// Open reads data, which is a tokenizer.json, or a tokenizer.model used with settings. The tokens
// of added_tokens_decoder in settings are added to a tokenizer.json that lacks them.
func Open(data, settings []byte) (*Tokenizer, error) {
	text := bytes.TrimLeft(data, " \t\r\n")
	if key := byte(modelPieces<<3 | wireBytes); len(data) > 0 && data[0] == key &&
		!bytes.HasPrefix(text, []byte("{")) {
		return ParseModel(data, settings)
	}
	if settings == nil {
		return Parse(data)
	}
	var set struct {
		Added addedByID `json:"added_tokens_decoder"`
	}
	if err := json.Unmarshal(settings, &set); err != nil {
		return nil, fmt.Errorf("tokenizer: settings: %w", err)
	}
	more, err := set.Added.list()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: settings: %w", err)
	}
	return parse(data, more)
}

// ParseModel reads a tokenizer.model with the settings of a tokenizer_config.json and uses them
// like transformers' LlamaTokenizer. Special tokens in the text are recognised. With "legacy",
// every run of text between them gets a space in front, without it only the first run. A nil config
// means SentencePiece without settings: no tokens are recognised in the text, and AddSpecial puts
// <s> in front.
func ParseModel(model, config []byte) (*Tokenizer, error) {
	s, err := ReadSentencePiece(model)
	if err != nil {
		return nil, err
	}
	set, err := s.settings(config)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{display: map[int32]string{}, addedIDs: map[string]int32{}}
	t.pieces = newPieces(s)
	t.everyRun = set.everyRun()
	byText := make(map[string]int32, len(s.Pieces))
	for i, p := range s.Pieces {
		t.setToken(int32(i), p.Text)
		byText[p.Text] = int32(i)
		t.tokens[i].special = p.Kind == ControlPiece || p.Kind == UnknownPiece
	}
	t.model.vocab = byText
	if config != nil {
		if err := t.addSettings(set); err != nil {
			return nil, fmt.Errorf("tokenizer: settings: %w", err)
		}
	}
	if id, ok := t.TokenID(TokenText(set.BOS)); ok && set.AddBOS {
		t.around = append(t.around, templatePart{ids: []int32{id}})
	}
	t.around = append(t.around, templatePart{sequence: true})
	if id, ok := t.TokenID(TokenText(set.EOS)); ok && set.AddEOS {
		t.around = append(t.around, templatePart{ids: []int32{id}})
	}
	t.decoder = decoder{
		{
			kind:    decodeReplace,
			find:    literal(blank),
			content: " ",
		}, {kind: decodeByteFallback}, {kind: decodeFuse},
	}
	if s.DummyPrefix {
		t.decoder = append(t.decoder, decodeStep{kind: decodeStrip, content: " ", start: 1})
	}
	return t, nil
}

// settings reads a tokenizer_config.json, which may be nil, and applies it to s.
func (s *SentencePiece) settings(config []byte) (*llamaSettings, error) {
	set := &llamaSettings{
		AddBOS:  true,
		BOS:     json.RawMessage(`"<s>"`),
		EOS:     json.RawMessage(`"</s>"`),
		Unknown: json.RawMessage(`"<unk>"`),
	}
	if config != nil {
		if err := json.Unmarshal(config, set); err != nil {
			return nil, fmt.Errorf("tokenizer: settings: %w", err)
		}
	}
	prefix := set.Prefix == nil || *set.Prefix
	// Without "legacy", transformers adds the space even if the model does not.
	s.DummyPrefix = prefix && (s.DummyPrefix || config != nil && !set.everyRun())
	return set, nil
}

// everyRun reports whether every run of text between added tokens, not only the first, begins with
// a space.
func (set *llamaSettings) everyRun() bool { return set.Legacy == nil || *set.Legacy }

// named returns the special tokens that the settings name.
func (set *llamaSettings) named() []json.RawMessage {
	return append([]json.RawMessage{set.BOS, set.EOS, set.Unknown, set.Padding}, set.Others...)
}

// addedTokens returns the tokens to recognise in a text. id returns the id of a token of the model.
func (set *llamaSettings) addedTokens(id func(text string) (int32, bool)) ([]addedToken, error) {
	list, err := set.Added.list()
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	for i := range list {
		list[i].Normalized = false // pieces are compared without normalisation
		at[list[i].Content] = i
	}
	for _, raw := range set.named() {
		text := TokenText(raw)
		if i, ok := at[text]; ok {
			list[i].Special = true
		} else if n, ok := id(text); ok {
			at[text] = len(list)
			list = append(list, addedToken{ID: n, Content: text, Special: true})
		}
	}
	return list, nil
}

// addSettings adds the tokens to recognise in a text.
func (t *Tokenizer) addSettings(set *llamaSettings) error {
	list, err := set.addedTokens(t.TokenID)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, raw := range set.named() {
		named[TokenText(raw)] = true
	}
	t.named = map[int32]bool{}
	for _, a := range list {
		if named[a.Content] {
			t.named[a.ID] = true
		}
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return t.addTokens(raw, nil)
}

// TokenText returns the text of a special token in a tokenizer_config.json, which is a string or an
// object; "" of anything else.
func TokenText(raw json.RawMessage) string {
	var s string
	var o struct{ Content string }
	if json.Unmarshal(raw, &s) != nil && json.Unmarshal(raw, &o) == nil {
		s = o.Content
	}
	return s
}

// Place makes t recognise text, outside of users' text, as the place of a picture: it becomes id,
// and the texts before and after it are encoded separately. It is for models without a picture
// token; id must not be in the vocabulary.
func (t *Tokenizer) Place(text string, id int32) {
	t.place = matcher{}
	t.place.add(text, &addedToken{ID: id, Content: text, Special: true})
	t.placeID, t.placeText = id, text
}
