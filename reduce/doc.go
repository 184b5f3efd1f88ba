// Package reduce holds what passes between a program and the methods that reduce a
// picture's visual tokens: what is asked for ([Options]), what a method sees of a
// picture ([Input]), what became of the picture ([Reduction]), and what a method says
// of itself ([Method]). It computes nothing: package restore asks questions about
// pictures, lists the methods, and adds methods of your own.
//
// A method of your own is a [Criterion]: it keeps k of the tokens of an [Input]. RESTORE
// then works over it as over any other, merging what it does not keep.
//
// Notation: N tokens before, n after; X [N, C] their features after the projector; a
// row's size s is the number of tokens that it stands for. Indices are 0-based and count
// the picture's tokens in raster order. Among equal values the lower position in a list
// wins.
package reduce
