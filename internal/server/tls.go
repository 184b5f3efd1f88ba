package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Certificate is a certificate with its key in two files, which are read again when they change.
type Certificate struct {
	cert, key string // files
	log       *slog.Logger

	mu     sync.Mutex
	read   *tls.Certificate
	stamps [2]stamp
}

// stamp tells two versions of a file apart.
type stamp struct {
	changed time.Time
	size    int64
}

// OpenCertificate reads the files of a certificate and its key, in PEM. log may be nil.
func OpenCertificate(cert, key string, log *slog.Logger) (*Certificate, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c := &Certificate{cert: cert, key: key, log: log}
	var err error
	if c.stamps, err = c.stat(); err != nil {
		return nil, err
	}
	return c, c.load()
}

// stat returns the stamps of both files.
func (c *Certificate) stat() (s [2]stamp, err error) {
	for i, file := range []string{c.cert, c.key} {
		info, err := os.Stat(file)
		if err != nil {
			return s, err
		}
		s[i] = stamp{info.ModTime(), info.Size()}
	}
	return s, nil
}

// load reads both files.
func (c *Certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return fmt.Errorf("%s, %s: %w", c.cert, c.key, err)
	}
	c.read = &pair
	return nil
}

// config is the TLS configuration: TLS 1.2 and later. A certificate that cannot be read any more,
// or does not fit its key yet, is logged, and the last one stays.
func (c *Certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			now, err := c.stat()
			if err == nil && now != c.stamps {
				if err = c.load(); err == nil {
					c.stamps = now
					c.log.Info("new certificate", "file", c.cert)
				}
			}
			if err != nil {
				c.log.Error("certificate", "error", err)
			}
			return c.read, nil
		},
	}
}
