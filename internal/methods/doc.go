// Package reduce turns a picture's N visual tokens into n: it keeps some by a published criterion,
// merges the others into distinctive anchors, and says for each of the n where it sits and how many
// patches it stands for (RESTORE, Eqs. 3-8).
//
// Every method is one file and one line of the table in registry.go. A method sees an [Input] and
// never the model; what it returns is a [Reduction], which is plain data: it can be checked, drawn,
// serialised and cached. [Options] holds what a user asked for, [Options.Resolve] checks it against
// a token count and fills in the rest, [Reduce] does the work.
//
// Notation: N tokens before, n after, X [N, C] their features after the projector, C the cosine
// matrix, R a token's density (row sum of C), s a row's size. Indices are 0-based and count the
// picture's tokens in raster order. Among equal values the lower list position wins, always; a row
// of zeros has cosine 0 with every row.
package methods
