// Package checkpoint is the interface between a model's files and the rest of the program. A
// [Bundle] has the configuration, weights, tokenizer, chat template and picture processor of a
// model under Hugging Face's names, in files of any format. Each package below it reads one
// [Format]; package formats opens any of them.
//
// # A new format
//
// A format is a package with a [Format], whose Open fills a [Store]:
//
//  1. What: the name of the model, and the absolute paths of all files that it read.
//  2. Docs: each document in the form of a Hugging Face folder, made from metadata if the format
//     has no such file. Config.From and the other From fields name the source, for errors.
//  3. Weights: every tensor under Hugging Face's name and with its shape, outermost axis first. A
//     tensor that the file stores as F32, F16 or BF16, in that order of rows and columns, is a view
//     of the file's bytes (Data). Any other tensor has Read, which computes the exact values of a
//     range; DType, its default type in memory; Stored, the file's name of its type; and Raw, its
//     bytes in the file.
//  4. Seal.
//
// Is recognises the format from the first bytes of the file or from the folder's config.json, and
// one line in the table of package formats makes it known. What differs between families of models
// is in the [Family] that the caller passes. Names that are in none of its tables stay unchanged:
// the model's constructor lists missing and unused weights.
//
// Files are not trusted. Lengths are checked against the file's size before memory is allocated,
// names in an index cannot leave the folder, and a file whose parts contradict each other is an
// error that names file, tensor or key. This package does not check whether the tensors (names,
// shapes, types) fit the model.
package checkpoint
