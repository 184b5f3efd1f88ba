package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Layout describes the streams and buckets. The first process to connect creates them; later ones
// use them as they are.
type Layout struct {
	Partitions int           // of the queue, by pictures; 0: 64
	Replicas   int           // of everything, 1 to 5; 0: 1
	AckWait    time.Duration // after this silence of its worker a request goes to another; 0: 10 s
	Deliver    int           // most deliveries of a request; 0: 100
	Begin      int           // most attempts at a request; 0: 3
	Keep       time.Duration // how long results and pictures are kept; 0: a day
	Bytes      int           // limit of waiting requests, to leave room for results; 0: 1 GiB
}

func (l Layout) withDefaults() Layout {
	or := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	or(&l.Partitions, 64)
	or(&l.Replicas, 1)
	or(&l.Deliver, 100)
	or(&l.Begin, 3)
	or(&l.Bytes, 1<<30)
	if l.AckWait == 0 {
		l.AckWait = 10 * time.Second
	}
	if l.Keep == 0 {
		l.Keep = 24 * time.Hour
	}
	return l
}

// The names of streams, buckets and subjects.
const (
	workStream = "RESTORE_WORK"
	deadStream = "RESTORE_DEAD"

	askSubject    = "restore.ask."    // MODEL.KEY, which the stream maps to workSubject
	workSubject   = "restore.work."   // MODEL.PARTITION
	deadSubject   = "restore.dead."   // MODEL
	replySubject  = "restore.reply."  // CLIENT
	cancelSubject = "restore.cancel." // MODEL
	rpcSubject    = "restore.rpc."    // MODEL

	nextSubject = "$JS.API.CONSUMER.MSG.NEXT." + workStream + "." // CONSUMER: asks for messages

	advisories = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + workStream + ".>"
)

// The buckets with a name in several places.
const (
	workersBucket  = "restore_workers"
	resultsBucket  = "restore_results"
	picturesBucket = "restore_pictures"
)

// duplicates is how long the stream detects a request that it has already received.
const duplicates = 10 * time.Minute

// layoutNote is the stream's metadata key for its Layout.
const layoutNote = "restore-layout"

// open finds the streams and buckets, and creates the missing ones.
func (c *Conn) open(ctx context.Context) (err error) {
	ctx, cancel := c.within(ctx, 3*c.callTime)
	defer cancel()
	l := &c.lay
	c.work, err = c.stream(ctx, jetstream.StreamConfig{
		Name: workStream, Description: "requests that wait for a worker",
		Subjects: []string{askSubject + "*.*"},
		SubjectTransform: &jetstream.SubjectTransformConfig{Source: askSubject + "*.*",
			Destination: fmt.Sprintf(workSubject+"{{wildcard(1)}}.{{partition(%d,2)}}",
				l.Partitions)},
		Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		MaxBytes: int64(l.Bytes), Duplicates: duplicates, Replicas: l.Replicas,
		AllowMsgTTL: true, AllowDirect: true,
		Metadata: map[string]string{
			layoutNote: fmt.Sprint(l.Partitions, l.Replicas, int64(l.AckWait), l.Deliver, l.Begin,
				int64(l.Keep), l.Bytes),
		},
	})
	if err != nil {
		return err
	}
	if err := l.read(c.work.CachedInfo().Config.Metadata[layoutNote]); err != nil {
		return err
	}
	c.dead, err = c.stream(ctx, jetstream.StreamConfig{
		Name: deadStream, Description: "requests that were given up, and why",
		Subjects:   []string{deadSubject + "*", advisories},
		Duplicates: duplicates, Replicas: l.Replicas, MaxAge: 30 * 24 * time.Hour,
	})
	if err != nil {
		return err
	}
	for _, b := range []struct {
		kv  *jetstream.KeyValue
		cfg jetstream.KeyValueConfig
	}{
		{&c.results, jetstream.KeyValueConfig{Bucket: resultsBucket, TTL: l.Keep}},
		{&c.begun, jetstream.KeyValueConfig{Bucket: "restore_begun", TTL: l.Keep}},
		{&c.workers, c.heartbeats()},
		{&c.models, jetstream.KeyValueConfig{Bucket: "restore_models"}},
	} {
		b.cfg.Replicas = l.Replicas
		if *b.kv, err = c.bucket(ctx, b.cfg); err != nil {
			return err
		}
	}
	if c.beats, err = c.js.Stream(ctx, "KV_"+workersBucket); err != nil {
		return err
	}
	if c.kept, err = c.js.Stream(ctx, "KV_"+resultsBucket); err != nil {
		return err
	}
	for _, b := range []struct {
		store *jetstream.ObjectStore
		name  string
	}{{&c.pictures, picturesBucket}, {&c.answers, "restore_answers"}} {
		if *b.store, err = c.objects(ctx, b.name, 0); err != nil {
			return err
		}
	}
	return nil
}

// made finds a stream or a bucket, and creates it if it is missing. While several processes create
// the same one, a cluster leaves some of them without an answer: these look again.
func made[T any](
	ctx context.Context, find, create func(context.Context) (T, error),
) (v T, err error) {
	for wait := (backoff{}); ; {
		call, cancel := context.WithTimeout(ctx, writeTime)
		if v, err = find(call); missing(err) {
			v, err = create(call)
		}
		cancel()
		again := missing(err) || silent(err) || errors.Is(err, jetstream.ErrBucketExists) ||
			errors.Is(err, jetstream.ErrStreamNameAlreadyInUse)
		if !again || !wait.pause(ctx) {
			return v, err
		}
	}
}

// missing reports whether a stream or bucket is not there.
func missing(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) ||
		errors.Is(err, jetstream.ErrBucketNotFound)
}

// bucket finds a bucket, and creates it if it is missing.
func (c *Conn) bucket(
	ctx context.Context, cfg jetstream.KeyValueConfig,
) (jetstream.KeyValue, error) {
	return made(ctx, func(ctx context.Context) (jetstream.KeyValue, error) {
		return c.js.KeyValue(ctx, cfg.Bucket)
	}, func(ctx context.Context) (jetstream.KeyValue, error) {
		return c.js.CreateKeyValue(ctx, cfg)
	})
}

// objects finds an object store, and creates it if it is missing, for at most so many bytes; 0: no
// limit.
func (c *Conn) objects(
	ctx context.Context, name string, most int64,
) (jetstream.ObjectStore, error) {
	return made(ctx, func(ctx context.Context) (jetstream.ObjectStore, error) {
		return c.js.ObjectStore(ctx, name)
	}, func(ctx context.Context) (jetstream.ObjectStore, error) {
		return c.js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: name,
			TTL: c.lay.Keep, MaxBytes: most, Replicas: c.lay.Replicas})
	})
}

// lost reports whether a write failed because its bucket is no longer there. Those in memory are
// lost when a server without replicas restarts, and the first one that writes creates them again.
func lost(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
}

// heartbeats is the bucket of heartbeats. It is in memory: see lost.
func (c *Conn) heartbeats() jetstream.KeyValueConfig {
	return jetstream.KeyValueConfig{Bucket: workersBucket, TTL: deadAfter,
		Storage: jetstream.MemoryStorage, Replicas: c.lay.Replicas}
}

// stream finds a stream, and creates it if it is missing.
func (c *Conn) stream(ctx context.Context, cfg jetstream.StreamConfig) (jetstream.Stream, error) {
	return made(ctx, func(ctx context.Context) (jetstream.Stream, error) {
		return c.js.Stream(ctx, cfg.Name)
	}, func(ctx context.Context) (jetstream.Stream, error) {
		return c.js.CreateStream(ctx, cfg)
	})
}

// read parses the Layout of the process that created the stream.
func (l *Layout) read(note string) error {
	fields := strings.Fields(note)
	n := make([]int64, len(fields))
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil || n[i] < 1 {
			n = nil
			break
		}
	}
	if len(n) != 7 || n[0] > 1<<14 || max(n[1], n[3], n[4], n[6]) > math.MaxInt {
		return fmt.Errorf(
			"stream %s was not made by this program: got the note %q, want seven numbers",
			workStream, note)
	}
	*l = Layout{
		Partitions: int(n[0]), Replicas: int(n[1]), AckWait: time.Duration(n[2]),
		Deliver: int(n[3]), Begin: int(n[4]), Keep: time.Duration(n[5]), Bytes: int(n[6]),
	}
	return nil
}

// entries returns how many messages a stream has of each subject that is prefix and one more token,
// by that token.
func entries(ctx context.Context, s jetstream.Stream, prefix string) (map[string]uint64, error) {
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(prefix+"*"))
	if err != nil {
		return nil, err
	}
	byToken := make(map[string]uint64, len(info.State.Subjects))
	for subject, n := range info.State.Subjects {
		byToken[subject[len(prefix):]] = n
	}
	return byToken, nil
}

func consumerName(model string, partition int) string {
	return model + "_" + strconv.Itoa(partition)
}

// consumer returns the consumer of a partition, and creates it if it is missing.
func (c *Conn) consumer(
	ctx context.Context,
	model string,
	partition int,
) (jetstream.Consumer, error) {
	name := consumerName(model, partition)
	k, err := c.work.Consumer(ctx, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		k, err = c.work.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: name, FilterSubject: workSubject + model + "." + strconv.Itoa(partition),
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.lay.AckWait,
			MaxDeliver: c.lay.Deliver, MaxAckPending: -1, MaxWaiting: 4096,
			InactiveThreshold: 24 * time.Hour,
		})
	}
	return k, err
}
