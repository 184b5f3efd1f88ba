package folder

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/checkpoint"
	"github.com/restore-vlm/restore/internal/checkpoint/torch"
)

// The files that may hold the weights, in search order: one file, or an index that names several.
const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
	torchFile  = "pytorch_model.bin"
	torchIndex = "pytorch_model.bin.index.json"
)

// adapterFile is the file of an adapter that peft saved. Transformers adds the adapter to a model
// with this file, also if the folder has all weights.
const adapterFile = "adapter_config.json"

// Weights adds the folder's weights to s, under the files' names, and the files.
func (f *Folder) Weights(s *checkpoint.Store) error {
	s.Weights = map[string]*checkpoint.Weight{}
	if ok, err := exists(f.fsys, adapterFile); err != nil {
		return err
	} else if ok {
		return checkpoint.As(errs.ErrUnsupported, fmt.Errorf(
			"%s: an adapter that is not merged, want the merged model (merge_and_unload, then "+
				"save)", adapterFile))
	}
	for _, name := range []string{singleFile, indexFile, torchFile, torchIndex} {
		ok, err := exists(f.fsys, name)
		switch {
		case err != nil:
			return err
		case !ok:
			continue
		case strings.HasSuffix(name, ".json"):
			return f.shards(s, name)
		}
		s.Weights, err = f.weightFile(s, name)
		return err
	}
	return checkpoint.As(errs.ErrNotFound, fmt.Errorf(
		"no weights: %s, want %s, or %s with its shards, or %s", f.contents(), singleFile,
		indexFile, torchFile))
}

// weightFile parses one file of weights and keeps its bytes in s.
func (f *Folder) weightFile(
	s *checkpoint.Store,
	name string,
) (map[string]*checkpoint.Weight, error) {
	mem, err := f.load(name)
	if err != nil {
		return nil, err
	}
	f.note(name)
	s.Maps = append(s.Maps, mem)
	var weights map[string]*checkpoint.Weight
	if strings.HasSuffix(name, ".bin") {
		weights, err = torch.Read(mem.Data)
	} else {
		weights, err = modelWeights(mem.Data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return weights, nil
}

// Safetensors returns the tensors of a safetensors file.
func Safetensors(b []byte) (map[string]*checkpoint.Weight, error) {
	file, err := checkpoint.ParseSafetensors(b)
	if err != nil {
		return nil, err
	}
	return tensors(file), nil
}

func tensors(file *checkpoint.File) map[string]*checkpoint.Weight {
	weights := make(map[string]*checkpoint.Weight, len(file.Tensors))
	for name, t := range file.Tensors {
		weights[name] = &checkpoint.Weight{Tensor: *t}
	}
	return weights
}

// modelWeights returns the weights of a model's safetensors file. MLX, which names itself in its
// files, has the channels of a convolution's window last.
func modelWeights(b []byte) (map[string]*checkpoint.Weight, error) {
	file, err := checkpoint.ParseSafetensors(b)
	if err != nil {
		return nil, err
	}
	weights := tensors(file)
	if file.Metadata["format"] == "mlx" {
		for name, w := range weights {
			if len(w.Shape) >= 4 {
				weights[name] = channelsFirst(w)
			}
		}
	}
	return weights, nil
}

// channelsFirst returns a convolution [out, window…, channels] as [out, channels, window…].
func channelsFirst(w *checkpoint.Weight) *checkpoint.Weight {
	axes := len(w.Shape)
	channels := w.Shape[axes-1]
	out := &checkpoint.Weight{Raw: [][]byte{w.Data}}
	out.DType = w.DType
	out.Shape = slices.Insert(slices.Clone(w.Shape[:axes-1]), 1, channels)
	each := 1 // numbers of an output
	for _, n := range w.Shape[1:] {
		each *= n
	}
	out.Read = func(dst []float32, at int) error {
		row, window := make([]float32, each), each/max(1, channels)
		for len(dst) > 0 {
			if err := w.Floats(row, at/each*each); err != nil {
				return err
			}
			first := at % each
			n := min(each-first, len(dst))
			for i := range n {
				channel, place := (first+i)/window, (first+i)%window
				dst[i] = row[place*channels+channel]
			}
			dst, at = dst[n:], at+n
		}
		return nil
	}
	return out
}

// shards adds the weights of the files in index. Index and shards must agree. For a tensor that is
// in two shards, the index decides which copy is used.
func (f *Folder) shards(s *checkpoint.Store, index string) error {
	raw, _, err := f.File(index)
	if err != nil {
		return err
	}
	weightMap, err := parseIndex(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", index, err)
	}
	shards := slices.Compact(slices.Sorted(maps.Values(weightMap)))
	for _, shard := range shards {
		if ok, err := exists(f.fsys, shard); err != nil {
			return err
		} else if !ok {
			return checkpoint.As(errs.ErrNotFound, fmt.Errorf(
				"%s: shard %s missing (incomplete download?)", index, shard))
		}
	}
	files := make(map[string]map[string]*checkpoint.Weight, len(shards))
	for _, shard := range shards {
		if files[shard], err = f.weightFile(s, shard); err != nil {
			return err
		}
	}
	var problems []string
	for name, shard := range weightMap {
		t, ok := files[shard][name]
		if !ok {
			problems = append(problems, fmt.Sprintf("tensor %q is not in %s", name, shard))
			continue
		}
		s.Weights[name] = t
	}
	for _, shard := range shards {
		for name, t := range files[shard] {
			of, ok := weightMap[name]
			switch {
			case !ok:
				problems = append(problems,
					fmt.Sprintf("tensor %q of %s is not in the index", name, shard))
			case of != shard && files[of][name] != nil && !t.Same(files[of][name]):
				problems = append(problems,
					fmt.Sprintf("tensor %q of %s differs from that of %s", name, shard, of))
			}
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return checkpoint.As(errs.ErrDamaged, fmt.Errorf("%s: %s", index,
			checkpoint.List(problems, "; ")))
	}
	return nil
}

// parseIndex returns the weight map of an index: the file of every tensor. File names must be
// plain, so they cannot leave the directory.
func parseIndex(raw []byte) (map[string]string, error) {
	if err := checkpoint.CheckObject(raw); err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	const key = "weight_map"
	if fields[key] == nil {
		return nil, fmt.Errorf("%s missing, want an object from tensor to file", key)
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(fields[key], &values); err != nil || len(values) == 0 {
		return nil, fmt.Errorf("%s: got %s, want an object from tensor to file", key,
			checkpoint.Excerpt(fields[key]))
	}
	files := make(map[string]string, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		var file string
		if err := json.Unmarshal(values[name], &file); err != nil {
			return nil, fmt.Errorf("%s: %q: got %s, want a file name", key, name,
				checkpoint.Excerpt(values[name]))
		}
		if !checkpoint.PlainName(file) {
			return nil, fmt.Errorf("%s: %q: got %s, want a plain file name of this directory", key,
				name, checkpoint.Excerpt(fmt.Appendf(nil, "%q", file)))
		}
		files[name] = file
	}
	return files, nil
}
