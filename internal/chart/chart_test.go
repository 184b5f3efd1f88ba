package chart

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

// svg is what the tests read of a drawing.
type svg struct {
	Width  float64 `xml:"width,attr"`
	Height float64 `xml:"height,attr"`
	Text   []struct {
		X    float64 `xml:"x,attr"`
		Text string  `xml:",chardata"`
	} `xml:"text"`
	Path []struct {
		D    string `xml:"d,attr"`
		Dash string `xml:"stroke-dasharray,attr"`
	} `xml:"path"`
}

func drawn(t *testing.T, draw func(w io.Writer) error) svg {
	t.Helper()
	var b bytes.Buffer
	if err := draw(&b); err != nil {
		t.Fatal(err)
	}
	var s svg
	if err := xml.Unmarshal(b.Bytes(), &s); err != nil {
		t.Fatalf("%v in %s", err, b.String())
	}
	return s
}

func (s svg) texts() (all []string) {
	for _, x := range s.Text {
		all = append(all, x.Text)
	}
	return all
}

func (s svg) paths() (all []string) {
	for _, p := range s.Path {
		all = append(all, p.D)
	}
	return all
}

var two = []Panel{
	{
		Title: "left & <right>", X: "tokens", Y: "%", Ticks: []float64{16, 64, 256}, LogX: true,
		High: 100,
		Series: []Series{
			{Name: "one", Dashed: true, X: []float64{16, 64, 256}, Y: []float64{0, 50, 100}},
		},
	},
	{Title: "right", Series: []Series{
		{Name: "one", X: []float64{0, 1}, Y: []float64{1, 2}},
		{Name: "two", Style: 1, Bare: true, X: []float64{0, 1}, Y: []float64{2, 1}},
	}},
}

// Ensure points lie where their values say: by hand, the axes of the first panel go from x 62 to
// 426 and from y 322 (0) up to 30 (100), and 64 is the middle of 16 and 256 on a logarithmic axis.
func TestDraw(t *testing.T) {
	s := drawn(t, func(w io.Writer) error { return Draw(w, "", two) })
	for _, want := range []string{"left & <right>", "right", "tokens", "%", "16", "64", "20"} {
		if !slices.Contains(s.texts(), want) {
			t.Errorf("got texts %q, want one %q", s.texts(), want)
		}
	}
	i := slices.Index(s.paths(), "M62.0 322.0L244.0 176.0L426.0 30.0")
	if i < 0 || s.Path[i].Dash == "" {
		t.Errorf("got paths %q, want the first series, dashed", s.paths())
	}
	count := 0
	for _, text := range s.texts() {
		if text == "one" {
			count++
		}
		if text == "-0" {
			t.Errorf("got a tick %q", text)
		}
	}
	if count != 1 {
		t.Errorf("the legend names a series %d times, want once", count)
	}
}

// Ensure that many panels are small and in rows of five: by hand, the axes of the second row's
// second panel begin 230 + 40 to the right and end 190 + 30 below the top.
func TestDrawMany(t *testing.T) {
	many := make([]Panel, 7)
	for i := range many {
		many[i] = Panel{Title: string(rune('a' + i)), X: "tokens", Series: []Series{
			{Name: "one", X: []float64{1, 2}, Y: []float64{0, 1}},
		}}
	}
	s := drawn(t, func(w io.Writer) error { return Draw(w, "", many) })
	if want := "M270.0 352.0L446.0 220.0"; !slices.Contains(s.paths(), want) {
		t.Errorf("got paths %q, want %q", s.paths(), want)
	}
	if s.Height != 380 || s.Width < 1150 || s.Width > 1250 {
		t.Errorf("%v x %v, want two rows of 190 and five columns of 230 with a legend", s.Width,
			s.Height)
	}
	if all := s.texts(); !slices.Contains(all, "g") || slices.Contains(all, "tokens") {
		t.Errorf("got texts %q, want each panel's title and no title of an axis", all)
	}
}

// Ensure that an axis covers its ticks, so that panels with the same ticks have the same axis: by
// hand, 2 of 1 to 3 is the middle of 62 and 426.
func TestTicksWithoutPoints(t *testing.T) {
	p := []Panel{{Ticks: []float64{1, 2, 3}, High: 1, Series: []Series{
		{Name: "one", X: []float64{2, 3}, Y: []float64{0, 1}},
	}}}
	s := drawn(t, func(w io.Writer) error { return Draw(w, "", p) })
	if want := "M244.0 322.0L426.0 30.0"; !slices.Contains(s.paths(), want) {
		t.Errorf("got paths %q, want %q", s.paths(), want)
	}
}

func TestCaption(t *testing.T) {
	bare := drawn(t, func(w io.Writer) error { return Draw(w, "", two) })
	long := strings.TrimSpace(strings.Repeat("what was measured ", 20))
	s := drawn(t, func(w io.Writer) error { return Draw(w, long, two) })
	if s.Width != bare.Width || s.Height <= bare.Height {
		t.Errorf("a caption makes %vx%v of %vx%v, want more height", s.Width, s.Height,
			bare.Width, bare.Height)
	}
	if all := strings.Join(s.texts(), " "); !strings.HasPrefix(all, long) {
		t.Errorf("got %q, want it to begin with the caption", all)
	}
}

func TestText(t *testing.T) {
	one := drawn(t, func(w io.Writer) error { return Text(w, "one line\n") })
	more := drawn(t, func(w io.Writer) error { return Text(w, "one  line\nand a <longer> one\n") })
	if more.Width <= one.Width || more.Height <= one.Height {
		t.Errorf("%vx%v for more text than %vx%v", more.Width, more.Height, one.Width, one.Height)
	}
	if got := more.texts(); !slices.Equal(got, []string{"one  line", "and a <longer> one"}) {
		t.Errorf("got %q", got)
	}
}

// Ensure ranges without width can be drawn, and values that are no numbers are refused.
func TestValues(t *testing.T) {
	for name, c := range map[string]struct {
		x, y []float64
		want string // in the error
	}{
		"one point":   {[]float64{3}, []float64{4}, ""},
		"one value":   {[]float64{1, 2}, []float64{5, 5}, ""},
		"NaN":         {[]float64{1, 2}, []float64{5, math.NaN()}, "chart: s: point 1: got (2, NaN)"},
		"infinite":    {[]float64{math.Inf(1)}, []float64{5}, "chart: s: point 0"},
		"logarithm":   {[]float64{0}, []float64{5}, "want numbers, x above 0"},
		"no points":   {nil, nil, "got 0 x and 0 y"},
		"other count": {[]float64{1, 2}, []float64{1}, "got 2 x and 1 y"},
	} {
		p := []Panel{{LogX: true, Series: []Series{{Name: "s", X: c.x, Y: c.y}}}}
		var b bytes.Buffer
		err := Draw(&b, "", p)
		if c.want == "" && (err != nil || strings.Contains(b.String(), "NaN")) {
			t.Errorf("%s: %v, %s", name, err, b.String())
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
}

func TestRound(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      []float64
	}{
		{0, 100, []float64{0, 20, 40, 60, 80, 100}},
		{-1, 1, []float64{-1, -0.5, 0, 0.5, 1}},
		{0.3, 0.7, []float64{0.3, 0.4, 0.5, 0.6, 0.7}},
		{1234, 5678, []float64{2000, 3000, 4000, 5000}},
	} {
		got := round(c.low, c.high)
		if len(got) != len(c.want) {
			t.Errorf("%v to %v: got %v, want %v", c.low, c.high, got, c.want)
			continue
		}
		for i := range got {
			if !(math.Abs(got[i]-c.want[i]) <= 1e-9) {
				t.Errorf("%v to %v: got %v, want %v", c.low, c.high, got, c.want)
			}
		}
	}
}
