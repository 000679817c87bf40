package kvevents

import (
	"encoding/binary"
	"errors"
	"math"
)

// What can be wrong with a batch.
var (
	errShort  = errors.New("it is cut short")
	errType   = errors.New("a value has another type than expected")
	errLength = errors.New("it declares more elements than it has bytes")
	errLimit  = errors.New("it is over a limit")
)

// reader reads MessagePack values one after the other. Nothing is allocated, and no
// length is believed that the bytes left cannot hold.
type reader struct {
	b []byte // what is left
}

// The first byte of a value, where it is not a range.
const (
	mpNil     = 0xc0
	mpBin8    = 0xc4
	mpBin16   = 0xc5
	mpBin32   = 0xc6
	mpExt8    = 0xc7
	mpExt16   = 0xc8
	mpExt32   = 0xc9
	mpFloat32 = 0xca
	mpFloat64 = 0xcb
	mpUint8   = 0xcc
	mpUint16  = 0xcd
	mpUint32  = 0xce
	mpUint64  = 0xcf
	mpInt8    = 0xd0
	mpInt16   = 0xd1
	mpInt32   = 0xd2
	mpInt64   = 0xd3
	mpFixExt1 = 0xd4
	mpFixExt9 = 0xd8 // of 16 bytes, the last
	mpStr8    = 0xd9
	mpStr16   = 0xda
	mpStr32   = 0xdb
	mpArray16 = 0xdc
	mpArray32 = 0xdd
	mpMap16   = 0xde
	mpMap32   = 0xdf
)

// shape is a kind of value.
type shape uint8

const (
	shapeNone shape = iota // no more bytes
	shapeNil
	shapeBool
	shapeInt
	shapeFloat
	shapeBytes // text or binary
	shapeArray
	shapeMap
	shapeExt
	shapeBad
)

var shapes = func() (s [256]shape) {
	for c := range s {
		switch {
		case c <= 0x7f || c >= 0xe0 || c >= mpUint8 && c <= mpInt64:
			s[c] = shapeInt
		case c <= 0x8f || c == mpMap16 || c == mpMap32:
			s[c] = shapeMap
		case c <= 0x9f || c == mpArray16 || c == mpArray32:
			s[c] = shapeArray
		case c <= 0xbf || c >= mpStr8 && c <= mpStr32 || c >= mpBin8 && c <= mpBin32:
			s[c] = shapeBytes
		case c == mpNil:
			s[c] = shapeNil
		case c == 0xc1:
			s[c] = shapeBad
		case c <= 0xc3:
			s[c] = shapeBool
		case c == mpFloat32 || c == mpFloat64:
			s[c] = shapeFloat
		default:
			s[c] = shapeExt
		}
	}
	return s
}()

// next says what comes.
func (m *reader) next() shape {
	if len(m.b) == 0 {
		return shapeNone
	}
	return shapes[m.b[0]]
}

// wrong is the error for a value that is not what was expected.
func (m *reader) wrong() error {
	if len(m.b) == 0 {
		return errShort
	}
	return errType
}

// length reads the rest of a header whose length has so many bytes.
func (m *reader) length(bytes int) (int, error) {
	if len(m.b) < 1+bytes {
		return 0, errShort
	}
	n := 0
	for _, c := range m.b[1 : 1+bytes] {
		n = n<<8 | int(c)
	}
	m.b = m.b[1+bytes:]
	return n, nil
}

// array reads the header of an array.
func (m *reader) array() (n int, err error) {
	if m.next() != shapeArray {
		return 0, m.wrong()
	}
	switch c := m.b[0]; c {
	case mpArray16:
		n, err = m.length(2)
	case mpArray32:
		n, err = m.length(4)
	default:
		n, m.b = int(c&0x0f), m.b[1:]
	}
	if err == nil && n > len(m.b) {
		err = errLength
	}
	return n, err
}

// mapping reads the header of a map and returns how many pairs it has.
func (m *reader) mapping() (n int, err error) {
	if m.next() != shapeMap {
		return 0, m.wrong()
	}
	switch c := m.b[0]; c {
	case mpMap16:
		n, err = m.length(2)
	case mpMap32:
		n, err = m.length(4)
	default:
		n, m.b = int(c&0x0f), m.b[1:]
	}
	if err == nil && 2*n > len(m.b) {
		err = errLength
	}
	return n, err
}

// bytes reads text or binary; it is part of the input.
func (m *reader) bytes() ([]byte, error) {
	if m.next() != shapeBytes {
		return nil, m.wrong()
	}
	var n int
	var err error
	switch c := m.b[0]; c {
	case mpStr8, mpBin8:
		n, err = m.length(1)
	case mpStr16, mpBin16:
		n, err = m.length(2)
	case mpStr32, mpBin32:
		n, err = m.length(4)
	default:
		n, m.b = int(c&0x1f), m.b[1:]
	}
	if err != nil {
		return nil, err
	}
	if n > len(m.b) {
		return nil, errShort
	}
	b := m.b[:n:n]
	m.b = m.b[n:]
	return b, nil
}

// integer reads an integer as 64 bits in two's complement.
func (m *reader) integer() (v uint64, negative bool, err error) {
	if m.next() != shapeInt {
		return 0, false, m.wrong()
	}
	c := m.b[0]
	if c <= 0x7f {
		m.b = m.b[1:]
		return uint64(c), false, nil
	}
	if c >= 0xe0 {
		m.b = m.b[1:]
		return uint64(int64(int8(c))), true, nil //nolint:gosec // sign extension
	}
	signed := c >= mpInt8
	size := 1 << (c & 3)
	if len(m.b) < 1+size {
		return 0, false, errShort
	}
	p := m.b[1:]
	switch size {
	case 1:
		v = uint64(p[0])
	case 2:
		v = uint64(binary.BigEndian.Uint16(p))
	case 4:
		v = uint64(binary.BigEndian.Uint32(p))
	default:
		v = binary.BigEndian.Uint64(p)
	}
	m.b = p[size:]
	if signed {
		shift := 64 - 8*size
		s := int64(v<<shift) >> shift //nolint:gosec // sign extension
		return uint64(s), s < 0, nil  //nolint:gosec // two's complement
	}
	return v, false, nil
}

// number reads an integer that is not negative and not over a limit.
func (m *reader) number(limit uint64) (int, error) {
	v, negative, err := m.integer()
	if err != nil {
		return 0, err
	}
	if negative || v > limit {
		return 0, errLimit
	}
	return int(v), nil //nolint:gosec // limits are small
}

// float reads a float or an integer.
func (m *reader) float() (float64, error) {
	if m.next() != shapeFloat {
		v, negative, err := m.integer()
		if negative {
			return float64(int64(v)), err //nolint:gosec // two's complement
		}
		return float64(v), err
	}
	if m.b[0] == mpFloat32 {
		if len(m.b) < 5 {
			return 0, errShort
		}
		v := math.Float32frombits(binary.BigEndian.Uint32(m.b[1:]))
		m.b = m.b[5:]
		return float64(v), nil
	}
	if len(m.b) < 9 {
		return 0, errShort
	}
	v := math.Float64frombits(binary.BigEndian.Uint64(m.b[1:]))
	m.b = m.b[9:]
	return v, nil
}

// skip steps over a value, however deep it is nested, without recursion.
func (m *reader) skip() error {
	for left := 1; left > 0; left-- {
		n, err := m.skipOne()
		if err != nil {
			return err
		}
		left += n
	}
	return nil
}

// skipOne steps over a value, of a container over its header, and returns how many
// values that holds.
func (m *reader) skipOne() (int, error) {
	switch m.next() {
	case shapeNil, shapeBool:
		m.b = m.b[1:]
		return 0, nil
	case shapeInt:
		_, _, err := m.integer()
		return 0, err
	case shapeFloat:
		_, err := m.float()
		return 0, err
	case shapeBytes:
		_, err := m.bytes()
		return 0, err
	case shapeArray:
		return m.array()
	case shapeMap:
		n, err := m.mapping()
		return 2 * n, err
	case shapeExt:
		return 0, m.skipExt()
	default:
		return 0, m.wrong()
	}
}

// skipExt steps over a value of an extension type.
func (m *reader) skipExt() error {
	var n int
	var err error
	switch c := m.b[0]; c {
	case mpExt8:
		n, err = m.length(1)
	case mpExt16:
		n, err = m.length(2)
	case mpExt32:
		n, err = m.length(4)
	default:
		n, m.b = 1<<(c-mpFixExt1), m.b[1:]
	}
	if err != nil {
		return err
	}
	if n++; n > len(m.b) { // the type comes first
		return errShort
	}
	m.b = m.b[n:]
	return nil
}
