// Package natsserver runs a NATS server inside this process.
package natsserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Options say where the server listens and where it keeps its streams.
type Options struct {
	Host           string // "" is 127.0.0.1
	Port           int    // 0 picks a free port
	User, Password string // "": see Token
	Token          string // instead of a user; "": anyone who reaches the port is admitted
	Folder         string // for its streams
	Log            *slog.Logger
}

// startTime is the time limit for the server's start.
const startTime = 20 * time.Second

// Server is a NATS server with JetStream. It implements nats.InProcessConnProvider.
type Server struct {
	o Options

	mu  sync.Mutex
	now *server.Server

	broken  atomic.Bool  // writing a stream failed
	refused atomic.Int64 // time of the last report of a refused connection, in ns; 0: none
	stop    chan struct{}
	house   sync.WaitGroup
}

// Start starts a server.
func Start(o Options) (*Server, error) {
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	// Try the port first: if it is taken, the NATS server would end the process.
	if o.Port != 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(o.Host, fmt.Sprint(o.Port)))
		if err != nil {
			return nil, fmt.Errorf("natsserver: %w", err)
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
	} else {
		o.Port = server.RANDOM_PORT
	}
	s := &Server{o: o, stop: make(chan struct{})}
	var err error
	if s.now, err = s.begin(); err != nil {
		return nil, err
	}
	s.o.Port = s.now.Addr().(*net.TCPAddr).Port
	s.house.Go(s.watch)
	return s, nil
}

// begin starts a NATS server on the port.
func (s *Server) begin() (*server.Server, error) {
	n, err := server.NewServer(&server.Options{
		ServerName: "restore", Host: s.o.Host, Port: s.o.Port,
		Username: s.o.User, Password: s.o.Password, Authorization: s.o.Token,
		NoSigs: true, NoLog: true, JetStream: true, StoreDir: s.o.Folder, MaxPayload: maxPayload,
		JetStreamMaxStore: maxStore, JetStreamMaxMemory: maxMemory,
	})
	if err != nil {
		return nil, fmt.Errorf("natsserver: %w", err)
	}
	n.SetLogger(&logger{s}, false, false)
	go n.Start()
	if !n.ReadyForConnections(startTime) {
		n.Shutdown()
		return nil, errors.New("natsserver: the NATS server was not ready in time")
	}
	if !n.JetStreamEnabled() {
		n.Shutdown()
		return nil, fmt.Errorf("natsserver: JetStream cannot keep its streams in %s", s.o.Folder)
	}
	return n, nil
}

const (
	maxPayload = 1 << 20 // NATS default
	// maxStore is larger than any disk, so that NATS never refuses a stream because of the
	// disk's free space; a full disk is handled when it happens.
	maxStore  = 1 << 50
	maxMemory = 256 << 20 // for heartbeats
)

// InProcessConn implements nats.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.InProcessConn()
}

// URL is the address for clients.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.ClientURL()
}

// Close ends the server after its streams are on disk.
func (s *Server) Close() {
	close(s.stop)
	s.house.Wait()
	s.now.Shutdown()
	s.now.WaitForShutdown()
}

// logger receives the NATS server's log and keeps only the errors.
type logger struct{ s *Server }

func (l *logger) Noticef(string, ...any) {}
func (l *logger) Warnf(string, ...any)   {}
func (l *logger) Debugf(string, ...any)  {}
func (l *logger) Tracef(string, ...any)  {}

func (l *logger) Fatalf(format string, args ...any) { l.Errorf(format, args...) }

// Errorf reports an error. NATS never writes to a stream again after one write failed, so
// watch replaces the server then.
func (l *logger) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if strings.Contains(text, "write error") || strings.Contains(text, "no space left") {
		if !l.s.broken.Swap(true) {
			l.s.o.Log.Error("nats: cannot write, requests and results wait: make room on the disk",
				"folder", l.s.o.Folder, "error", text)
		}
		return
	}
	if strings.Contains(text, "authentication error") {
		now, last := time.Now().UnixNano(), l.s.refused.Load()
		if now-last > int64(refusedEvery) && l.s.refused.CompareAndSwap(last, now) {
			l.s.o.Log.Warn("nats: refused a connection", "error", text)
		}
		return
	}
	l.s.o.Log.Error("nats", "error", text)
}

// refusedEvery is how often refused connections are reported: a client tries several times per
// second.
const refusedEvery = time.Minute

// While the disk is full, watch tries every lookEvery to write a file of roomWant bytes.
const (
	lookEvery = time.Second
	roomWant  = 1 << 20
)

// watch replaces a server that failed to write, as soon as the disk has room.
func (s *Server) watch() {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
		if !s.broken.Load() || !hasRoom(s.o.Folder) {
			continue
		}
		s.mu.Lock()
		s.now.Shutdown()
		s.now.WaitForShutdown()
		s.broken.Store(false)
		n, err := s.begin()
		if err == nil {
			s.now = n
			s.o.Log.Warn("nats: the disk has room again, the server was restarted")
		} else {
			s.broken.Store(true) // it is tried again
			s.o.Log.Error("nats", "error", err)
		}
		s.mu.Unlock()
	}
}

// hasRoom reports whether a file can be written in a folder.
func hasRoom(folder string) bool {
	f, err := os.CreateTemp(folder, "room-")
	if err != nil {
		return false
	}
	_, err = f.Write(make([]byte, roomWant))
	return errors.Join(err, f.Close(), os.Remove(f.Name())) == nil
}
