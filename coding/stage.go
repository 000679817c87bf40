package coding

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

const (
	// inputSize is how much a stage reads at once: the less, the better it is known
	// what was needed.
	inputSize = 4 << 10

	// ahead is how much more a stage reads than it gives: a block of zstd, the largest
	// there are, in each of the places where one may be held, and some.
	ahead = 512 << 10

	// maxWindow is the window of zstd that HTTP allows (RFC 9659), in bytes.
	maxWindow = 8 << 20
)

// errLonger ends a stage whose input is longer than what becomes of it, as that of
// nobody is who means to save something. There are ways to write nothing at any length.
var errLonger = errors.New("encoded body is longer than the decoded one")

// stage undoes one coding. Its memory is used again by others.
type stage struct {
	kind    kind
	source  source
	input   *bufio.Reader // of source
	decoder decoder
	begun   bool
	err     error
}

// decoder is what the libraries have in common.
type decoder interface {
	io.Reader

	// Reset begins anew with what is read from r.
	Reset(r io.Reader) error
}

// stages keeps those that are not in use.
var stages [kinds]sync.Pool

func takeStage(k kind) *stage {
	if s, ok := stages[k].Get().(*stage); ok {
		return s
	}
	s := &stage{kind: k}
	s.input = bufio.NewReaderSize(&s.source, inputSize)
	switch k {
	case gzipped:
		s.decoder = new(gzip.Reader)
	case deflated:
		s.decoder = new(deflate)
	case brotlied:
		s.decoder = new(brotli.Reader)
	case zstandard:
		s.decoder = newZstd()
	}
	return s
}

// newZstd returns a decoder of zstd that works where it is called.
func newZstd() *zstd.Decoder {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecoderMaxMemory(maxWindow),
	)
	if err != nil {
		panic(fmt.Sprintf("coding: options of zstd: %v", err)) // they are constants
	}
	return d
}

// open begins to read what from has.
func (s *stage) open(from io.Reader) {
	s.source = source{from: from, allowed: ahead}
	s.input.Reset(&s.source)
	s.begun, s.err = false, nil
}

// Read implements io.Reader.
func (s *stage) Read(p []byte) (int, error) {
	if !s.begun {
		s.begun = true
		s.err = s.decoder.Reset(s.input)
	}
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.decoder.Read(p)
	s.source.allowed += int64(n)
	s.err = err
	return n, err
}

// close keeps the stage for others, and nothing of what it read from.
func (s *stage) close() {
	s.source = source{}
	s.input.Reset(&s.source)
	stages[s.kind].Put(s)
}

// source is the input of a stage, in pieces and only as long as is allowed.
type source struct {
	from    io.Reader
	read    int64
	allowed int64
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	if s.read >= s.allowed {
		return 0, errLonger
	}
	n, err := s.from.Read(p[:min(len(p), inputSize)])
	s.read += int64(n)
	return n, err
}

// deflate decodes both of what goes by that name: zlib's format, as the RFC says, and
// the bare one, which many send. Servers and browsers take either.
type deflate struct {
	zlib    io.Reader
	bare    io.Reader
	current io.Reader
}

// Reset implements decoder.
func (d *deflate) Reset(r io.Reader) (err error) {
	in := bufio.NewReader(r) // r itself, as that is one
	head, _ := in.Peek(2)    // why there are fewer, reading on will tell
	switch {
	case !isZlib(head) && d.bare == nil:
		d.bare = flate.NewReader(in)
	case !isZlib(head):
		err = d.bare.(flate.Resetter).Reset(in, nil)
	case d.zlib == nil:
		d.zlib, err = zlib.NewReader(in)
	default:
		err = d.zlib.(zlib.Resetter).Reset(in, nil)
	}
	if err != nil {
		return err
	}
	d.current = d.bare
	if isZlib(head) {
		d.current = d.zlib
	}
	return nil
}

// Read implements io.Reader.
func (d *deflate) Read(p []byte) (int, error) { return d.current.Read(p) }

// isZlib reports whether head begins zlib's format: deflate with a window of at most
// 32 KiB, and a check. No encoder begins the bare format so.
func isZlib(head []byte) bool {
	return len(head) == 2 && head[0]&0x0f == 8 && head[0]>>4 <= 7 && (int(head[0])<<8|int(head[1]))%31 == 0
}
