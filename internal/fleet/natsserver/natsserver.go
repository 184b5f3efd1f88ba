// Package natsserver runs a NATS server inside this process.
package natsserver

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Options say where the server listens and where it keeps its streams.
type Options struct {
	Host           string // "" is 127.0.0.1
	Port           int    // 0 picks a free port
	User, Password string // "": no authentication
	Folder         string // for its streams
}

// startTime is the time limit for the server's start.
const startTime = 20 * time.Second

// Server is a NATS server with JetStream. It implements nats.InProcessConnProvider.
type Server struct {
	*server.Server
}

// Start starts a server.
func Start(o Options) (*Server, error) {
	if o.Host == "" {
		o.Host = "127.0.0.1"
	}
	port := o.Port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "restore", Host: o.Host, Port: port, Username: o.User, Password: o.Password,
		NoSigs: true, NoLog: true, JetStream: true, StoreDir: o.Folder, MaxPayload: maxPayload,
	})
	if err != nil {
		return nil, fmt.Errorf("natsserver: %w", err)
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
	}
	go s.Start()
	if !s.ReadyForConnections(startTime) {
		s.Shutdown()
		return nil, errors.New("natsserver: the NATS server was not ready in time")
	}
	if !s.JetStreamEnabled() {
		s.Shutdown()
		return nil, fmt.Errorf("natsserver: JetStream cannot keep its streams in %s", o.Folder)
	}
	return &Server{s}, nil
}

// maxPayload is NATS's default.
const maxPayload = 1 << 20

// URL is the address for clients.
func (s *Server) URL() string { return s.ClientURL() }

// Close ends the server after its streams are on disk.
func (s *Server) Close() {
	s.Shutdown()
	s.WaitForShutdown()
}
