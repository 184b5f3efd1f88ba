package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The buckets of a feature store.
const (
	featuresBucket = "restore_features"
	claimsBucket   = "restore_claims"
)

// FeatureBytes is the most that the reduced pictures of a fleet take on its servers.
const FeatureBytes = 2 << 30

// Features keeps reduced pictures for all workers of a fleet: the first worker that needs one
// claims it, encodes and saves it; the others wait for it and read its rows. It implements
// [github.com/restore-vlm/restore.FeatureStore].
//
// An entry begins with a SHA-256 of its key and its rows, so one that is torn, damaged or another's
// counts as missing. The oldest entries make room for new ones, and none is older than
// Layout.Keep. Without its servers the store has nothing, and the workers encode for themselves.
type Features struct {
	c       *Conn
	entries jetstream.ObjectStore
	claims  jetstream.KeyValue
	wait    time.Duration

	mu   sync.Mutex
	mine map[string]time.Time // claims of this process, with their ends

	failing atomic.Bool // a call failed, and the log says so
}

// Times of claims.
const (
	// claimFor is how long a worker has for an entry; one that ended or gave up leaves its claim.
	claimFor = 30 * time.Second
	// claimWait is how long others wait for it. Two requests with the same two pictures in another
	// order may wait for each other: this ends it.
	claimWait = 10 * time.Second
	claimPoll = 20 * time.Millisecond // the first pause; later ones are up to ten times as long
)

// Features opens the fleet's store of reduced pictures, and creates what is missing.
func (c *Conn) Features(ctx context.Context) (*Features, error) {
	f := &Features{c: c, mine: map[string]time.Time{}, wait: claimWait}
	ctx, cancel := c.within(ctx, c.callTime)
	defer cancel()
	var err error
	if f.entries, err = c.createFeatures(ctx, FeatureBytes); err == nil {
		f.claims, err = c.bucket(ctx, c.claims())
	}
	if err != nil {
		return nil, c.explain("feature store", err)
	}
	return f, nil
}

// claims is the bucket of claims. It is in memory, so a restarted server does not have it: see
// lost.
func (c *Conn) claims() jetstream.KeyValueConfig {
	return jetstream.KeyValueConfig{Bucket: claimsBucket, TTL: claimFor,
		Storage: jetstream.MemoryStorage, Replicas: c.lay.Replicas}
}

// createFeatures finds the bucket, and creates it if it is missing, for at most so many bytes. It
// is an object store (ADR-20 of nats-io/nats-architecture-and-design), but a full one drops its
// oldest entries.
func (c *Conn) createFeatures(ctx context.Context, most int64) (jetstream.ObjectStore, error) {
	find := func(ctx context.Context) (jetstream.ObjectStore, error) {
		return c.js.ObjectStore(ctx, featuresBucket)
	}
	return made(ctx, find, func(ctx context.Context) (jetstream.ObjectStore, error) {
		_, err := c.js.CreateStream(ctx, jetstream.StreamConfig{
			Name:     "OBJ_" + featuresBucket,
			Subjects: []string{"$O." + featuresBucket + ".C.>", "$O." + featuresBucket + ".M.>"},
			MaxAge:   c.lay.Keep, MaxBytes: most, Discard: jetstream.DiscardOld,
			Replicas: c.lay.Replicas, AllowRollup: true, AllowDirect: true,
		})
		if err != nil {
			return nil, err
		}
		return find(ctx)
	})
}

// sumOf is the checksum of an entry.
func sumOf(key [32]byte, rows []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(key[:])
	h.Write(rows)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return sum
}

// lookTime is the time limit of a Load that does not wait.
const lookTime = 500 * time.Millisecond

// Load returns the entry of a key. Without one, and with wait set, it claims the key for this
// process; while another process has claimed it, Load waits for that one.
func (f *Features) Load(key [32]byte, wait bool) (data []byte, ok bool) {
	name := hex.EncodeToString(key[:])
	if !wait {
		if f.claimed(name) || !f.c.nc.IsConnected() {
			return nil, false
		}
		ctx, cancel := context.WithTimeout(context.Background(), lookTime)
		defer cancel()
		return f.read(ctx, key, name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), f.wait)
	defer cancel()
	for pause := claimPoll; ; pause = min(2*pause, 10*claimPoll) {
		if data, ok := f.read(ctx, key, name); ok {
			return data, true
		}
		if f.claim(ctx, name) {
			// it may have been saved between the two
			if data, ok := f.read(ctx, key, name); ok {
				f.giveBack(ctx, name)
				return data, true
			}
			return nil, false
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, false
		}
	}
}

// read returns an entry that is whole.
func (f *Features) read(ctx context.Context, key [32]byte, name string) ([]byte, bool) {
	info, err := f.entries.GetInfo(ctx, name)
	if err != nil || info.Size < sha256.Size || info.Size > maxObject {
		f.failed(err)
		return nil, false
	}
	data, err := f.entries.GetBytes(ctx, name)
	if err != nil || len(data) < sha256.Size { // torn, for one
		f.failed(err)
		return nil, false
	}
	rows := data[sha256.Size:]
	if sum := sumOf(key, rows); !bytes.Equal(sum[:], data[:sha256.Size]) {
		f.c.log.Warn("feature store: an entry is damaged and is made again", "key", name)
		return nil, false
	}
	return rows, true
}

// claimed reports whether this process has claimed an entry.
func (f *Features) claimed(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.mine[name])
}

// claim reports whether this process should make an entry: it has claimed it, now or before, or
// cannot know.
func (f *Features) claim(ctx context.Context, name string) bool {
	if f.claimed(name) {
		return true
	}
	_, err := f.claims.Create(ctx, name, nil)
	if lost(err) {
		if _, err = f.c.js.CreateKeyValue(ctx, f.c.claims()); err == nil {
			_, err = f.claims.Create(ctx, name, nil)
		}
	}
	switch {
	case errors.Is(err, jetstream.ErrKeyExists):
		return false
	case err != nil:
		f.failed(err)
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for name, end := range f.mine { // of requests that ended before they were encoded
		if now.After(end) {
			delete(f.mine, name)
		}
	}
	f.mine[name] = now.Add(claimFor)
	return true
}

// Save keeps an entry, and gives back the claim to it.
func (f *Features) Save(key [32]byte, data []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), f.c.callTime)
	defer cancel()
	name, sum := hex.EncodeToString(key[:]), sumOf(key, data)
	if len(data)+len(sum) > maxObject {
		return // nobody would read it
	}
	_, err := f.entries.PutBytes(ctx, name, append(sum[:], data...))
	f.failed(err)
	f.giveBack(ctx, name)
}

// giveBack ends this process's claim to an entry, if it has one.
func (f *Features) giveBack(ctx context.Context, name string) {
	f.mu.Lock()
	_, mine := f.mine[name]
	delete(f.mine, name)
	f.mu.Unlock()
	if mine {
		f.failed(f.claims.Purge(ctx, name)) // else it expires
	}
}

// failed logs the first of several failures.
func (f *Features) failed(err error) {
	switch {
	case err == nil:
		f.failing.Store(false)
	case errors.Is(err, jetstream.ErrObjectNotFound), errors.Is(err, context.DeadlineExceeded):
	case !f.failing.Swap(true):
		f.c.log.Warn("feature store: workers encode for themselves", "error", err)
	}
}
