package server

import (
	"context"
	"net"
)

type connKey struct{}

// withConn lets handlers find their connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// conn returns the connection of a request, nil where there is none.
func (x *exchange) conn() net.Conn {
	c, _ := x.r.Context().Value(connKey{}).(net.Conn)
	return c
}
