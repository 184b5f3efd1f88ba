package server

import (
	"net"

	"golang.org/x/sys/unix"
)

// States of a TCP connection that its peer has closed, as numbered in tcp_states.h.
const (
	tcpClose     = 7
	tcpCloseWait = 8
	tcpLastAck   = 9
	tcpClosing   = 11
)

// gone reports whether the peer of a connection has closed or reset it, even if sent data is still
// unread.
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
