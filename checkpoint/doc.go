// Package checkpoint reads model files: safetensors, and directories in the form
// that Hugging Face repositories have.
//
// A directory holds config.json and either model.safetensors or
// model.safetensors.index.json with the shards it names. A folder of the hub's
// cache (models--org--name) and one of its snapshots are directories too. Open
// maps weight files into memory, so opening costs little and pages that nobody
// reads are never loaded; OpenFS reads them from an fs.FS such as embed.FS.
//
// Every byte read here may come from a stranger. Lengths are checked against the
// file's size before anything is allocated, names in an index cannot leave the
// directory, and a file whose parts contradict each other is refused with an
// error that names file, tensor or key. What a model needs of the tensors (names,
// shapes, types) is not decided here.
package checkpoint
