package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/restore-vlm/restore/errs"
	"github.com/restore-vlm/restore/internal/formats"
	"github.com/restore-vlm/restore/internal/imageproc"
	"github.com/restore-vlm/restore/internal/model"
)

// packedFile packs the embedded model into a file and returns its content.
func packedFile(t *testing.T) (path string, data []byte) {
	t.Helper()
	ck, err := formats.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	var b bytes.Buffer
	if err := Pack(ck, Options{Quant: "q4", EncoderQuant: "q8"}, &b); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "model.rst")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, b.Bytes()
}

// places returns the offset of each tensor in a packed file.
func places(t *testing.T, path string, data []byte) map[string]int {
	t.Helper()
	ck, err := formats.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	at := map[string]int{}
	for _, name := range ck.Names() {
		w, _ := ck.Tensor(name)
		at[name] = bytes.Index(data, w.Data)
	}
	return at
}

// openFile opens the model at path.
func openFile(path string) (*Engine, error) {
	ck, err := formats.Open(path)
	if err != nil {
		return nil, err
	}
	e, err := New(ck, Options{Threads: 2}, Hooks{})
	if err != nil {
		ck.Close()
	}
	return e, err
}

// Ensure that a packed file with one changed byte, anywhere, gives no token of any answer, but an
// error that names file and tensor.
func TestPackedDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("says nothing about kernels")
	}
	path, good := packedFile(t)
	at := places(t, path, good)
	e, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	order := e.reading.Names()
	if len(order) < 20 || !strings.Contains(order[0], "patch_embedding") ||
		order[len(order)-1] != "language_model.lm_head.weight" {
		t.Errorf("checked in the order %v, want from the patch embedding to the head", order)
	}
	pic := []*imageproc.Picture{drawn(t, 1)}
	ask := func(e *Engine, pics []*imageproc.Picture) (string, error) {
		sent := ""
		_, err := e.Ask(context.Background(), Request{
			Prompt: "What is there?", Images: Pictures(pics...), MaxTokens: 3,
			OnPiece: func(p Piece) { sent += p.Text },
		})
		return sent, err
	}
	if sent, err := ask(e, pic); err != nil || sent == "" {
		t.Errorf("a good file: %q, %v", sent, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	names := []string{
		order[0], order[1], "language_model.model.embed_tokens.weight", order[len(order)/2],
		"vision_tower.vision_model.embeddings.class_embedding", order[len(order)-1],
		"language_model.model.norm.weight",
	}
	for name := range at { // the last block of the tower, which no request computes
		if strings.Contains(name, "encoder.layers.") && strings.HasSuffix(name, "mlp.fc2.weight") {
			names = append(names, name)
		}
	}
	for _, name := range names {
		bad := slices.Clone(good)
		bad[at[name]+1] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		check := func(what, sent string, err error) {
			t.Helper()
			if !errors.Is(err, errs.ErrDamaged) ||
				!strings.Contains(err.Error(), fmt.Sprintf("%q: damaged: got checksum", name)) ||
				!strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %s: %v", name, what, err)
			}
			if sent != "" {
				t.Errorf("%s, %s: answered %q", name, what, sent)
			}
		}
		e, err := openFile(path)
		if err != nil {
			if slices.Contains(order, name) {
				t.Errorf("%s: not opened", name)
			}
			check("opened", "", err)
			continue
		}
		if !slices.Contains(order, name) {
			t.Errorf("%s: opened", name)
		}
		for range 2 {
			sent, err := ask(e, nil)
			check("only text", sent, err)
			sent, err = ask(e, pic)
			check("with a picture", sent, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Ensure that Close ends a packed file's checks and the requests that wait for them, at any time,
// and leaves no goroutine.
func TestPackedClose(t *testing.T) {
	path, _ := packedFile(t)
	before := runtime.NumGoroutine()
	for i := range 40 {
		e, err := openFile(path)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := e.Ask(context.Background(), Request{Prompt: "What is there?", MaxTokens: 2})
			done <- err
		}()
		time.Sleep(time.Duration(i) * 200 * time.Microsecond)
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil && !errors.Is(err, errs.ErrClosed) {
			t.Error(err)
		}
	}
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > before; {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		time.Sleep(time.Millisecond)
	}
}

// Ensure that a packed file that is cut short while it is checked, or afterwards, gives an error or
// the same answer as before.
func TestPackedShortened(t *testing.T) {
	if testing.Short() {
		t.Skip("says nothing about kernels")
	}
	path, good := packedFile(t)
	for i, keep := range []int64{0, int64(len(good)) / 2, int64(len(good)) - 4096} {
		for _, later := range []bool{false, true} {
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
			e, err := openFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if later {
				if err := e.reading.Wait(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Truncate(path, keep); err != nil {
				t.Fatal(err)
			}
			var failed [4]error
			for i := range failed {
				_, failed[i] = e.Ask(context.Background(), Request{
					Prompt: "What is there?", MaxTokens: 2,
					Images: Pictures(drawn(t, 1)),
				})
				if failed[i] != nil && !errors.Is(failed[i], errs.ErrDamaged) {
					t.Errorf("%d bytes left: %v", keep, failed[i])
				}
			}
			t.Logf("%d: %v, %v", i, later, failed[0])
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Ensure that work on the engine that is not a request meets the same gates.
func TestPackedWork(t *testing.T) {
	path, good := packedFile(t)
	const name = "language_model.lm_head.weight"
	good[places(t, path, good)[name]] ^= 1
	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	err = e.Do(context.Background(), func(r *model.Run) error {
		x, logits := make([]float32, e.shape.Hidden), make([]float32, e.shape.Vocab)
		e.m.Decoder().Logits(r, logits, x, 1)
		t.Error("computed with a damaged head")
		return nil
	})
	if !errors.Is(err, errs.ErrDamaged) || !strings.Contains(err.Error(), name) {
		t.Error(err)
	}
}
