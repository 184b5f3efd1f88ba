// Package checkpoint is the interface between a model's files and the rest of the program. A
// [Bundle] has the configuration, weights, tokenizer, chat template and picture processor of a
// model under Hugging Face's names, in files of any format. Each package below it reads one format;
// package all opens any of them.
//
// # A new format
//
// A format is a package with one function that fills a [Store]:
//
//  1. What: the name, and the absolute paths of all files that it read.
//  2. Docs: each document in the form that a Hugging Face folder has, made from
//     metadata where the format has no such file. Config.From and the others say
//     where it is from, for errors.
//  3. Weights: every tensor under Hugging Face's name, with shapes as there,
//     outermost axis first. A tensor that lies in the file as F32, F16 or BF16, in
//     that order of rows and columns, is a view of the file's bytes (Data). Any
//     other has Read, which computes the exact values of a range, DType, the type in
//     which it is kept when nobody asks for another, Stored, the file's name of its
//     type, and Raw, its bytes in the file.
//  4. Seal.
//
// Then one line in package all tells the format from the first bytes of the file or
// from the folder's config.json. Names that the tables of the format do not have are
// left as they are: the model's constructor lists what is missing and what is unused.
//
// Every byte may come from a stranger. Lengths are checked against the file's size
// before anything is allocated, names in an index cannot leave the folder, and a file
// whose parts contradict each other is refused with an error that names file, tensor
// or key. What a model needs of the tensors (names, shapes, types) is not decided here.
package checkpoint
