package tokenizer

import "unicode/utf8"

// byteRune is the GPT-2 table from bytes to printable characters: '!'…'~', '¡'…'¬' and '®'…'ÿ' map
// to themselves, the other 68 bytes to U+0100 onwards in order. runeByte is its inverse, with -1
// for other characters.
var byteRune, runeByte = byteLevelTables()

func byteLevelTables() (to [256]rune, from [256 + 68]int16) {
	for i := range from {
		from[i] = -1
	}
	next := rune(256)
	for b := range to {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			r = next
			next++
		}
		to[b] = r
		from[r] = int16(b)
	}
	return to, from
}

// byteLevelChars writes each byte of the text as its character of the table.
func byteLevelChars(p *piece) error {
	return p.expand(func(dst []byte, r rune) []byte {
		var utf [utf8.UTFMax]byte
		for _, b := range utf[:utf8.EncodeRune(utf[:], r)] {
			dst = utf8.AppendRune(dst, byteRune[b])
		}
		return dst
	})
}

// byteLevelBytes appends the bytes for which token stands. A token with a character outside the
// table stands for its own UTF-8.
func byteLevelBytes(dst []byte, token string) []byte {
	n := len(dst)
	for _, r := range token {
		if int(r) >= len(runeByte) || runeByte[r] < 0 {
			return append(dst[:n], token...)
		}
		dst = append(dst, byte(runeByte[r]))
	}
	return dst
}
