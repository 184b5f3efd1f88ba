// Package methods turns a picture's N visual tokens into n: it keeps some by a published criterion,
// merges the others into distinctive anchors, and gives each of the n a position and a size, the
// number of patches that it stands for (RESTORE, Eqs. 3-8).
//
// Every method is one file and one line of the table in registry.go. A method sees a [reduce.Input]
// and never the model. Its result is a [reduce.Reduction], plain data that can be checked, drawn,
// serialised and cached. [Options] are the user's choices; [Resolve] checks them for a picture and
// sets the defaults; [Reduce] computes.
//
// Notation: N tokens before, n after, X [N, C] their features after the projector, C the cosine
// matrix, R a token's density (row sum of C), s a row's size. Indices are 0-based and count the
// picture's tokens in raster order. Among equal values the lower list position always wins. A row
// of zeros has cosine 0 with every row.
package methods
