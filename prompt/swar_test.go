package prompt

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

func slowOrdinary(b []byte, i int) int {
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

func slowCanonical(b []byte, i int) int {
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' {
		if b[i] == '\\' {
			if i+1 == len(b) || b[i+1] == 'u' || b[i+1] == '/' {
				return i
			}
			i++
		}
		i++
	}
	return i
}

func slowIDs(b []byte, i int) int {
	for i < len(b) && strings.IndexByte(" ,-./0123456789", b[i]) >= 0 {
		i++
	}
	return i
}

// endOfIDs is skipIDs with its count checked.
func endOfIDs(b []byte, i int) int {
	end, spaces := skipIDs(b, i)
	if spaces != bytes.Count(b[i:end], []byte{' '}) {
		return -1
	}
	return end
}

func TestScansStopWhereByteByByteScansDo(t *testing.T) {
	for _, scan := range []struct {
		name       string
		fast, slow func([]byte, int) int
		usual      string // bytes that it goes over
	}{
		{"skipOrdinary", skipOrdinary, slowOrdinary, "az 09\x7f\x80\xa2\xdc\xff!#[]"},
		{"skipCanonical", skipCanonical, slowCanonical, `az/u é!#[]`},
		{"skipIDs", endOfIDs, slowIDs, "0123456789,  ,-."},
	} {
		t.Run(scan.name, func(t *testing.T) {
			for length := range 140 {
				for at := range length {
					for c := range 256 {
						if length > 70 && c%7 != length%7 {
							continue
						}
						b := bytes.Repeat([]byte(scan.usual[:1]), length)
						b[at] = byte(c)
						for _, from := range []int{0, at, at / 2} {
							if scan.slow(b, from) != scan.fast(b, from) {
								require.Equal(t, scan.slow(b, from), scan.fast(b, from), "%q from %d", b, from)
							}
						}
					}
				}
			}
			rnd := rand.New(rand.NewPCG(1, 2))
			for range tries(50_000, 5_000_000) {
				b := make([]byte, rnd.IntN(400))
				odd := 1 + rnd.IntN(200)
				for i := range b {
					b[i] = scan.usual[rnd.IntN(len(scan.usual))]
					if rnd.IntN(odd) == 0 {
						b[i] = byte(rnd.IntN(256))
					}
				}
				from := rnd.IntN(len(b) + 1)
				require.Equal(t, scan.slow(b, from), scan.fast(b, from), "%q from %d", b, from)
			}
		})
	}
}

func TestRunsOfBackslashesAreCountedAcrossBlocks(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	pieces := []string{`\\`, `\n`, `\"`, `\\\\`, `a`, `\t\t`, strings.Repeat(`\\`, 40), strings.Repeat("x", 60), `\\u`, `\\/`, `u`, `/`, "\\\x01"}
	ends := []string{`"`, `\u0041`, `\/`, "\n", `\`, ``}
	for range tries(50_000, 5_000_000) {
		var b strings.Builder
		for range rnd.IntN(120) {
			b.WriteString(pieces[rnd.IntN(len(pieces))])
		}
		b.WriteString(ends[rnd.IntN(len(ends))])
		b.WriteString(strings.Repeat("y", rnd.IntN(80)))
		text := []byte(b.String())
		require.Equal(t, slowCanonical(text, 0), skipCanonical(text, 0), "%q", text)
	}
}

// TestEscapedTextIsThatOfItsRunes escapes texts of all lengths about that of the room for
// small pieces, with more and less of ordinary text between the escapes.
func TestEscapedTextIsThatOfItsRunes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(15, 16))
	var p, q Prompt
	for range tries(300, 10_000) {
		var literal, escaped strings.Builder
		size := roomLen - 40 + rnd.IntN(80)
		for literal.Len() < size {
			r := []rune{'é', '你', '\uffff', '\ue000', '\u0080', '\u07ff', '\u0800', '\ud7ff', '😀', 'A', '"', '\n'}[rnd.IntN(12)]
			literal.WriteString(quoteText(string(r)))
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&escaped, `\u%04x`, unit)
			}
			between := strings.Repeat("x", rnd.IntN(rnd.IntN(20)+1))
			literal.WriteString(between)
			escaped.WriteString(between)
		}
		require.Equal(t, streamOf(t, &p, chatPath, []byte(user(`"`+literal.String()+`"`))),
			streamOf(t, &q, chatPath, []byte(user(`"`+escaped.String()+`"`))))
		require.Equal(t, p.TextBytes, q.TextBytes)
	}
}
