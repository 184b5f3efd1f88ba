package hf

import (
	"encoding/json"
	"fmt"

	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/folder"
	"github.com/restore-vlm/restore/internal/checkpoint/quantised"
)

// quantisation is the key of config.json that describes quantised weights.
const quantisation = "quantization_config"

// older are the files that described quantisation before config.json did, with the method of a file
// that names none.
var older = []struct{ file, method string }{
	{"quantize_config.json", "gptq"},
	{"quant_config.json", "awq"},
}

// unpackMLX adds the weights that MLX quantised to s and removes the quantisation from the
// configuration.
func unpackMLX(s *checkpoint.Store) error {
	const key = "quantization"
	var config map[string]json.RawMessage
	if err := json.Unmarshal(s.Docs.Config.Data, &config); err != nil {
		return fmt.Errorf("%s: %w", s.Docs.Config.From, err)
	}
	how := config[key]
	if how == nil || string(how) == "null" {
		return nil
	}
	if err := quantised.UnpackMLX(s, how); err != nil {
		return fmt.Errorf("%s: %w", s.Docs.Config.From, err)
	}
	delete(config, key)
	delete(config, quantisation) // a copy
	var err error
	s.Docs.Config.Data, err = json.Marshal(config)
	return err
}

// unquantise adds the weights that are quantised in the files to s and removes the quantisation
// from the configuration, which then describes only the model. family is nil if it is not known.
func unquantise(f *folder.Folder, s *checkpoint.Store, family *checkpoint.Family) error {
	var config map[string]json.RawMessage
	if err := json.Unmarshal(s.Docs.Config.Data, &config); err != nil {
		return fmt.Errorf("%s: %w", s.Docs.Config.From, err)
	}
	how, from := config[quantisation], s.Docs.Config.From
	delete(config, quantisation)
	var text map[string]json.RawMessage
	if json.Unmarshal(config["text_config"], &text) == nil && text[quantisation] != nil {
		if how == nil {
			how = text[quantisation]
		}
		delete(text, quantisation)
		config["text_config"], _ = json.Marshal(text) // values are as read
	}
	for _, o := range older {
		if how != nil {
			break
		}
		data, ok, err := f.File(o.file)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := checkpoint.CheckObject(data); err != nil {
			return fmt.Errorf("%s: %w", o.file, err)
		}
		var fields map[string]any
		if err := json.Unmarshal(data, &fields); err != nil {
			return fmt.Errorf("%s: %w", o.file, err)
		}
		if fields["quant_method"] == nil {
			fields["quant_method"] = o.method
		}
		how, _ = json.Marshal(fields)
		from = o.file
	}
	if how == nil || string(how) == "null" {
		return nil
	}
	bias := func(module string) bool {
		return family != nil && family.Bias != nil && family.Bias(module)
	}
	if err := quantised.Unpack(s, how, bias); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	var err error
	s.Docs.Config.Data, err = json.Marshal(config)
	return err
}
