package scene

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
)

// answer derives the answer to a question from the objects by reading its words. It returns an
// error for questions that should not be asked.
func answer(s *Scene, q Question) (string, error) {
	find := func(name string) (Object, int) {
		var found Object
		n := 0
		for _, o := range s.Objects {
			if name == o.Colour+" "+o.Shape || name == o.Colour || name == o.Shape {
				found = o
				n++
			}
		}
		return found, n
	}
	one := func(name string) (Object, error) {
		o, n := find(name)
		if n != 1 {
			return o, fmt.Errorf("asks for the %s of which there are %d", name, n)
		}
		return o, nil
	}
	switch q.Task {
	case Exist:
		w, ok := fields(q.Text, "Is there a", " in the image?")
		if !ok {
			break
		}
		article, name, _ := strings.Cut(w, " ")
		if vowel := strings.ContainsAny(name[:1], "aeiou"); vowel != (article == "n") {
			return "", fmt.Errorf("article of %q", name)
		}
		if _, n := find(name); n > 0 {
			return "yes", nil
		}
		return "no", nil
	case Attribute:
		if c, ok := fields(q.Text, "What shape is the ", " object?"); ok {
			o, err := one(c)
			return o.Shape, err
		}
		if sh, ok := fields(q.Text, "What color is the ", "?"); ok {
			o, err := one(sh)
			return o.Colour, err
		}
	case Where:
		name, ok := fields(q.Text, "Where is the ", "?")
		if !ok {
			break
		}
		o, err := one(name)
		return Place(o.X, o.Y), err
	case Relation:
		w, ok := fields(q.Text, "Is the ", "?")
		if !ok {
			break
		}
		for _, r := range []struct {
			words string
			of    func(o Object) float64 // the relation holds if it is smaller for the first
		}{
			{" to the left of the ", func(o Object) float64 { return o.X }},
			{" to the right of the ", func(o Object) float64 { return -o.X }},
			{" above the ", func(o Object) float64 { return o.Y }},
			{" below the ", func(o Object) float64 { return -o.Y }},
		} {
			a, b, ok := strings.Cut(w, r.words)
			if !ok {
				continue
			}
			p, err := one(a)
			if err != nil {
				return "", err
			}
			q, err := one(b)
			if err != nil {
				return "", err
			}
			d := r.of(p) - r.of(q)
			if !(math.Abs(d) >= 16) {
				return "", fmt.Errorf("objects %.1f px apart", d)
			}
			if d < 0 {
				return "yes", nil
			}
			return "no", nil
		}
	case Count:
		name, ok := fields(q.Text, "How many ", " are there?")
		if !ok {
			break
		}
		if name == "objects" {
			return strconv.Itoa(len(s.Objects)), nil
		}
		if c, ok := strings.CutSuffix(name, " objects"); ok {
			_, n := find(c)
			return strconv.Itoa(n), nil
		}
		sh := strings.TrimSuffix(name, "s")
		if name == "crosses" {
			sh = "cross"
		}
		_, n := find(sh)
		return strconv.Itoa(n), nil
	case Text:
		if q.Text == "What number is written?" && s.Number != "" {
			return s.Number, nil
		}
	case Describe:
		if q.Text == "Describe the image." {
			return s.Description(), nil
		}
	}
	return "", fmt.Errorf("unknown words")
}

// Ensure that every answer can be derived from the scene, that no question occurs twice, and that
// questions about a single object are asked only if it is the only one.
func TestQuestionsAreConsistent(t *testing.T) {
	perTask, yes := map[string]int{}, map[string]int{}
	full := 0
	for seed := range int64(2000) {
		s := New(EvalSeed + seed)
		qs := s.Questions()
		if last := qs[len(qs)-1]; last.Task != Describe {
			t.Fatalf("seed %d: ends with %q, want the description", s.Seed, last.Text)
		}
		seen := map[string]bool{}
		for _, q := range qs {
			want, err := answer(s, q)
			if err != nil || q.Answer != want {
				t.Fatalf("seed %d: %+v: %q, want %q (%v)", s.Seed, q, q.Answer, want, err)
			}
			if seen[q.Text] {
				t.Fatalf("seed %d: %q occurs twice", s.Seed, q.Text)
			}
			seen[q.Text] = true
			perTask[q.Task]++
			if q.Answer == "yes" {
				yes[q.Task]++
			}
		}
		if len(qs) == PerScene+1 {
			full++
		}
	}
	for _, task := range []string{Exist, Attribute, Where, Relation, Count, Text, Describe} {
		if perTask[task] == 0 {
			t.Errorf("%s: never asked", task)
		}
	}
	// Repeated questions are dropped, which affects the few with the answer yes most.
	if share := float64(yes[Exist]) / float64(perTask[Exist]); share < 0.38 || share > 0.5 {
		t.Errorf("exist: %.3f answered with yes, want 0.38 to 0.50", share)
	}
	checkShare(t, "relation answered with yes", yes[Relation], perTask[Relation], 0.5)
	total := 0
	for _, n := range perTask {
		total += n
	}
	total -= perTask[Describe]
	for task, want := range map[string]float64{ // the training code's shares over 2000 scenes
		Exist: 0.246, Count: 0.213, Relation: 0.179, Attribute: 0.166, Where: 0.154, Text: 0.042,
	} {
		// four standard errors; the questions of one picture depend on each other
		const slack = 0.012
		if got := float64(perTask[task]) / float64(total); !(math.Abs(got-want) <= slack) {
			t.Errorf("%s: share %.3f of the questions, want %.3f ± %.3f", task, got, want, slack)
		}
	}
	if full < 1800 {
		t.Errorf("%d of 2000 pictures have %d questions, want nine in ten", full, PerScene)
	}
}

// Ensure that a scene without unique objects gets no question that needs one.
func TestQuestionsOfTwins(t *testing.T) {
	s := &Scene{Objects: []Object{{"red", "star", 50, 50, 18}, {"red", "star", 250, 250, 18}}}
	for _, q := range s.Questions() {
		if q.Task == Attribute || q.Task == Where || q.Task == Relation || q.Task == Text {
			t.Errorf("asked %q of two red stars", q.Text)
		}
	}
	if got := (&Scene{}).Questions(); len(got) != 1 || got[0].Answer != "Nothing." {
		t.Errorf("empty scene: %v", got)
	}
}

// The example prints a scene's description.
func ExampleScene_Questions() {
	s := &Scene{Objects: []Object{{"red", "circle", 60, 60, 30}}, Number: "47"}
	qs := s.Questions()
	fmt.Println(qs[len(qs)-1].Answer)
	// Output: A red circle at the top left and the number 47.
}
