package server

import (
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// short is a listener without a file descriptor for the first connections.
type short struct {
	net.Listener
	left *atomic.Int32
}

func (l short) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp",
			Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// Ensure that the log says once why connections are not accepted, and that they are accepted when
// they can be.
func TestNoDescriptors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	left := new(atomic.Int32)
	left.Store(3)
	r := serveOn(t, short{l, left}, newFake(), nil)
	if status, _, body := r.do(t, "GET", "/health", ""); status != http.StatusOK {
		t.Errorf("got %d %s", status, body)
	}
	r.stop()
	<-r.done
	log := r.log.String()
	if strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, syscall.EMFILE.Error()) {
		t.Errorf("got the log\n%s\nwant one warning with the error", log)
	}
}
