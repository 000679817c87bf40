package inference

import (
	"math/bits"
	"sync"
)

const (
	// leastBuffer is the length below which a buffer is not worth keeping.
	leastBuffer = 2 << 10

	bufferClasses = 7 // 4 KiB, 8 KiB and so on, up to trustedLength
)

// buffers keeps the buffers of bodies that were sent for those that come: else they
// would be most of what the garbage collector has to do.
type buffers [bufferClasses]sync.Pool

// get returns a buffer for n bytes, at most twice as large; nil if buffers of that
// length are not kept.
func (b *buffers) get(n int64) *[]byte {
	if n <= leastBuffer || n > trustedLength {
		return nil
	}
	class := bufferClass(n)
	if buffer, ok := b[class].Get().(*[]byte); ok {
		return buffer
	}
	return new(make([]byte, 2*leastBuffer<<class))
}

// put keeps a buffer that get returned and that nobody uses any more.
func (b *buffers) put(buffer *[]byte) { b[bufferClass(int64(len(*buffer)))].Put(buffer) }

// bufferClass is the class of the buffers of 4 KiB << class that n bytes fit in.
func bufferClass(n int64) int {
	return bits.Len64(uint64(n-1)) - bits.Len64(leastBuffer) //nolint:gosec // n is above leastBuffer
}
