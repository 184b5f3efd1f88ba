package scene

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// Tasks, in the order in which questions are drawn; Describe is asked once a picture and not
// scored.
const (
	Exist     = "exist"     // is there a red circle: POPE's question
	Attribute = "attribute" // shape of a colour, colour of a shape, where unique
	Where     = "where"     // in which ninth of the picture
	Relation  = "relation"  // which of two lies left, right, above or below
	Count     = "count"     // how many objects, of a shape or of a colour
	Text      = "text"      // the number on the plate
	Describe  = "describe"  // the whole picture in a sentence
)

// PerScene is the number of scored questions asked about one picture, where it allows that many.
const PerScene = 12

// relationGap is the least distance in pixels, along the axis asked about, of two objects in a
// relation question.
const relationGap = 16

// Question is one question with its only right answer.
type Question struct {
	Task   string `json:"task"`
	Text   string `json:"question"`
	Answer string `json:"answer"`
}

// Questions returns up to PerScene different questions of the six scored tasks (fewer where the
// picture allows fewer) and the description last. Every answer follows from the scene alone.
func (s *Scene) Questions() []Question {
	a := asker{s, s.rand(streamQuestions)}
	kinds := []func() (Question, bool){a.exist, a.attribute, a.where, a.relation, a.count, a.text}
	var out []Question
	for try := 0; try < 4*PerScene && len(out) < PerScene; try++ {
		q, ok := kinds[a.rng.IntN(len(kinds))]()
		if ok && !slices.ContainsFunc(out, func(p Question) bool { return p.Text == q.Text }) {
			out = append(out, q)
		}
	}
	return append(out, Question{Describe, "Describe the image.", s.Description()})
}

// Description names every object with its place, row by row and then left to right, and the number
// last.
func (s *Scene) Description() string {
	objects := slices.Clone(s.Objects)
	slices.SortStableFunc(objects, func(a, b Object) int {
		return cmp.Or(cmp.Compare(third(a.Y), third(b.Y)), cmp.Compare(third(a.X), third(b.X)),
			cmp.Compare(a.X, b.X))
	})
	var parts []string
	for _, o := range objects {
		parts = append(parts, article(o.Colour)+" "+o.Colour+" "+o.Shape+" at the "+Place(o.X, o.Y))
	}
	if s.Number != "" {
		parts = append(parts, "the number "+s.Number)
	}
	if len(parts) == 0 {
		return "Nothing."
	}
	last := len(parts) - 1
	t := parts[last]
	if last > 0 {
		t = strings.Join(parts[:last], ", ") + " and " + t
	}
	return strings.ToUpper(t[:1]) + t[1:] + "."
}

// Place names the ninth of the picture that holds the point (x, y): "top left", "center", "middle
// right".
func Place(x, y float64) string {
	row := [3]string{"top", "middle", "bottom"}[third(y)]
	col := [3]string{"left", "center", "right"}[third(x)]
	if row == "middle" && col == "center" {
		return "center"
	}
	return row + " " + col
}

func third(v float64) int { return max(0, min(2, int(v/(Size/3)))) }

func article(word string) string {
	if strings.ContainsRune("aeiou", rune(word[0])) {
		return "an"
	}
	return "a"
}

// asker draws questions about one scene; each kind reports false when the scene does not allow it.
type asker struct {
	*Scene
	rng *rand.Rand
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }

// exist asks for a present pair of colour and shape half the time; six absent ones in ten share a
// colour or a shape with a present one.
func (a asker) exist() (Question, bool) {
	var present, absent, near [][2]string
	for _, c := range Colours() {
		for _, sh := range shapes {
			same := func(o Object) bool { return o.Colour == c && o.Shape == sh }
			like := func(o Object) bool { return o.Colour == c || o.Shape == sh }
			pair := [2]string{c, sh}
			switch {
			case slices.ContainsFunc(a.Objects, same):
				present = append(present, pair)
			case slices.ContainsFunc(a.Objects, like):
				near = append(near, pair)
				fallthrough
			default:
				absent = append(absent, pair)
			}
		}
	}
	if len(present) == 0 {
		return Question{}, false
	}
	answer, from := "yes", present
	if a.rng.Float64() >= 0.5 {
		answer, from = "no", absent
		if a.rng.Float64() < 0.6 {
			from = near
		}
	}
	p := pick(a.rng, from)
	return Question{
		Exist, "Is there " + article(p[0]) + " " + p[0] + " " + p[1] + " in the image?", answer,
	}, true
}

// unique returns the objects of which key occurs once in the scene.
func (a asker) unique(key func(Object) string) []Object {
	n := map[string]int{}
	for _, o := range a.Objects {
		n[key(o)]++
	}
	var out []Object
	for _, o := range a.Objects {
		if n[key(o)] == 1 {
			out = append(out, o)
		}
	}
	return out
}

func colourOf(o Object) string { return o.Colour }
func shapeOf(o Object) string  { return o.Shape }
func nameOf(o Object) string   { return o.Colour + " " + o.Shape }

func (a asker) attribute() (Question, bool) {
	byColour, byShape := a.unique(colourOf), a.unique(shapeOf)
	if len(byColour) == 0 && len(byShape) == 0 {
		return Question{}, false
	}
	askShape := len(byShape) == 0 || len(byColour) > 0 && a.rng.IntN(2) == 0
	if askShape {
		o := pick(a.rng, byColour)
		return Question{Attribute, "What shape is the " + o.Colour + " object?", o.Shape}, true
	}
	o := pick(a.rng, byShape)
	return Question{Attribute, "What color is the " + o.Shape + "?", o.Colour}, true
}

func (a asker) where() (Question, bool) {
	single := a.unique(nameOf)
	if len(single) == 0 {
		return Question{}, false
	}
	o := pick(a.rng, single)
	return Question{Where, "Where is the " + nameOf(o) + "?", Place(o.X, o.Y)}, true
}

// relation draws two objects and an axis, and gives up when they are nearer than relationGap along
// it.
func (a asker) relation() (Question, bool) {
	single := a.unique(nameOf)
	if len(single) < 2 {
		return Question{}, false
	}
	i := a.rng.IntN(len(single))
	j := a.rng.IntN(len(single) - 1)
	if j >= i {
		j++
	}
	p, q := single[i], single[j]
	d, words := p.X-q.X, [2]string{"to the left of", "to the right of"}
	if a.rng.Float64() >= 0.5 {
		d, words = p.Y-q.Y, [2]string{"above", "below"}
	}
	if math.Abs(d) < relationGap {
		return Question{}, false
	}
	side := a.rng.IntN(2) // 0 asks whether d is negative
	answer := "no"
	if (side == 0) == (d < 0) {
		answer = "yes"
	}
	return Question{
		Relation, "Is the " + nameOf(p) + " " + words[side] + " the " + nameOf(q) + "?", answer,
	}, true
}

// count asks for all objects, a shape or a colour with equal chance, eight times in ten for one
// that is there.
func (a asker) count() (Question, bool) {
	if len(a.Objects) == 0 {
		return Question{}, false
	}
	number := func(same func(Object) bool) string {
		n := 0
		for _, o := range a.Objects {
			if same(o) {
				n++
			}
		}
		return strconv.Itoa(n)
	}
	draw := func(key func(Object) string, all []string) string {
		if a.rng.Float64() < 0.8 {
			return key(pick(a.rng, a.Objects))
		}
		return pick(a.rng, all)
	}
	switch m := a.rng.Float64(); {
	case m < 0.34:
		return Question{Count, "How many objects are there?", strconv.Itoa(len(a.Objects))}, true
	case m < 0.67:
		sh := draw(shapeOf, shapes)
		return Question{
			Count, "How many " + plural(sh) + " are there?",
			number(func(o Object) bool { return o.Shape == sh }),
		}, true
	default:
		c := draw(colourOf, Colours())
		return Question{
			Count, "How many " + c + " objects are there?",
			number(func(o Object) bool { return o.Colour == c }),
		}, true
	}
}

func plural(shape string) string {
	if shape == "cross" {
		return "crosses"
	}
	return shape + "s"
}

func (a asker) text() (Question, bool) {
	return Question{Text, "What number is written?", a.Number}, a.Number != ""
}
