package inference

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"weak"

	"github.com/stretchr/testify/require"
)

// tries is how often a property is tried: the long form is for LONG=1.
func tries(short, long int) int {
	if os.Getenv("LONG") == "1" {
		return long
	}
	return short
}

// bodyRequest is a request with a body of a declared length, -1 for chunked.
func bodyRequest(reader io.Reader, length int64) *http.Request {
	r := &http.Request{Method: http.MethodPost, Body: io.NopCloser(reader), ContentLength: length}
	if length < 0 {
		r.TransferEncoding = []string{"chunked"}
	}
	return r
}

func newBudget(limit int64) *budget {
	b := new(budget)
	b.limit.Store(limit)
	return b
}

// randomBytes returns n bytes that are the same for the same n.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = random.Read(b)
	return b
}

// restored reads all that one attempt would send.
func restored(in *body, r *http.Request) ([]byte, error) {
	in.restore(r)
	return io.ReadAll(r.Body)
}

// readers deliver the same bytes in the ways that readers may.
var readers = map[string]func(io.Reader) io.Reader{
	"the end after the data": func(r io.Reader) io.Reader { return r },
	"the end with the data":  iotest.DataErrReader,
	"halves":                 iotest.HalfReader,
	"byte by byte":           iotest.OneByteReader,
	"nothing now and then":   func(r io.Reader) io.Reader { return &hesitant{Reader: r} },
}

// slow is up to where bodies are read in small pieces: what is beyond it takes the
// same turns.
const slow = 2 * firstPart

// hesitant reads nothing, without an error, every second time.
type hesitant struct {
	io.Reader
	reads int
}

func (h *hesitant) Read(p []byte) (int, error) {
	if h.reads++; h.reads%2 == 1 {
		return 0, nil
	}
	return h.Reader.Read(p)
}

func TestWhatWasSentIsWhatIsSentOn(t *testing.T) {
	const limit = trustedLength + 100_000
	sizes := []int{0, 1, 1000, firstPart - 1, firstPart, firstPart + 1, 2 * firstPart,
		trustedLength - 1, trustedLength, trustedLength + 1, limit - 1, limit, limit + 1, 2 * limit}
	budgets := map[string]func(size int) (limit int64){
		"plenty":   func(int) int64 { return 1 << 40 },
		"none":     func(int) int64 { return 0 },
		"half way": func(size int) int64 { return int64(size / 2) },
	}
	for _, size := range sizes {
		sent := randomBytes(size)
		for how, reader := range readers {
			if how == "byte by byte" && size > slow {
				continue
			}
			for _, length := range []int64{int64(size), -1} {
				for room, allowed := range budgets {
					t.Run(fmt.Sprintf("%d bytes, length %d, budget %s, %s", size, length, room, how), func(t *testing.T) {
						b := newBudget(allowed(size))
						r := bodyRequest(reader(bytes.NewReader(sent)), length)
						in := readBody(r, limit, b)
						requireWithin(t, in, b, limit)

						fits := size <= limit
						if room != "plenty" { // then there is room for the first part only
							fits = size <= firstPart
						}
						if room != "half way" || size <= firstPart {
							require.Equal(t, fits, in.whole)
						}
						requireSentOn(t, in, r, sent)
						in.letGo()
						require.Zero(t, b.used.Load())
					})
				}
			}
		}
	}
}

// requireWithin checks that a body holds what it took, and took no more than
// allowed.
func requireWithin(t *testing.T, in *body, b *budget, limit int64) {
	t.Helper()
	require.Equal(t, in.taken.Load(), b.used.Load(), "the budget does not know what is held")
	require.Equal(t, in.taken.Load(), int64(cap(in.data)))
	require.LessOrEqual(t, int64(len(in.data)), limit)
	if in.taken.Load() > firstPart {
		require.LessOrEqual(t, in.taken.Load(), b.limit.Load())
	}
}

// requireSentOn checks that the attempts send what the client sent: each of them
// if the body is whole, else the first.
func requireSentOn(t *testing.T, in *body, r *http.Request, sent []byte) {
	t.Helper()
	require.NoError(t, in.err)
	require.Equal(t, in.whole, len(in.data) == len(sent))
	require.Equal(t, in.whole, in.rest == nil)
	require.True(t, bytes.HasPrefix(sent, in.data))
	for attempt := range 3 {
		got, err := restored(in, r)
		if attempt > 0 && !in.whole {
			require.ErrorIs(t, err, errBodySent)
			require.True(t, bytes.Equal(in.data, got))
			continue
		}
		require.NoError(t, err)
		require.True(t, bytes.Equal(sent, got), "attempt %d sends %d bytes of %d, or others", attempt, len(got), len(sent))
	}
}

func TestAReadErrorIsSentOnWhereItWas(t *testing.T) {
	const limit = firstPart + 1000
	failure := errors.New("connection lost")
	wrapped := fmt.Errorf("truncated: %w", io.EOF) // not the end of a body
	for _, place := range []int{0, 1, firstPart - 1, firstPart, firstPart + 1, limit - 1, limit, limit + 1, 2 * limit} {
		for _, declared := range []int64{-1, int64(place), int64(place) + 1, 3 * limit} {
			for _, failure := range []error{failure, wrapped, io.ErrUnexpectedEOF, &http.MaxBytesError{Limit: 7}} {
				for _, room := range []int64{0, 1 << 30} {
					for how, reader := range readers {
						if how == "byte by byte" && failure != io.ErrUnexpectedEOF { //nolint:errorlint // one of the list
							continue
						}
						t.Run(fmt.Sprintf("%d of %d, budget %d, %v, %s", place, declared, room, failure, how), func(t *testing.T) {
							sent := randomBytes(place)
							b := newBudget(room)
							r := bodyRequest(reader(io.MultiReader(bytes.NewReader(sent), iotest.ErrReader(failure))), declared)
							in := readBody(r, limit, b)
							require.False(t, in.whole, "a body that broke off is taken for whole")
							requireWithin(t, in, b, limit)
							for range 2 {
								got, err := restored(in, r)
								if in.rest != nil && errors.Is(err, errBodySent) {
									continue // the first attempt had it
								}
								require.ErrorIs(t, err, failure)
								require.True(t, bytes.Equal(sent, got))
								require.Equal(t, declared, r.ContentLength)
							}
						})
					}
				}
			}
		}
	}
}

func TestABodyShorterThanDeclaredIsNotTakenForWhole(t *testing.T) {
	for _, size := range []int{0, 1, firstPart, firstPart + 1} {
		for _, declared := range []int64{int64(size) + 1, firstPart * 3, trustedLength * 3} {
			sent := randomBytes(size)
			r := bodyRequest(bytes.NewReader(sent), declared)
			in := readBody(r, defaultMaxBody, newBudget(1<<30))
			require.False(t, in.whole)
			for range 2 {
				got, err := restored(in, r)
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.True(t, bytes.Equal(sent, got))
				require.Equal(t, declared, r.ContentLength)
			}
		}
	}
}

func TestABodyLongerThanDeclaredIsNotCut(t *testing.T) {
	for _, size := range []int{1, 2, 1000, firstPart + 1, trustedLength + 2} {
		for how, reader := range readers {
			sent := randomBytes(size)
			r := bodyRequest(reader(bytes.NewReader(sent)), int64(size)-1)
			in := readBody(r, defaultMaxBody, newBudget(1<<30))
			require.False(t, in.whole, how)
			require.Len(t, in.data, size-1)
			requireSentOn(t, in, r, sent)
		}
	}
}

func TestTheRestBelongsToTheFirstAttemptThatReadsIt(t *testing.T) {
	const limit = 1000
	sent := randomBytes(5000)
	r := bodyRequest(bytes.NewReader(sent), -1)
	in := readBody(r, limit, newBudget(0))

	in.restore(r)
	first := r.Body
	in.restore(r)
	second := r.Body
	_, err := io.CopyN(io.Discard, first, limit)
	require.NoError(t, err)

	got, err := io.ReadAll(second) // the first attempt has failed within what is held
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))

	n, err := first.Read(make([]byte, 1))
	require.Zero(t, n)
	require.ErrorIs(t, err, errBodySent, "two attempts read the same client")
}

// TestABodyThatIsNotReadCanBeSentUntilItIsBegun has attempts at a body that nothing is
// held of.
func TestABodyThatIsNotReadCanBeSentUntilItIsBegun(t *testing.T) {
	const sent = "not a prompt"
	owned := &closeCounter{Reader: strings.NewReader(sent)}
	r := bodyRequest(owned, -1)
	r.Body = owned
	b := newBudget(1 << 30)
	in := leaveBody(r, b)
	require.True(t, in.isSendable())

	in.restore(r)
	first := r.Body
	in.restore(r)
	require.True(t, in.isSendable(), "nobody has read of it")
	got, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, sent, string(got))
	require.False(t, in.isSendable())
	for _, other := range []func() io.Reader{
		func() io.Reader { return first },
		func() io.Reader { in.restore(r); return r.Body },
		func() io.Reader { require.Nil(t, in.lend(r), "to another policy"); return r.Body },
	} {
		got, err = io.ReadAll(other())
		require.ErrorIs(t, err, errBodySent, "an engine would take the request for empty")
		require.Empty(t, got)
	}
	require.NoError(t, r.Body.Close())
	require.Zero(t, owned.closed)
	in.letGo()
	require.Zero(t, b.used.Load())
}

// TestABodyThatCaddyHoldsIsSentAsCaddyGivesIt has Caddy give it anew for each attempt.
func TestABodyThatCaddyHoldsIsSentAsCaddyGivesIt(t *testing.T) {
	r := bodyRequest(strings.NewReader("held"), 4)
	in := leaveBody(r, newBudget(0))
	for range 3 {
		r.Body = io.NopCloser(strings.NewReader("held"))
		got, err := restored(in, r)
		require.NoError(t, err)
		require.Equal(t, "held", string(got))
	}
}

func TestAWholeBodyIsSentWithItsLength(t *testing.T) {
	trailer := http.Header{"Checksum": {"1"}}
	tests := map[string]struct {
		sent     string
		length   int64
		trailer  http.Header
		expected int64
		coding   []string
	}{
		"declared":                {sent: "four", length: 4, expected: 4},
		"chunked":                 {sent: "four", length: -1, expected: 4},
		"chunked with trailers":   {sent: "four", length: -1, trailer: trailer, expected: -1, coding: []string{"chunked"}},
		"empty":                   {length: 0, expected: 0},
		"empty chunked":           {length: -1, expected: 0},
		"empty, but for trailers": {length: -1, trailer: trailer, expected: -1, coding: []string{"chunked"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := bodyRequest(bytes.NewReader([]byte(test.sent)), test.length)
			r.Trailer = test.trailer
			in := readBody(r, defaultMaxBody, newBudget(1<<30))
			for range 2 {
				reader := in.restore(r)
				require.Equal(t, test.expected, r.ContentLength)
				require.Equal(t, test.coding, r.TransferEncoding)
				require.Equal(t, r.ContentLength == 0, r.Body == http.NoBody)
				require.Equal(t, r.ContentLength == 0, reader == nil)
				got, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				require.Equal(t, test.sent, string(got))
			}
		})
	}
}

// closeCounter counts how often it is closed.
type closeCounter struct {
	io.Reader
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }

func TestTheServersBodyIsNeverClosed(t *testing.T) {
	for _, limit := range []int64{10, 1000} {
		owned := &closeCounter{Reader: bytes.NewReader(randomBytes(100))}
		r := bodyRequest(owned, 100)
		r.Body = owned
		in := readBody(r, limit, newBudget(1<<30))
		for range 2 {
			in.restore(r)
			require.NoError(t, r.Body.Close())
		}
		require.Zero(t, owned.closed)
	}
}

func TestABodyThatWasLetGoCannotBeSent(t *testing.T) {
	for _, limit := range []int64{1000, 10} {
		r := bodyRequest(bytes.NewReader(randomBytes(100)), 100)
		b := newBudget(1 << 30)
		in := readBody(r, limit, b)
		in.letGo()
		in.letGo()
		require.Zero(t, b.used.Load())
		got, err := restored(in, r)
		require.ErrorIs(t, err, errBodyLetGo)
		require.Empty(t, got)
	}
}

func TestAnAttemptKeepsItsBytesWhenTheBodyIsLetGo(t *testing.T) {
	sent := randomBytes(5000)
	r := bodyRequest(bytes.NewReader(sent), -1)
	in := readBody(r, 1000, newBudget(0))
	in.restore(r)
	in.letGo()
	got, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
}

func TestNoBodyIsNothingToRestore(t *testing.T) {
	var in *body
	r := bodyRequest(http.NoBody, 0)
	require.Nil(t, in.restore(r))
	require.Equal(t, io.NopCloser(http.NoBody), r.Body)
	in.letGo()
}

func TestADeclaredLengthIsTrustedOnlySoFar(t *testing.T) {
	for _, test := range []struct{ declared, held int64 }{
		{1, 1}, {firstPart, firstPart}, {trustedLength, trustedLength},
		{trustedLength + 1, firstPart}, {1 << 40, firstPart},
	} {
		b := newBudget(1 << 50)
		var held int64
		r := bodyRequest(readerFunc(func([]byte) (int, error) {
			held = b.used.Load()
			return 0, io.EOF
		}), test.declared)
		readBody(r, 1<<50, b)
		require.Equal(t, test.held, held, "before any byte of %d came", test.declared)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestABodyOfKnownLengthTakesAtMostTwiceThat(t *testing.T) {
	for _, size := range []int{0, 1, 1000, firstPart + 1, trustedLength, trustedLength + 1, 3*trustedLength + 5} {
		b := newBudget(1 << 30)
		in := readBody(bodyRequest(bytes.NewReader(randomBytes(size)), int64(size)), defaultMaxBody, b)
		require.True(t, in.whole)
		require.Equal(t, int64(cap(in.data)), b.used.Load())
		require.LessOrEqual(t, b.used.Load(), int64(2*size))
		in.letGo()
		require.Zero(t, b.used.Load())
	}
}

// TestNobodySendsBytesOfAnother restores bodies in every state, lets them go as the
// response begins, has others read theirs, and sends the first only then.
func TestNobodySendsBytesOfAnother(t *testing.T) {
	const length = 60_000
	for _, test := range []struct {
		name     string
		limit    int64 // max_body
		budget   int64
		breaks   bool // before its end
		attempts int
		sent     int // of these, how many were sent
	}{
		{name: "whole", limit: 1 << 20, budget: 1 << 30, attempts: 1},
		{name: "whole, sent again", limit: 1 << 20, budget: 1 << 30, attempts: 2, sent: 1},
		{name: "cut by max_body", limit: 50_000, budget: 1 << 30, attempts: 1},
		{name: "cut by max_buffered", limit: 1 << 20, budget: 1000, attempts: 1},
		{name: "cut when it grows", limit: 1 << 20, budget: 40_000, attempts: 2, sent: 1},
		{name: "broken off", limit: 1 << 20, budget: 1 << 30, breaks: true, attempts: 1},
	} {
		for _, declared := range []int64{length, -1} {
			t.Run(fmt.Sprintf("%s, length %d", test.name, declared), func(t *testing.T) {
				b := newBudget(test.budget)
				var from io.Reader = bytes.NewReader(bytes.Repeat([]byte("a"), length))
				if test.breaks {
					from = io.MultiReader(io.LimitReader(from, length/2), failing{io.ErrUnexpectedEOF})
				}
				r := bodyRequest(from, declared)
				in := readBody(r, test.limit, b)
				for i := range test.attempts {
					out := in.restore(r)
					if i < test.sent && out != nil {
						out.sent()
					}
				}
				in.letGo()
				b.limit.Store(1 << 30)
				for range 20 {
					readBody(bodyRequest(bytes.NewReader(bytes.Repeat([]byte("b"), length)), length), defaultMaxBody, b)
				}
				got, _ := io.ReadAll(r.Body)
				require.Zero(t, bytes.Count(got, []byte("b")), "bytes of another request")
			})
		}
	}
}

func TestABufferIsUsedAgainOnlyWhenItWasSent(t *testing.T) {
	const size = 10_000
	b := newBudget(1 << 30)
	begin := func() (*body, *http.Request) {
		r := bodyRequest(bytes.NewReader(randomBytes(size)), size)
		return readBody(r, defaultMaxBody, b), r
	}
	again := func(buffer *[]byte) (same bool) {
		for range 10 { // a pool keeps things apart by processor
			same = same || b.buffers.get(size) == buffer
		}
		return same
	}
	in, r := begin()
	buffer := in.buffer
	in.restore(r)
	in.letGo()
	require.False(t, again(buffer), "it may be being sent")

	reused := 0
	for range 100 {
		in, r = begin()
		buffer = in.buffer
		out := in.restore(r)
		out.sent()
		out.sent()
		in.letGo()
		in.letGo()
		if again(buffer) {
			reused++
		}
		require.False(t, again(buffer), "it was kept twice")
	}
	require.Positive(t, reused)
}

func TestABodyThatWasLetGoIsNotHeld(t *testing.T) {
	b := newBudget(1 << 30)
	r := bodyRequest(bytes.NewReader(randomBytes(200_000)), 200_000)
	in := readBody(r, defaultMaxBody, b)
	in.restore(r) // refused, say
	in.restore(r).sent()
	buffer := weak.Make(in.buffer)
	r.Body = nil
	in.letGo()
	runtime.GC()
	runtime.GC()
	require.Nil(t, buffer.Value())
	runtime.KeepAlive(in)
}

func TestABufferHoldsNoMoreThanTheLimit(t *testing.T) {
	for _, limit := range []int64{leastBuffer + 1, 5000, firstPart + 1} {
		b := newBudget(1 << 30)
		in := readBody(bodyRequest(bytes.NewReader(randomBytes(200_000)), 200_000), limit, b)
		require.Len(t, in.data, int(limit))
		require.Equal(t, "max_body", in.cut)
		require.Equal(t, limit, b.used.Load())
	}
}

func TestBuffersFitWhatTheyAreFor(t *testing.T) {
	var b buffers
	for n := int64(leastBuffer + 1); n <= trustedLength; n += 101 {
		length := int64(len(*b.get(n)))
		require.GreaterOrEqual(t, length, n)
		require.Less(t, length, 2*n)
	}
	require.Len(t, *b.get(4 << 10), 4<<10)
	require.Len(t, *b.get(4<<10 + 1), 8<<10)
	require.Len(t, *b.get(trustedLength), trustedLength)
	require.Nil(t, b.get(trustedLength+1))
	require.Nil(t, b.get(leastBuffer))
}

func TestATrustedBodyMakesOneBuffer(t *testing.T) {
	b := newBudget(1 << 30)
	for _, size := range []int{1, 1000, firstPart, firstPart + 1, trustedLength} {
		reader := bytes.NewReader(randomBytes(size))
		r := bodyRequest(reader, int64(size))
		requireAllocations(t, 2, 100, func() { // the body and its one buffer
			_, _ = reader.Seek(0, io.SeekStart)
			readBody(r, defaultMaxBody, b).letGo()
		})
	}
}

// TestBodiesShareOneBudget reads random bodies, some of which break off, through
// random readers within random limits and one budget, some held at a time.
func TestBodiesShareOneBudget(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	failure := errors.New("connection lost")
	for range tries(40, 4000) {
		b := newBudget(random.Int64N(2 << 20))
		var held []*body
		for range 30 {
			limit := 1 + random.Int64N(1<<(1+random.IntN(20)))
			sent := randomBytes(random.IntN(1 << (1 + random.IntN(20))))
			source, fails := io.Reader(bytes.NewReader(sent)), random.IntN(4) == 0
			if fails {
				source = io.MultiReader(source, iotest.ErrReader(failure))
			}
			length := int64(-1)
			if random.IntN(2) == 0 {
				length = int64(len(sent))
			}
			before := b.used.Load()
			r := bodyRequest(&randomReader{source, random}, length)
			in := readBody(r, limit, b)
			held = append(held, in)

			took := b.used.Load() - before
			require.Equal(t, int64(cap(in.data)), took)
			require.LessOrEqual(t, int64(cap(in.data)), limit)
			if took > min(limit, firstPart) {
				require.LessOrEqual(t, b.used.Load(), b.limit.Load())
			}
			all := int64(len(sent)) <= limit && !fails
			if in.whole != all {
				require.False(t, in.whole)
				wants := min(max(2*took, firstPart), limit) - took
				if length >= 0 {
					wants = min(wants, length-took)
				}
				require.Greater(t, b.used.Load()+wants, b.limit.Load(), "there was room for more")
			}
			got, err := restored(in, r)
			require.True(t, bytes.Equal(sent, got))
			require.Equal(t, fails, errors.Is(err, failure))
			if random.IntN(2) == 0 {
				i := random.IntN(len(held))
				held[i].letGo()
				held = append(held[:i], held[i+1:]...)
			}
		}
		for _, in := range held {
			in.letGo()
		}
		require.Zero(t, b.used.Load())
	}
}

// randomReader reads a random part of what it is asked for.
type randomReader struct {
	io.Reader
	*rand.Rand
}

func (r *randomReader) Read(p []byte) (int, error) {
	if len(p) > 1 && r.IntN(4) > 0 {
		p = p[:1+r.IntN(len(p))]
	}
	return r.Reader.Read(p)
}

func TestTheBudgetIsExact(t *testing.T) {
	b := newBudget(10)
	require.True(t, b.take(10))
	require.False(t, b.take(1))
	require.Equal(t, int64(10), b.used.Load(), "what was refused was taken")
	b.force(5)
	require.False(t, b.take(0), "it is over its limit")
	b.give(15)
	require.Zero(t, b.used.Load())
}

func BenchmarkReadBody(b *testing.B) {
	for _, size := range []int{2 << 10, 64 << 10, 256 << 10, 1 << 20} {
		for name, length := range map[string]int64{"declared": int64(size), "chunked": -1} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, name), func(b *testing.B) {
				room := newBudget(1 << 30)
				reader := bytes.NewReader(randomBytes(size))
				body := io.NopCloser(reader)
				r := bodyRequest(reader, length)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					_, _ = reader.Seek(0, io.SeekStart)
					r.Body, r.ContentLength = body, length
					in := readBody(r, defaultMaxBody, room)
					in.restore(r)
					in.letGo()
				}
			})
		}
	}
}
