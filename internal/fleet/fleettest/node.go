package fleettest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Node is a NATS server as a process.
type Node struct {
	*Child
	Port   int
	Config string // file
}

// Nodes starts NATS servers, more than one as a cluster. It returns their addresses for clients.
func Nodes(t testing.TB, n int) (nodes []*Node, url string) {
	t.Helper()
	folders := make([]string, n)
	for i := range folders {
		folders[i] = t.TempDir()
	}
	nodes = NodesIn(t, folders, nil)
	var urls []string
	for _, d := range nodes {
		urls = append(urls, d.URL())
	}
	return nodes, strings.Join(urls, ",")
}

// NodesIn starts NATS servers that keep their streams in folders. between, when not nil, makes the
// network from one to another, whose routes come at port, and returns the port to call instead.
func NodesIn(
	t testing.TB, folders []string, between func(from, to, port int) int,
) (nodes []*Node) {
	t.Helper()
	routes := make([]int, len(folders))
	for i := range folders {
		routes[i] = FreePort(t)
	}
	dir := t.TempDir()
	for i, folder := range folders {
		d := &Node{Port: FreePort(t), Config: filepath.Join(dir, fmt.Sprintf("n%d.conf", i))}
		// Storage as of an embedded server: streams are not refused for the disk's free space.
		text := fmt.Sprintf("server_name: n%d\nlisten: \"127.0.0.1:%d\"\n"+
			"jetstream {store_dir: %q, max_file_store: 1000TB, max_mem: 256MB}\n",
			i, d.Port, folder)
		if len(folders) > 1 {
			text += fmt.Sprintf("cluster {\n\tname: test\n\tlisten: \"127.0.0.1:%d\"\n"+
				"\tno_advertise: true\n\troutes: [\n", routes[i])
			for j, port := range routes {
				if between != nil && i != j {
					port = between(i, j, port)
				}
				text += fmt.Sprintf("\t\t\"nats://127.0.0.1:%d\"\n", port)
			}
			text += "\t]\n"
			if between != nil { // or others would call it past that network
				text += "\tadvertise: \"127.0.0.1:1\"\n"
			}
			text += "}\n"
		}
		if err := os.WriteFile(d.Config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, d)
		d.Start(t)
	}
	return nodes
}

// URL is the address for clients.
func (d *Node) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", d.Port) }

// Start starts the server, also again.
func (d *Node) Start(t testing.TB) {
	t.Helper()
	d.Child = Begin(t, Command("nats", nil, "-c", d.Config))
	WaitPort(t, d.Port)
}

// FreePort is a port of this machine that nobody listens on. It lies below the ports that systems
// choose for outgoing connections (from 32768 on Linux, 49152 elsewhere): one of those would be
// taken by any connection before the caller listens.
func FreePort(t testing.TB) int {
	t.Helper()
	var err error
	for range 100 {
		port := 10000 + rand.IntN(20000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal(err)
	return 0
}

// WaitPort waits until somebody listens on a port.
func WaitPort(t testing.TB, port int) {
	t.Helper()
	if !Eventually(func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err == nil
	}) {
		t.Fatal("the NATS server did not start")
	}
}

// Eventually waits for ok, for a minute at most, and reports whether it came.
func Eventually(ok func() bool) bool {
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
