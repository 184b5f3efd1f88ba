package server

import (
	"net"

	"golang.org/x/sys/unix"
)

// States of a TCP connection whose other end has said goodbye, as tcp_states.h numbers
// them.
const (
	tcpClose     = 7
	tcpCloseWait = 8
	tcpLastAck   = 9
	tcpClosing   = 11
)

// gone reports whether the other end of a connection has closed it or sent a reset,
// whatever it sent before and nobody has read.
func gone(c net.Conn) bool {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return false
	}
	over := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		switch info.State {
		case tcpClose, tcpCloseWait, tcpLastAck, tcpClosing:
			over = true
		}
	})
	return err != nil || over
}
