package server

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

// sayAgain is the least time between two log lines about connections that cannot be accepted.
const sayAgain = 10 * time.Second

// listener logs that connections cannot be accepted, as when the process has no file descriptor
// left. net/http only tries again, so that clients wait without a reason.
type listener struct {
	net.Listener
	log  *slog.Logger
	said time.Time // net/http accepts one connection after another
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) && time.Since(l.said) >= sayAgain {
		l.said = time.Now()
		l.log.Warn("clients wait: a connection could not be accepted", "error", err)
	}
	return c, err
}
