// Package spell finds the name that was probably meant by a misspelt word.
package spell

import (
	"slices"
	"strings"
)

// Nearest returns the name that word is probably a misspelling of; "" if none is near. Single
// letters are misspellings of nothing, and nothing is one of them.
func Nearest(word string, names []string) string {
	if word = strings.ToLower(word); len(word) < 2 {
		return ""
	}
	best, at := max(1, len(word)/3)+1, ""
	for _, name := range names {
		if d := Distance(word, strings.ToLower(name), best); d < best && len(name) > 1 {
			best, at = d, name
		}
	}
	if at == "" && len(word) > 2 { // a prefix of only one name, or an extension of one
		begins := func(name string) bool {
			return strings.HasPrefix(name, word) || len(name) > 3 && strings.HasPrefix(word, name)
		}
		if i := slices.IndexFunc(names, begins); i >= 0 &&
			!slices.ContainsFunc(names[i+1:], begins) {
			at = names[i]
		}
	}
	return at
}

// longest is the length in bytes from which on words are not compared.
const longest = 64

// Distance returns the number of letters to insert, delete, replace, or swap with their neighbour
// to turn a into b. It stops counting above most, and does not count if a word is too long.
func Distance(a, b string, most int) int {
	if len(a) > longest || len(b) > longest {
		return most
	}
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			differ := 0
			if x[i-1] != y[j-1] {
				differ = 1
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+differ)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return min(most, rows[len(x)][len(y)])
}
