package scenebench

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/scene"
	"github.com/restore-vlm/restore/internal/textfile"
)

// DrawnPictures is the usual number of drawn pictures: about 1,400 questions, ±2 points for All.
const DrawnPictures = 120

// Bounds on what is read of a data folder.
const (
	maxQuestionsBytes = 64 << 20
	maxPictureBytes   = 256 << 20
)

// CalibrationSeed is the first seed of pictures that calibration may read: neither trained on nor
// evaluated.
const CalibrationSeed = scene.EvalSeed - 1_000_000

// DrawnFrom yields n pictures of package scene with their scored questions: of consecutive seeds,
// the first of which is first. Evaluations begin at scene.EvalSeed.
func DrawnFrom(first int64, n int) iter.Seq2[Item, error] { return DrawnIn(scene.Plain, first, n) }

// DrawnIn is DrawnFrom in a world.
func DrawnIn(world scene.World, first int64, n int) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for seed := first; seed < first+int64(n); seed++ {
			s := scene.NewIn(world, seed)
			im := s.Image()
			pic := &imageproc.Picture{
				Width: scene.Size, Height: scene.Size,
				Pix: make([]byte, 0, 3*scene.Size*scene.Size), Format: "PNG",
			}
			for p := range slices.Chunk(im.Pix, 4) {
				pic.Pix = append(pic.Pix, p[:3]...)
			}
			qs := slices.DeleteFunc(s.Questions(), func(q scene.Question) bool {
				return q.Task == scene.Describe
			})
			if !yield(Item{"seed " + strconv.FormatInt(seed, 10), pic, qs}, nil) {
				return
			}
		}
	}
}

// Folder is an evaluation set on disk: questions.json and pictures/ next to it.
type Folder struct {
	dir  string
	rows []row
}

// row is one entry of questions.json; fields not named here are ignored.
type row struct {
	Picture   string           `json:"picture"`
	Questions []scene.Question `json:"questions"`
}

// OpenFolder reads dir/questions.json: an array of {"picture": file in dir/pictures, "questions":
// [{"task", "question", "answer"}, ...]}.
func OpenFolder(dir string) (*Folder, error) {
	f, err := os.Open(filepath.Join(dir, "questions.json"))
	if err != nil {
		return nil, fmt.Errorf("eval: %w", err)
	}
	defer f.Close()
	data, err := readText(f, maxQuestionsBytes)
	if err != nil {
		return nil, fmt.Errorf("eval: %s: %w", f.Name(), err)
	}
	rows, err := parseQuestions(data)
	if err != nil {
		return nil, fmt.Errorf("eval: %s: %w", f.Name(), err)
	}
	return &Folder{dir, rows}, nil
}

func parseQuestions(data []byte) ([]row, error) {
	var rows []row
	if err := json.Unmarshal(data, &rows); err != nil {
		return nil, fmt.Errorf("want an array of pictures with questions: %w", err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("holds no pictures")
	}
	for i, r := range rows {
		if !fs.ValidPath(r.Picture) || r.Picture == "." {
			return nil, fmt.Errorf("entry %d: picture %q, want a file name inside pictures/", i,
				r.Picture)
		}
		for j, q := range r.Questions {
			if q.Task == "" || q.Text == "" || q.Answer == "" {
				return nil, fmt.Errorf("entry %d (%s): question %d needs task, question and answer",
					i, r.Picture, j)
			}
			if q.Task == All || q.Task == VsFull {
				return nil, fmt.Errorf("entry %d (%s): task %q is the name of a total", i,
					r.Picture, q.Task)
			}
		}
	}
	return rows, nil
}

// Len returns the number of pictures.
func (f *Folder) Len() int { return len(f.rows) }

// Items yields the first n pictures, read as they are needed. A picture that cannot be read or
// decoded ends it.
func (f *Folder) Items(n int) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		root, err := os.OpenRoot(filepath.Join(f.dir, "pictures"))
		if err != nil {
			yield(Item{}, fmt.Errorf("eval: %w", err))
			return
		}
		defer root.Close()
		for _, r := range f.rows[:min(n, len(f.rows))] {
			item := Item{Name: r.Picture, Questions: r.Questions}
			if item.Picture, err = readPicture(root, r.Picture); err != nil {
				yield(Item{}, fmt.Errorf("eval: %w", err))
				return
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}

func readPicture(root *os.Root, name string) (*imageproc.Picture, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := readBounded(f, maxPictureBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return imageproc.Decode(data, name, imageproc.DecodeOptions{EXIF: true})
}

// readText reads a text file of at most limit bytes.
func readText(r io.Reader, limit int64) ([]byte, error) {
	data, err := readBounded(r, limit)
	if err != nil {
		return nil, err
	}
	return textfile.Bytes(data)
}

func readBounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("more than %d bytes", limit)
	}
	return data, err
}

// answersTask reports whether text could be an answer to the question at all. Only the tasks of
// package scene are known; of others any text that is not empty could be.
func answersTask(q scene.Question, text string) bool {
	switch q.Task {
	case scene.Exist, scene.Relation:
		return text == "yes" || text == "no"
	case scene.Attribute:
		return slices.Contains(scene.Colours(), text) || slices.Contains(scene.Shapes(), text)
	case scene.Where:
		for _, y := range []float64{0, scene.Size / 2, scene.Size} {
			for _, x := range []float64{0, scene.Size / 2, scene.Size} {
				if text == scene.Place(x, y) {
					return true
				}
			}
		}
		return false
	case scene.Count, scene.Text:
		n, err := strconv.Atoi(text)
		return err == nil && n >= 0 && n < 10000 && strconv.Itoa(n) == text
	}
	return text != ""
}
