package imageproc

import (
	"bytes"
	"errors"
	"fmt"
)

const supportedFormats = "PNG, JPEG, WebP, GIF, BMP, TIFF"

// signatures are the first bytes of the supported formats; '?' is any byte.
var signatures = []struct{ magic, kind string }{
	{"\x89PNG\r\n\x1a\n", "PNG"},
	{"\xff\xd8\xff", "JPEG"},
	{"GIF87a", "GIF"},
	{"GIF89a", "GIF"},
	{"RIFF????WEBP", "WebP"},
	{"BM????????????", "BMP"},
	{"II*\x00", "TIFF"},
	{"MM\x00*", "TIFF"},
}

// others are unsupported formats that are recognised for a useful error.
var others = []struct{ magic, kind string }{
	{"????ftypavi", "AVIF"},
	{"????ftyphei", "HEIC"},
	{"????ftyphev", "HEIC"},
	{"????ftypmif1", "HEIF"},
	{"????ftypmsf1", "HEIF"},
	{"\xff\x0a", "JPEG XL"},
	{"\x00\x00\x00\x0cJXL ", "JPEG XL"},
	{"\x00\x00\x00\x0cjP  ", "JPEG 2000"},
	{"\xff\x4f\xff\x51", "JPEG 2000"},
	{"II+\x00", "BigTIFF"},
	{"MM\x00+", "BigTIFF"},
	{"%PDF", "PDF"},
	{"8BPS", "PSD"},
	{"\x00\x00\x01\x00", "ICO"},
	{"qoif", "QOI"},
	{"v/1\x01", "OpenEXR"},
}

// matches reports whether data begins with magic.
func matches(data []byte, magic string) bool {
	if len(data) < len(magic) {
		return false
	}
	for i := range len(magic) {
		if magic[i] != '?' && magic[i] != data[i] {
			return false
		}
	}
	return true
}

// Recognise returns an error for a file that begins with head (a few hundred bytes are enough) if
// it is empty or of no format that Decode reads.
func Recognise(head []byte) error {
	_, err := detect(head)
	return err
}

// detect names the format of data by its first bytes; the error names what it is instead.
func detect(data []byte) (string, error) {
	if len(data) == 0 {
		return "", errors.New("file is empty")
	}
	for _, s := range signatures {
		if matches(data, s.magic) {
			return s.kind, nil
		}
	}
	for _, s := range others {
		if matches(data, s.magic) {
			return "", fmt.Errorf("%s is not supported; convert it to JPEG or PNG", s.kind)
		}
	}
	head := bytes.ToLower(bytes.TrimLeft(data[:min(len(data), 1024)], "\xef\xbb\xbf \t\r\n"))
	switch {
	case bytes.HasPrefix(head, []byte("version https://git-lfs")):
		return "", errors.New("not a picture: this is a Git LFS pointer (run git lfs pull)")
	case bytes.HasPrefix(head, []byte("<")) && bytes.Contains(head, []byte("<svg")):
		return "", errors.New("SVG is not supported; convert it to PNG or JPEG")
	case bytes.HasPrefix(head, []byte("<!doctype html")), bytes.HasPrefix(head, []byte("<html")):
		return "", errors.New("not a picture: looks like HTML (did a download fail?)")
	}
	for _, s := range signatures {
		if len(data) < len(s.magic) && matches(data, s.magic[:len(data)]) {
			return "", fmt.Errorf("%s is truncated: %d bytes", s.kind, len(data))
		}
	}
	if isText(head) {
		return "", errors.New("not a picture: looks like text; supported: " + supportedFormats)
	}
	return "", errors.New("not a picture that can be read; supported: " + supportedFormats)
}

// isText reports whether all of head is printable ASCII.
func isText(head []byte) bool {
	for _, c := range head {
		if c < ' ' && c != '\t' && c != '\r' && c != '\n' || c > '~' {
			return false
		}
	}
	return true
}
