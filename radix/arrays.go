package radix

import (
	"math/bits"
	"slices"
)

const (
	// arrayClasses are the lengths that arrays come in: 2, 4, 8 and so on to MaxWorkers.
	arrayClasses = 12

	// pageElements is what a page of arrays holds, unless a single one is longer.
	pageElements = 128

	// arrayPageOverhead is the memory that finds a page and what is in it, in bytes.
	arrayPageOverhead = 8 + 48
)

// ref names an array: its number among those of its class, and in the last four bits the
// class plus one. 0 names none.
type ref uint32

func newRef(class int, number uint32) ref { return ref(number<<4) | ref(class+1) } //nolint:gosec // class is small

func (r ref) class() int     { return int(r&15) - 1 }
func (r ref) number() uint32 { return uint32(r >> 4) }

// arrays holds an array for each of some nodes. Those of a class, which are of equal
// length, are without gaps, as the blocks of edges are.
type arrays[T any] struct {
	named   func(node uint32) *ref // where a node names its array
	size    int64                  // of an element, in bytes
	classes [arrayClasses]arrayClass[T]
	memory  int64 // of pages
}

// arrayClass holds the arrays of a length.
type arrayClass[T any] struct {
	pages []*arrayPage[T]
	live  uint32 // arrays in use: those numbered 0 to live-1
}

type arrayPage[T any] struct {
	elements []T
	nodes    []uint32 // whose each array is
}

// classOf returns the class of arrays with room for n elements.
func classOf(n int) int { return bits.Len(uint(max(n, 2)-1)) - 1 }

// perPage returns how many arrays of a class a page holds, as a power of two.
func perPage(class int) int { return max(bits.Len(pageElements)-2-class, 0) }

// bytes returns the memory of the pages and of what finds them.
func (a *arrays[T]) bytes() int64 { return a.memory }

// get returns the array of that name, nil if it names none.
func (a *arrays[T]) get(r ref) []T {
	if r == 0 {
		return nil
	}
	class, shift := r.class(), perPage(r.class())
	page := a.classes[class].pages[r.number()>>shift]
	at := int(r.number()) & (1<<shift - 1) << (class + 1)
	return page.elements[at : at+2<<class]
}

// fit makes a node's array one with room for n elements and returns it. What fits of
// what was in it stays; what comes with more room is zero.
func (a *arrays[T]) fit(id uint32, n int) []T {
	old := *a.named(id)
	class := classOf(n)
	if old != 0 && old.class() == class {
		return a.get(old)
	}
	fresh := a.alloc(class, id)
	array := a.get(fresh)
	kept := copy(array, a.get(old))
	clear(array[kept:])
	a.release(id)
	*a.named(id) = fresh
	return array
}

func (a *arrays[T]) alloc(class int, id uint32) ref {
	c, shift := &a.classes[class], perPage(class)
	number := c.live
	c.live++
	if int(number>>shift) == len(c.pages) {
		a.memory += a.pageBytes(class) - int64(cap(c.pages))*8
		c.pages = append(c.pages, &arrayPage[T]{make([]T, 2<<class<<shift), make([]uint32, 1<<shift)})
		a.memory += int64(cap(c.pages)) * 8
	}
	*c.node(number, shift) = id
	return newRef(class, number)
}

// release takes a node's array from it, and gives its place to the last of the class.
func (a *arrays[T]) release(id uint32) {
	gone := *a.named(id)
	if gone == 0 {
		return
	}
	*a.named(id) = 0
	class, shift := gone.class(), perPage(gone.class())
	c := &a.classes[class]
	c.live--
	if gone.number() != c.live {
		copy(a.get(gone), a.get(newRef(class, c.live)))
		moved := *c.node(c.live, shift)
		*c.node(gone.number(), shift) = moved
		*a.named(moved) = gone
	}
	// As with edges.
	if n := len(c.pages) - 1; int(c.live+1<<shift/2)>>shift < n {
		a.memory -= a.pageBytes(class) + int64(cap(c.pages))*8
		c.pages = clip(c.pages, n)
		a.memory += int64(cap(c.pages)) * 8
	}
}

func (c *arrayClass[T]) node(number uint32, shift int) *uint32 {
	return &c.pages[number>>shift].nodes[number&(1<<shift-1)]
}

func (a *arrays[T]) pageBytes(class int) int64 {
	return a.size*(2<<class<<perPage(class)) + 4<<perPage(class) + arrayPageOverhead - 8
}

// clip shortens a list of pages to n, and moves it when it is much longer than it need be.
func clip[P any](pages []*P, n int) []*P {
	clear(pages[n:])
	pages = pages[:n]
	if n < cap(pages)/4 {
		return slices.Clone(pages)
	}
	return pages
}
