// Package reduce has the types that pass between a program and the methods that reduce a picture's
// visual tokens: the data that a method reads of a picture ([Input]), the result ([Reduction]) with
// all its options ([Resolved]), and a method's description ([Method]) with its parameters
// ([Parameter]). It computes nothing. Package restore asks questions about pictures, lists the
// methods, and registers methods of your own.
//
// A method of your own is a [Criterion]: it keeps k of the tokens of an [Input]. RESTORE works on
// top of it as on any other method, and merges the tokens that it does not keep.
//
// Notation: N tokens before the reduction, n after it. X [N, C] are the features after the
// projector. A row's size s is the number of tokens that it stands for. Matrices are row-major.
// Indices count the picture's tokens from 0 in raster order. Of equal values, the first in the list
// wins.
package reduce
