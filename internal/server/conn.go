package server

import (
	"context"
	"crypto/tls"
	"net"
)

type connKey struct{}

// withConn stores a request's connection in its context, for handlers.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// conn returns the connection of a request, nil if there is none.
func (x *exchange) conn() net.Conn {
	c, _ := x.r.Context().Value(connKey{}).(net.Conn)
	return c
}
