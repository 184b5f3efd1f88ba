//go:build !linux

package server

import "net"

// gone works only on Linux. Elsewhere net/http or a failed write detects the disconnect.
func gone(net.Conn) bool { return false }
