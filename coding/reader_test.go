package coding

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/flate"
	"github.com/stretchr/testify/require"
)

// eachCoding runs a test for each coding, and for some in a row.
func eachCoding(t *testing.T, run func(t *testing.T, names ...string)) {
	list := [][]string{
		{"gzip", "gzip"}, {"zstd", "gzip"}, {"gzip", "zstd"}, {"deflate", "br"},
		{"deflate:bare", "deflate", "deflate:bare"}, {"gzip", "deflate", "br", "zstd", "x-gzip"},
	}
	for name := range encoders {
		list = append(list, []string{name})
	}
	for _, names := range list {
		t.Run(strings.Join(names, " "), func(t *testing.T) { run(t, names...) })
	}
}

func TestWhatWasEncodedIsDecoded(t *testing.T) {
	eachCoding(t, func(t *testing.T, names ...string) {
		for _, text := range [][]byte{{}, []byte("{"), prose(1000), prose(200_000), noise(200_000), make([]byte, 500_000)} {
			label, body := encoded(t, text, slices.Clone(names)...)
			for _, piece := range []int{1, 1000, 1 << 20} {
				if piece == 1 && len(text) > 1000 {
					continue
				}
				r := open(t, label, body)
				got := make([]byte, 0, len(text)+1)
				var err error
				for err == nil {
					var n int
					n, err = r.Read(got[len(got):min(len(got)+piece, cap(got))])
					got = got[:len(got)+n]
				}
				require.Equal(t, io.EOF, err, "%d bytes", len(text))
				require.True(t, bytes.Equal(text, got), "%d bytes", len(text))
				require.Equal(t, len(body), r.Consumed())
				r.Close()
			}
		}
	})
}

func TestGzipMayHaveSeveralMembers(t *testing.T) {
	_, one := encoded(t, prose(1000), "gzip")
	_, two := encoded(t, prose(2000), "gzip")
	r := open(t, "gzip", append(one, two...))
	defer r.Close()
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, string(prose(1000))+string(prose(2000)), string(got))
}

func TestABrokenBodyIsDecodedAsFarAsItGoes(t *testing.T) {
	text := prose(700_000)
	eachCoding(t, func(t *testing.T, names ...string) {
		label, body := encoded(t, text, names...)
		corrupt := slices.Clone(body)
		copy(corrupt[len(body)/2:], noise(100))
		for what, broken := range map[string][]byte{"cut": body[:len(body)*3/4], "cut at its end": body[:len(body)-1], "corrupt": corrupt} {
			r := open(t, label, broken)
			got, err := io.ReadAll(r)
			r.Close()
			require.Greater(t, len(got), len(text)/8, what)
			require.True(t, bytes.HasPrefix(text, got[:len(text)/8]), what)
			if what == "corrupt" {
				continue // not all have a sum to tell
			}
			require.True(t, bytes.HasPrefix(text, got), what)
			if len(got) < len(text) || len(names) == 1 { // else an inner coding may have had all it needs
				require.Error(t, err, what)
			}
		}
	})
}

func TestWhatIsNotEncodedIsRefused(t *testing.T) {
	for name := range encoders {
		label, _, _ := strings.Cut(name, ":")
		for _, body := range []string{`{"model":"m1","messages":[]}`, "\x1f\x8b", "\x28\xb5\x2f\xfd", "\x78\x9c", "\x00", "\xff\xff\xff\xff\xff"} {
			r := open(t, label, []byte(body))
			_, err := io.ReadAll(r)
			require.Error(t, err, "%q as %s", body, label)
			r.Close()
		}
	}
}

// bomb is gzip's form of a number of times 16 MiB of nothing.
func bomb(t testing.TB, times int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, 1)
	require.NoError(t, err)
	_, _ = w.Write(make([]byte, 16<<20))
	require.NoError(t, w.Flush())
	head := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0}
	return append(head, bytes.Repeat(b.Bytes(), times)...)
}

func TestOfABombOnlyWhatIsAskedForIsRead(t *testing.T) {
	const asked = 1 << 20
	once := bomb(t, 600) // 10 GB
	_, twice := encoded(t, once, "gzip")
	for label, body := range map[string][]byte{"gzip": once, "gzip, gzip": twice} {
		r := open(t, label, body)
		n, err := io.CopyN(io.Discard, r, asked)
		require.NoError(t, err)
		require.EqualValues(t, asked, n)
		require.Less(t, r.Consumed(), 3*inputSize)
		r.Close()
	}
}

// TestWritingNothingAtLengthIsNotReadOn has bodies whose codings say nothing in many
// bytes, and one whose inner coding says nothing in very many.
func TestWritingNothingAtLengthIsNotReadOn(t *testing.T) {
	const length = 4 * ahead
	_, member := encoded(t, nil, "gzip")
	_, frame := encoded(t, nil, "zstd")
	skipped := binary.LittleEndian.AppendUint32([]byte("\x50\x2a\x4d\x18"), 0)
	emptyBlock := []byte{0, 0, 0, 0xff, 0xff} // of deflate, stored
	metadata := []byte{0b110}                 // of brotli: not the last block, to be skipped, no length
	for name, test := range map[string]struct {
		label      string
		head, each []byte
	}{
		"gzip members":          {label: "gzip", each: member},
		"gzip blocks":           {label: "gzip", head: bomb(t, 0), each: emptyBlock},
		"zlib blocks":           {label: "deflate", head: []byte{0x78, 0x9c}, each: emptyBlock},
		"bare blocks":           {label: "deflate", each: emptyBlock},
		"zstd frames":           {label: "zstd", each: append(frame, skipped...)},
		"zstd frames to skip":   {label: "zstd", each: skipped},
		"a zstd frame to skip":  {label: "zstd", head: []byte("\x50\x2a\x4d\x18\x00\x00\x00\x7f"), each: []byte{0}},
		"brotli blocks to skip": {label: "br", head: []byte{0x6b, 0}, each: metadata},
	} {
		t.Run(name, func(t *testing.T) {
			body := append(test.head, bytes.Repeat(test.each, length/len(test.each))...)
			_, inside := encoded(t, body, "gzip")
			for label, body := range map[string][]byte{test.label: body, test.label + ", gzip": inside} {
				r := open(t, label, body)
				n, err := io.Copy(io.Discard, r)
				require.Zero(t, n)
				require.Error(t, err)
				read := r.stages[len(r.stages)-1].source.read
				require.GreaterOrEqual(t, read, int64(ahead), "it is not nothing that was written")
				require.LessOrEqual(t, read, int64(ahead+inputSize))
				r.Close()
			}
		})
	}
}

// TestMemoryIsAsTold decodes with the largest windows there are, in stages that are new.
func TestMemoryIsAsTold(t *testing.T) {
	for name := range encoders {
		t.Run(name, func(t *testing.T) {
			text := prose(100_000)
			if strings.HasSuffix(name, "large window") {
				text = make([]byte, 17<<20) // longer than any
			}
			label, body := encoded(t, text, name)
			codings, _ := Parse([]string{label})
			room := make([]byte, 64<<10)
			runtime.GC()
			runtime.GC() // what pools keep goes with the second
			before := allocated()
			r := Open(codings, body)
			_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, room)
			require.NoError(t, err)
			r.Close()
			require.LessOrEqual(t, allocated()-before, codings.Memory())
		})
	}
}

func allocated() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.TotalAlloc)
}

// TestAWindowThatHTTPDoesNotAllowIsRefused has zstd ask for 16 MiB, as a window and as a
// single segment.
func TestAWindowThatHTTPDoesNotAllowIsRefused(t *testing.T) {
	for _, header := range []string{"\x00\x70", "\xa0\x00\x00\x00\x01"} {
		body := []byte("\x28\xb5\x2f\xfd" + header + "\x09\x00\x00a") // one raw block of a byte
		r := open(t, "zstd", body)
		before := allocated()
		n, err := io.Copy(io.Discard, r)
		require.Zero(t, n)
		require.ErrorContains(t, err, "exceed")
		require.Less(t, allocated()-before, int64(1<<20))
		r.Close()
	}
}

// TestManyDecodeAtOnce has decoders used again by others, after all that may befall them.
func TestManyDecodeAtOnce(t *testing.T) {
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for round := range 5 {
				for name := range encoders {
					text := prose(1000 + 100*i + round)
					label, body := encoded(t, text, name)
					for _, length := range []int{len(body), len(body) / 2} {
						r := open(t, label, body[:length])
						got, err := io.ReadAll(r)
						r.Close()
						if !bytes.HasPrefix(text, got) || length == len(body) && (err != nil || len(got) != len(text)) {
							t.Errorf("%s: %d bytes of %d, or others: %v", label, len(got), len(text), err)
						}
					}
				}
			}
		})
	}
	group.Wait()
}

func FuzzReader(f *testing.F) {
	for name := range encoders {
		for _, text := range [][]byte{nil, prose(100), prose(10_000)} {
			label, body := encoded(f, text, name)
			f.Add(label, body)
			f.Add(label+","+label, body)
		}
	}
	f.Add("gzip", bomb(f, 1))
	f.Fuzz(func(t *testing.T, label string, body []byte) {
		codings, known := Parse([]string{label})
		if !known {
			return
		}
		const asked = 1 << 20
		r := Open(codings, body)
		n, _ := io.CopyN(io.Discard, r, asked)
		require.LessOrEqual(t, r.Consumed(), len(body))
		for i, s := range r.stages {
			require.LessOrEqual(t, s.source.read, n+int64(len(r.stages)-i)*(ahead+32<<10+inputSize))
		}
		r.Close()
	})
}

func BenchmarkReader(b *testing.B) {
	for _, size := range []int{2 << 10, 16 << 10, 1 << 20} {
		for _, name := range []string{"gzip", "deflate", "br", "zstd"} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				label, body := encoded(b, prose(size), name)
				codings, _ := Parse([]string{label})
				text := make([]byte, size+1)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					r := Open(codings, body)
					if _, err := io.ReadFull(r, text); err != io.ErrUnexpectedEOF {
						b.Fatal(err)
					}
					r.Close()
				}
			})
		}
	}
}
