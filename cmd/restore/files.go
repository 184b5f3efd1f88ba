package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/restore-vlm/restore/imageproc"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Limits in bytes on what is read whole into memory; a picture's pixels have a limit of their own.
const (
	maxPictureBytes = 1 << 30
	maxTextBytes    = 256 << 20
)

// readFile reads a whole file of at most limit bytes. Its errors name the path once.
func readFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, pathError(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, pathError(path, err)
	case info.IsDir():
		return nil, fmt.Errorf("%s: is a folder, want a file", path)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s: too large, got %d bytes, want at most %d", path, info.Size(), limit)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return nil, pathError(path, err)
	case int64(len(b)) > limit:
		return nil, fmt.Errorf("%s: too large, got more than %d bytes", path, limit)
	}
	return b, nil
}

// pathError words what an operating system says about a path the way all our errors are worded.
func pathError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: no such file or folder", path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied", path)
	case strings.Contains(err.Error(), path):
		return err
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// writeFile lets write fill a file that appears under its name only when complete; "" and "-" are out.
func writeFile(path string, out io.Writer, write func(io.Writer) error) (err error) {
	if path == "" || path == "-" {
		return write(out)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return pathError(filepath.Dir(path), err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return pathError(path, err)
	}
	if err := f.Sync(); err != nil {
		return pathError(path, err)
	}
	if err := f.Close(); err != nil {
		return pathError(path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return pathError(path, err)
	}
	return nil
}

// readJSON decodes a file that holds exactly one JSON value.
func readJSON(path string, v any) error {
	b, err := readFile(path, maxTextBytes)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%s: not the JSON that is wanted here: %w", path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%s: more than one JSON value, want one", path)
	}
	return nil
}

// pictureFlags say how pictures are read.
type pictureFlags struct {
	maxPixels int64
	exif      bool
}

func (p *pictureFlags) add(fs *pflag.FlagSet) {
	fs.Int64Var(&p.maxPixels, "max-image-pixels", 64_000_000, "refuse pictures of more than `N` pixels")
	fs.BoolVar(&p.exif, "exif", true, "turn pictures as their EXIF orientation says")
}

// videoFlags say which frames make a video.
type videoFlags struct {
	frames []string
	fps    float64
	fs     *pflag.FlagSet
}

func (v *videoFlags) add(fs *pflag.FlagSet) {
	v.fs = fs
	fs.StringArrayVar(&v.frames, "video-frames", nil, "picture `file`s of a video's frames in order, before the pictures: all behind the flag, or the flag repeated")
	fs.Float64Var(&v.fps, "fps", 2, "the frames are so many a `second`")
}

// args takes the files that stand behind --video-frames.
func (v *videoFlags) args(cmd *cobra.Command, args []string) error {
	switch n := len(v.frames); {
	case len(args) == 0:
		return nil
	case n == 0 || !onCommandLine(cmd.Flags().Lookup("video-frames")):
		return noArgs(cmd, args)
	case n > 1:
		return usagef("--video-frames: repeated, and %q without it, want one or the other", args[0])
	}
	v.frames = append(v.frames, args...)
	return nil
}

// load reads the frames; nil without any.
func (v *videoFlags) load(p *pictureFlags) (*imageproc.Video, error) {
	switch {
	case len(v.frames) == 0 && onCommandLine(v.fs.Lookup("fps")):
		return nil, usagef("--fps: has no use without --video-frames, got %v", v.fps)
	case len(v.frames) == 0:
		return nil, nil
	case !(v.fps > 0):
		return nil, usagef("--fps: out of range, got %v, want more than 0", v.fps)
	}
	frames, err := p.loadAll(v.frames)
	if err != nil {
		return nil, err
	}
	return &imageproc.Video{Frames: frames, FPS: v.fps}, nil
}

// name is what reports call the video.
func (v *videoFlags) name() string { return strings.Join(v.frames, " ") }

// load reads one picture.
func (p *pictureFlags) load(path string) (*imageproc.Picture, error) {
	if p.maxPixels < 1 {
		return nil, usagef("--max-image-pixels: out of range, got %d, want at least 1", p.maxPixels)
	}
	b, err := readFile(path, maxPictureBytes)
	if err != nil {
		return nil, err
	}
	return imageproc.Decode(b, path, imageproc.DecodeOptions{EXIF: p.exif, Limits: imageproc.Limits{MaxPixels: p.maxPixels, MaxBytes: maxPictureBytes}})
}

// loadAll reads the pictures in order.
func (p *pictureFlags) loadAll(paths []string) ([]*imageproc.Picture, error) {
	pics := make([]*imageproc.Picture, len(paths))
	for i, path := range paths {
		pic, err := p.load(path)
		if err != nil {
			return nil, err
		}
		pics[i] = pic
	}
	return pics, nil
}
