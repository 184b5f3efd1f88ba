package hub

import (
	"context"
	"net/http"

	"github.com/restore-vlm/restore/internal/web"
)

// Endpoint returns the address of the hub.
func (c *Client) Endpoint() string { return c.endpoint.String() }

// Reach asks the hub once, through the proxy of the environment, whether it answers. The answer
// may be an error status: it shows that the way is open. No token is sent.
func (c *Client) Reach(ctx context.Context) error {
	if c.offline != "" {
		return web.Permanentf("%s forbids requests", c.offline)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, c.Endpoint(), nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return web.TransportError(ctx, c.endpoint.Host, err)
	}
	return resp.Body.Close()
}
