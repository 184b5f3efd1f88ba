package scene

import (
	"bytes"
	"hash/crc32"
	"image"
	"reflect"
	"strconv"
	"testing"
)

// Ensure that the plain world stays the same: pictures and questions of a few seeds, by their
// checksums.
func TestPlainWorld(t *testing.T) {
	for seed, want := range map[int64]uint32{
		7: 0x4076800d, EvalSeed: 0x32598dd1, EvalSeed + 3: 0x663c9db9,
	} {
		s := New(seed)
		sum := crc32.ChecksumIEEE(s.Image().Pix)
		for _, q := range s.Questions() {
			sum = crc32.Update(sum, crc32.IEEETable, []byte(q.Task+q.Text+q.Answer))
		}
		if sum != want {
			t.Errorf("seed %d: got %#08x, want %#08x", seed, sum, want)
		}
		if !reflect.DeepEqual(s, NewIn(Plain, seed)) {
			t.Errorf("seed %d: the plain world has changed", seed)
		}
	}
}

// Ensure that every world matches its description, that nothing overlaps or leaves the picture, and
// that a seed always gives the same picture.
func TestWorlds(t *testing.T) {
	digits, dots, most := map[int]int{}, map[int]int{}, 0
	for _, w := range Worlds() {
		numbers, crowds := 0, 0
		for seed := range int64(300) {
			s := NewIn(w, seed)
			if again := NewIn(w, seed); !reflect.DeepEqual(s, again) {
				t.Fatalf("%s, seed %d: two layouts", w, seed)
			}
			if s.Number != "" {
				numbers++
				pw, ph := plateSize(len(s.Number), s.dot)
				if s.Plate.Dx() != pw || s.Plate.Dy() != ph ||
					!s.Plate.Inset(-plateMargin).In(image.Rect(0, 0, Size, Size)) {
					t.Fatalf("%s, seed %d: plate %v of %q", w, seed, s.Plate, s.Number)
				}
			}
			if w == Plates {
				digits[len(s.Number)]++
				dots[s.dot]++
			} else if s.dot != plainDot || len(s.Number) != 2 && s.Number != "" {
				t.Fatalf("%s, seed %d: number %q of %d pixels a dot", w, seed, s.Number, s.dot)
			}
			if len(s.Objects) > MaxObjects {
				crowds++
			}
			most = max(most, len(s.Objects))
			checkWorldObjects(t, s)
		}
		if (w == Plates) != (numbers == 300) {
			t.Errorf("%s: %d of 300 with a number", w, numbers)
		}
		if w == Crowd && crowds < 290 || w != Crowd && crowds > 0 {
			t.Errorf("%s: %d of 300 with more than %d objects", w, crowds, MaxObjects)
		}
	}
	if len(digits) != 3 || len(dots) != 4 || most < 13 || most > MaxCrowd {
		t.Errorf("digits %v, dots %v, most objects %d", digits, dots, most)
	}
}

func checkWorldObjects(t *testing.T, s *Scene) {
	t.Helper()
	lo, hi := 15., 42.
	switch s.World {
	case Crowd:
		lo, hi = 13, 21
	case Small:
		lo, hi = 7, 13
	}
	for i, o := range s.Objects {
		reach := objectReach*o.R + edgeMargin
		if o.R < lo || o.R > hi || o.X < reach || o.X > Size-reach || o.Y < reach ||
			o.Y > Size-reach {
			t.Fatalf("%s, seed %d: object %d: %+v", s.World, s.Seed, i, o)
		}
		for _, p := range s.Objects[:i] {
			if dx, dy := o.X-p.X,
				o.Y-p.Y; max(dx, -dx, dy, -dy) < objectReach*(o.R+p.R)+2*objectMargin {
				t.Fatalf("%s, seed %d: %+v and %+v overlap", s.World, s.Seed, o, p)
			}
		}
		if image.Rect(int(o.X-o.R), int(o.Y-o.R), int(o.X+o.R), int(o.Y+o.R)).Overlaps(s.Plate) {
			t.Fatalf("%s, seed %d: %+v overlaps the plate %v", s.World, s.Seed, o, s.Plate)
		}
	}
}

// Ensure that a cluttered ground is not plain, and that its layout is the plain world's.
func TestClutterGround(t *testing.T) {
	busier := 0
	for seed := range int64(20) {
		plain, clutter := New(seed), NewIn(Clutter, seed)
		if !reflect.DeepEqual(plain.Objects, clutter.Objects) || plain.Number != clutter.Number {
			t.Fatalf("seed %d: another layout", seed)
		}
		a, b := plain.Image(), clutter.Image()
		if bytes.Equal(a.Pix, b.Pix) || !bytes.Equal(b.Pix, clutter.Image().Pix) {
			t.Errorf("seed %d: the ground is plain, or two drawings of it differ", seed)
		}
		_, plainDev := region(a, a.Bounds())
		if _, dev := region(b,
			b.Bounds()); dev[0]+dev[1]+dev[2] > plainDev[0]+plainDev[1]+plainDev[2] {
			busier++
		}
		if n, err := strconv.Atoi(clutter.Number); clutter.Number != "" && (err != nil || n < 10) {
			t.Errorf("seed %d: number %q", seed, clutter.Number)
		}
	}
	if busier < 15 {
		t.Errorf("%d of 20 pictures vary more than the plain ones", busier)
	}
}
