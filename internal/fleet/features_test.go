package fleet

import (
	"bytes"
	"context"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/restore-vlm/restore"
)

var _ restore.FeatureStore = (*Features)(nil)

func openFeatures(t testing.TB, c *Conn) *Features {
	t.Helper()
	f, err := c.Features(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Ensure that of many processes that need an entry one makes it, and that all read the same bytes.
func TestFeaturesOnce(t *testing.T) {
	s := natsServer(t)
	stores := make([]*Features, 4)
	for i := range stores {
		stores[i] = openFeatures(t, connect(t, s, quick))
	}
	rows := bytes.Repeat([]byte("rows"), 1<<18) // larger than a message
	var made atomic.Int64
	var all sync.WaitGroup
	for i := range 16 {
		key := [32]byte{byte(i % 2)}
		all.Go(func() {
			f := stores[i/2%4]
			got, ok := f.Load(key, true)
			if !ok {
				if i < 8 { // later ones of a process find its own claim
					made.Add(1)
				}
				time.Sleep(100 * time.Millisecond)
				f.Save(key, rows)
				return
			}
			if !bytes.Equal(got, rows) {
				t.Errorf("got %d bytes, want %d", len(got), len(rows))
			}
		})
		if i == 7 {
			all.Wait()
		}
	}
	all.Wait()
	if n := made.Load(); n != 2 {
		t.Errorf("%d entries were made, want 2", n)
	}
	if _, ok := stores[0].Load([32]byte{9}, true); ok {
		t.Error("got an entry that nobody saved")
	}
}

// Ensure that workers that start together share one store: one of them may find that another has
// made the bucket since it looked, and set it up.
func TestFeaturesTogether(t *testing.T) {
	s := natsServer(t)
	first, late := openFeatures(t, connect(t, s, quick)), connect(t, s, quick)
	entries, err := late.createFeatures(t.Context(), FeatureBytes)
	if err != nil {
		t.Fatal(err)
	}
	key := [32]byte{1}
	first.Save(key, []byte("rows"))
	if _, err := entries.GetInfo(t.Context(), hex.EncodeToString(key[:])); err != nil {
		t.Errorf("the entry of another worker: %v", err)
	}
}

// Ensure that a worker that claimed an entry and died holds others up for a limited time, that a
// process may ask again for its own, and that one without servers goes on at once.
func TestFeaturesClaims(t *testing.T) {
	s := natsServer(t)
	dead, other := openFeatures(t, connect(t, s, quick)), openFeatures(t, connect(t, s, quick))
	other.wait = 300 * time.Millisecond
	for range 2 {
		if _, ok := dead.Load([32]byte{1}, true); ok {
			t.Error("got an entry that nobody saved")
		}
	}
	start := time.Now()
	if _, ok := other.Load([32]byte{1}, true); ok {
		t.Error("got an entry that nobody saved")
	}
	if d := time.Since(start); d < other.wait || d > 20*other.wait {
		t.Errorf("waited %v, want %v", d, other.wait)
	}
	other.Save([32]byte{1}, []byte("late")) // without a claim
	if got, ok := dead.Load([32]byte{1}, true); !ok || string(got) != "late" {
		t.Errorf("got %q, %t", got, ok)
	}
	other.c.nc.Close()
	if _, ok := other.Load([32]byte{2}, true); ok {
		t.Error("got an entry without a server")
	}
}

// Ensure that a load that does not wait returns at once while another process makes the entry, and
// finds it then.
func TestFeaturesLook(t *testing.T) {
	s := natsServer(t)
	one, other := openFeatures(t, connect(t, s, quick)), openFeatures(t, connect(t, s, quick))
	one.Load([32]byte{1}, true) // claims it
	start := time.Now()
	for _, f := range []*Features{one, other} {
		if _, ok := f.Load([32]byte{1}, false); ok {
			t.Error("got an entry that nobody saved")
		}
	}
	if d := time.Since(start); d > claimWait/2 {
		t.Errorf("waited %v", d)
	}
	one.Save([32]byte{1}, []byte("rows"))
	if got, ok := other.Load([32]byte{1}, false); !ok || string(got) != "rows" {
		t.Errorf("got %q, %t", got, ok)
	}
}

// Ensure that a server that was restarted, and has lost the claims, gets new ones.
func TestFeaturesLost(t *testing.T) {
	s := natsServer(t)
	one, other := openFeatures(t, connect(t, s, quick)), openFeatures(t, connect(t, s, quick))
	if err := one.c.js.DeleteKeyValue(t.Context(), claimsBucket); err != nil {
		t.Fatal(err)
	}
	one.Load([32]byte{1}, true) // claims it
	go func() {
		time.Sleep(100 * time.Millisecond)
		one.Save([32]byte{1}, []byte("rows"))
	}()
	if got, ok := other.Load([32]byte{1}, true); !ok || string(got) != "rows" {
		t.Errorf("got %q, %t, want the other's", got, ok)
	}
}

// Ensure that a full store drops its oldest entries, and that those count as missing at once, also
// where only a part of one is left.
func TestFeaturesFull(t *testing.T) {
	const most, rows = 4 << 20, 500_000
	s := natsServer(t)
	c := connect(t, s, quick)
	if _, err := c.createFeatures(t.Context(), most); err != nil {
		t.Fatal(err)
	}
	f := openFeatures(t, c)
	for i := range 20 {
		f.Save([32]byte{byte(i)}, bytes.Repeat([]byte{byte(i)}, rows))
	}
	i, err := f.entries.Status(t.Context())
	if err != nil || i.Size() > most {
		t.Errorf("got %d bytes, %v, want at most %d", i.Size(), err, most)
	}
	start, kept := time.Now(), 0
	for i := range 20 {
		got, ok := f.Load([32]byte{byte(i)}, false)
		if ok && !bytes.Equal(got, bytes.Repeat([]byte{byte(i)}, rows)) {
			t.Errorf("entry %d: got other rows", i)
		}
		if ok {
			kept++
		}
		if i >= 15 && !ok {
			t.Errorf("one of the newest entries, %d, is gone", i)
		}
	}
	if d := time.Since(start); kept > most/rows || d > 5*time.Second {
		t.Errorf("%d entries after %v", kept, d)
	}
}

// Ensure that torn, damaged and foreign entries count as missing and are made again.
func TestFeaturesDamaged(t *testing.T) {
	s := natsServer(t)
	f := openFeatures(t, connect(t, s, quick))
	key, other := [32]byte{1}, [32]byte{2}
	name := hex.EncodeToString(key[:])
	whole := func(key [32]byte) []byte {
		sum := sumOf(key, []byte("rows"))
		return append(sum[:], "rows"...)
	}
	for what, data := range map[string][]byte{
		"empty": {}, "short": []byte("short"), "torn": whole(key)[:34],
		"damaged": append(whole(key)[:35], 'x'), "another's": whole(other),
	} {
		if _, err := f.entries.PutBytes(context.Background(), name, data); err != nil {
			t.Fatal(err)
		}
		if got, ok := f.Load(key, true); ok {
			t.Errorf("%s: got %q, want none", what, got)
		}
	}
	f.Save(key, []byte("rows"))
	if got, ok := f.Load(key, true); !ok || string(got) != "rows" {
		t.Errorf("made again: got %q, %t", got, ok)
	}
}
