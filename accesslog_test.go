package inference

import (
	"bytes"
	"io"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/stretchr/testify/assert"
)

type assertT = assert.CollectT

func init() { caddy.RegisterModule(new(testLog)) }

// accessLogs holds the access log of each running site.
var accessLogs sync.Map

// testLog is a log output that tests read.
type testLog struct {
	Site string `json:"site"`
}

func (*testLog) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.logging.writers.inference_test", New: func() caddy.Module { return new(testLog) }}
}

func (l *testLog) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if !d.Args(&l.Site) {
		return d.ArgErr()
	}
	return nil
}

func (l *testLog) String() string    { return l.Site }
func (l *testLog) WriterKey() string { return "inference_test:" + l.Site }
func (l *testLog) OpenWriter() (io.WriteCloser, error) {
	buffer, _ := accessLogs.Load(l.Site)
	return buffer.(*syncBuffer), nil
}

// syncBuffer is a buffer that is written while it is read.
type syncBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func (b *syncBuffer) Close() error { return nil }
