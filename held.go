package inference

import (
	"io"
	"sync/atomic"
)

const (
	// defaultMaxBuffered is how much all requests together may hold of bodies.
	defaultMaxBuffered = 512 << 20

	// firstPart is what is read of a body when there is no room to hold it.
	firstPart = 64 << 10

	// untoldLength is the buffer that a body without a declared length begins with.
	untoldLength = 8 << 10

	// trustedLength is the declared length up to which a buffer is made at once;
	// beyond it a client has to send bytes before memory is taken.
	trustedLength = 256 << 10
)

// budget counts the bytes of bodies that all requests together hold.
type budget struct {
	used  atomic.Int64
	limit atomic.Int64

	buffers buffers
}

// take takes n bytes if they are there.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit.Load() {
		b.used.Add(-n)
		return false
	}
	return true
}

// force takes n bytes whether they are there or not.
func (b *budget) force(n int64) { b.used.Add(n) }

func (b *budget) give(n int64) { b.used.Add(-n) }

// held is what was read of a stream, up to a limit, in memory that is counted. It
// belongs to the goroutine that serves the request; only giveBack is called from
// others.
type held struct {
	budget *budget
	taken  atomic.Int64 // of the budget: the capacity of data, until it is given back

	data   []byte  // nil once it was let go
	buffer *[]byte // that data lies in, if it is one to be kept

	whole bool   // data is all there is
	cut   string // the limit that kept the rest from being read; empty if none did
}

// begin makes room for a stream that is said to be length bytes long, -1 if nothing is
// said. Where the budget has no room left it is little.
func (h *held) begin(length, limit int64) {
	size := min(limit, untoldLength)
	if length >= 0 {
		size = min(limit, firstPart, length)
	}
	switch {
	case length > size && length <= min(limit, trustedLength) && h.budget.take(length):
		size = length
	case !h.budget.take(size):
		size = min(size, untoldLength)
		h.budget.force(size)
	}
	h.move(size, limit)
}

// move moves the bytes to memory of size bytes, which were taken of the budget. It is
// more if the buffer is larger and the budget has room.
func (h *held) move(size, limit int64) {
	buffer, have := h.budget.buffers.get(size), h.data
	if buffer == nil {
		h.data = make([]byte, len(have), size)
	} else {
		room := min(int64(len(*buffer)), limit)
		if h.budget.take(room - size) {
			size = room
		}
		h.data = (*buffer)[:len(have):size]
	}
	h.taken.Store(size)
	copy(h.data, have)
	h.recycle()
	h.buffer = buffer
}

// fill reads until the stream, the limit or the budget ends. It returns how the stream
// ended, or nil.
func (h *held) fill(from io.Reader, length, limit int64) error {
	for {
		if len(h.data) == cap(h.data) && !h.grow(length, limit) {
			return nil
		}
		n, err := from.Read(h.data[len(h.data):cap(h.data)])
		h.data = h.data[:len(h.data)+n]
		if err != nil {
			return err
		}
	}
}

// grow makes room for more. It reports whether it did: not if there is none left to
// come, and not beyond the limit or the budget.
func (h *held) grow(length, limit int64) bool {
	have := int64(len(h.data))
	if have == length {
		return false
	}
	size := min(max(2*have, firstPart), limit)
	if length > have {
		size = min(size, length)
	}
	switch {
	case size <= have:
		h.cut = "max_body"
		return false
	case size <= firstPart:
		h.budget.force(size - have)
	case !h.budget.take(size - have):
		h.cut = "max_buffered"
		return false
	}
	h.move(size, limit)
	return true
}

// recycle keeps the buffer for others. Nobody may be reading from it.
func (h *held) recycle() {
	if h.buffer != nil {
		h.budget.buffers.put(h.buffer)
		h.buffer = nil
	}
}

// forget drops the bytes and gives back what they took of the budget.
func (h *held) forget() {
	h.data, h.buffer = nil, nil
	h.giveBack()
}

// giveBack gives back what was taken of the budget, once.
func (h *held) giveBack() { h.budget.give(h.taken.Swap(0)) }
