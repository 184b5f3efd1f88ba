package api

import (
	"encoding/json"
	"testing"

	"github.com/restore-vlm/restore"
)

// Ensure that the mean over layers is reported where layers read different rows, and the number of
// encoded tokens where some were left out, and that each then counts all pictures.
func TestVisualTokens(t *testing.T) {
	for _, c := range []struct {
		pictures []restore.PictureReport
		want     string
	}{
		{[]restore.PictureReport{{Tokens: 576, Kept: 32, Merged: 32}}, `{"before":576,"kept":32,"merged":32}`},
		{[]restore.PictureReport{{Tokens: 576, Merged: 24, Mean: 32}}, `{"before":576,"kept":0,"merged":24,"mean":32}`},
		{
			[]restore.PictureReport{
				{Tokens: 576, Kept: 8, Merged: 8}, {Tokens: 576, Merged: 24, Mean: 32},
				{Tokens: 9, Kept: 9},
			},
			`{"before":1161,"kept":17,"merged":32,"mean":57}`,
		},
		{
			[]restore.PictureReport{
				{Tokens: 9, Encoded: 9, Kept: 9}, {Tokens: 576, Encoded: 200, Kept: 8, Merged: 8},
				{Tokens: 16, Encoded: 16, Kept: 4},
			},
			`{"before":601,"encoded":225,"kept":21,"merged":8}`,
		},
	} {
		r, read := newCall().Extend(&restore.Answer{Pictures: c.pictures}), 0.
		for i := range c.pictures {
			read += c.pictures[i].Read()
		}
		got, err := json.Marshal(r.Visual)
		if err != nil || string(got) != c.want {
			t.Errorf("got %s, %v, want %s", got, err, c.want)
		}
		v := r.Visual
		if v.Mean > 0 && read != v.Mean || v.Mean == 0 && read != float64(v.Kept+v.Merged) {
			t.Errorf("pictures read %v, together %+v", read, v)
		}
	}
}

func newCall() *Call { return &Call{Request: new(restore.Request)} }
