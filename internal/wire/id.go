package wire

import "context"

type requestID struct{}

// WithRequestID notes the id under which logs name the request of a context.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestID{}, id)
}

// RequestID is the id of a context's request; "" if it has none.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestID{}).(string)
	return id
}
