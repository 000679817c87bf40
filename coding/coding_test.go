package coding

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// encoders write each coding, and forms of it, that are told apart by what follows a
// colon.
var encoders = map[string]func(w io.Writer) (io.WriteCloser, error){
	"gzip":    func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
	"x-gzip":  func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.NoCompression) },
	"deflate": func(w io.Writer) (io.WriteCloser, error) { return zlib.NewWriter(w), nil },
	"br":      func(w io.Writer) (io.WriteCloser, error) { return brotli.NewWriterLevel(w, 2), nil },
	"br:large window": func(w io.Writer) (io.WriteCloser, error) {
		return brotli.NewWriterOptions(w, brotli.WriterOptions{Quality: 2, LGWin: 24}), nil
	},
	"deflate:bare": func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, 6) },
	"zstd": func(w io.Writer) (io.WriteCloser, error) {
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
	},
	"zstd:large window": func(w io.Writer) (io.WriteCloser, error) {
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(maxWindow))
	},
}

// encoded applies codings, as the label that it returns names them.
func encoded(t testing.TB, text []byte, names ...string) (label string, body []byte) {
	t.Helper()
	for _, name := range names {
		var b bytes.Buffer
		w, err := encoders[name](&b)
		require.NoError(t, err)
		_, err = w.Write(text)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		text = b.Bytes()
	}
	for i, name := range names {
		names[i], _, _ = strings.Cut(name, ":")
	}
	return strings.Join(names, ", "), text
}

func open(t testing.TB, label string, body []byte) *Reader {
	t.Helper()
	codings, known := Parse([]string{label})
	require.True(t, known, label)
	return Open(codings, body)
}

// prose returns n bytes of text that can be made shorter.
func prose(n int) []byte {
	random := rand.New(rand.NewPCG(1, uint64(n)))
	list := []string{"the ", "router ", "sends ", "a ", "prompt ", "to ", "its ", "cache, ", `"role": `, "\\n"}
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(list[random.IntN(len(list))])
		b.WriteByte(byte('a' + random.IntN(26)))
	}
	return []byte(b.String()[:n])
}

// noise returns n bytes that cannot.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func TestNamesAreReadAsServersReadThem(t *testing.T) {
	for _, test := range []struct {
		fields []string
		known  bool
		list   []kind
	}{
		{nil, true, nil},
		{[]string{""}, true, nil},
		{[]string{"identity"}, true, nil},
		{[]string{"Identity, ,IDENTITY"}, true, nil},
		{[]string{"gzip"}, true, []kind{gzipped}},
		{[]string{" GZip\t"}, true, []kind{gzipped}},
		{[]string{"X-GZIP"}, true, []kind{gzipped}},
		{[]string{"deflate"}, true, []kind{deflated}},
		{[]string{"BR"}, true, []kind{brotlied}},
		{[]string{"zstd,"}, true, []kind{zstandard}},
		{[]string{"gzip, identity,br", "zstd"}, true, []kind{gzipped, brotlied, zstandard}},
		{[]string{"gzip,gzip,gzip,gzip,gzip"}, true, []kind{gzipped, gzipped, gzipped, gzipped, gzipped}},
		{[]string{"gzip,gzip,gzip,gzip,gzip,gzip"}, false, nil},
		{[]string{"gzip,gzip,gzip", "gzip,gzip,gzip"}, false, nil},
		{[]string{strings.Repeat("identity,", 10_000)}, true, nil},
		{[]string{"compress"}, false, nil},
		{[]string{"gzip, snappy"}, false, nil},
		{[]string{"snappy", "gzip"}, false, nil},
		{[]string{"gzip;q=1"}, false, nil},
		{[]string{"gzip gzip"}, false, nil},
		{[]string{"gzıp"}, false, nil},
	} {
		codings, known := Parse(test.fields)
		require.Equal(t, test.known, known, "%.100q", test.fields)
		require.ElementsMatch(t, test.list, codings.list[:codings.n], "%.100q", test.fields)
		require.Equal(t, len(test.list) == 0, codings.None())
	}
}

func TestReadingNamesAllocatesNothing(t *testing.T) {
	fields := []string{"gzip, br", "ZSTD"}
	require.Zero(t, testing.AllocsPerRun(100, func() { Parse(fields) }))
}
