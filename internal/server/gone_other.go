//go:build !linux

package server

import "net"

// gone is known on Linux alone; elsewhere net/http tells, and the failed write.
func gone(net.Conn) bool { return false }
