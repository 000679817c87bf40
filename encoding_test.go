package inference

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/caddy-inference/caddy-inference/coding"
)

// labels are what clients write into Content-Encoding, and what they do to the body then.
var labels = map[string][]string{
	"gzip":                {"gzip"},
	"X-GZip":              {"gzip"},
	"gzip, gzip":          {"gzip", "gzip"},
	"deflate":             {"zlib"},
	"Deflate":             {"deflate"}, // as some do
	"br":                  {"br"},
	"zstd":                {"zstd"},
	"identity":            nil,
	"identity, zstd,GZIP": {"zstd", "gzip"},
}

// encode applies codings to text, one after the other.
func encode(t testing.TB, text []byte, codings ...string) []byte {
	t.Helper()
	for _, name := range codings {
		var b bytes.Buffer
		var w io.WriteCloser
		var err error
		switch name {
		case "gzip":
			w = gzip.NewWriter(&b)
		case "zlib":
			w = zlib.NewWriter(&b)
		case "deflate":
			w, err = flate.NewWriter(&b, 6)
		case "br":
			w = brotli.NewWriterLevel(&b, 2)
		case "zstd":
			w, err = zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1))
		}
		require.NoError(t, err)
		_, err = w.Write(text)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		text = b.Bytes()
	}
	return text
}

// bomb is a number of times 16 MiB of the letter a, after a beginning, as gzip writes it.
func bomb(t testing.TB, beginning string, times int) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, 1)
	require.NoError(t, err)
	_, _ = io.WriteString(w, beginning)
	require.NoError(t, w.Flush())
	head := append([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0}, b.Bytes()...)
	b.Reset()
	w.Reset(&b)
	_, _ = w.Write(bytes.Repeat([]byte("a"), 16<<20))
	require.NoError(t, w.Flush())
	return append(head, bytes.Repeat(b.Bytes(), times)...)
}

// send posts an encoded body and returns the status of the answer.
func (s *site) send(path, label string, body []byte) int {
	s.t.Helper()
	request := newRequest(s.t, s.url+path, bytes.NewReader(body))
	if label != "" {
		request.Header.Set("Content-Encoding", label)
	}
	response, err := s.client.Do(request)
	require.NoError(s.t, err)
	require.NoError(s.t, response.Body.Close())
	return response.StatusCode
}

// taciturn answers without counting anything: engines count text, not encoded bytes.
func taciturn(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"choices":[]}`)
}

// TestAConversationStaysHoweverItsTurnsAreEncoded sends every second turn encoded.
func TestAConversationStaysHoweverItsTurnsAreEncoded(t *testing.T) {
	overPolicies(t, aConversationStaysHoweverItsTurnsAreEncoded)
}

func aConversationStaysHoweverItsTurnsAreEncoded(t *testing.T, policy string) {
	engines := newEngines(t, 4)
	for _, e := range engines {
		e.respondWith(taciturn)
	}
	s := startSite(t, "lb_policy "+policy, addresses(engines)...)
	random := rand.New(rand.NewPCG(31, 31))
	n := 0
	for label, codings := range labels {
		t.Run(label, func(t *testing.T) {
			history, home := message("system", letters(random, 3000)), -1
			for turn := range 4 {
				history += "," + message("user", letters(random, 600))
				text := []byte(chatOf(history))
				sent, said := text, ""
				if turn%2 == 1 {
					sent, said = encode(t, text, codings...), label
				}
				which := served(t, engines, func() {
					require.Equal(t, http.StatusOK, s.send("/v1/chat/completions", said, sent))
				})
				got := engines[which].received()
				last := got[len(got)-1]
				require.Equal(t, hash(sent), hash(last.body))
				require.EqualValues(t, len(sent), last.length)
				require.Equal(t, said, last.header.Get("Content-Encoding"))

				n++
				decision := s.lastDecision(n)
				require.InDelta(t, len(text)/4, decision["prompt_tokens"], 60, "by its text")
				if turn > 0 {
					require.Equal(t, home, which)
					require.Equal(t, map[string]string{"cache_aware": "hit", "prefix_hash": "owner", "kv_aware": "hit"}[policy], decision["reason"])
				}
				home = which
			}
		})
	}
	requireIdle(t)
}

// TestWhatCannotBeDecodedIsTheEnginesToRefuse sends bodies that are not what they are
// said to be, and such as decode to more than anybody can hold.
func TestWhatCannotBeDecodedIsTheEnginesToRefuse(t *testing.T) {
	engine := newEngine(t)
	engine.respondWith(refuse(http.StatusUnsupportedMediaType))
	s := startSite(t, "lb_policy cache_aware", engine.address())
	random := rand.New(rand.NewPCG(32, 32))
	text := []byte(chatOf(message("system", letters(random, 200_000)) + "," + message("user", letters(random, 2000))))
	zipped := encode(t, text, "gzip")
	for _, test := range []struct {
		name, label string
		body        []byte
		cause, cut  any // nil: none
	}{
		{name: "nobody knows it", label: "snappy", body: zipped, cause: "encoded_body"},
		{name: "one is not known", label: "gzip, compress", body: zipped, cause: "encoded_body"},
		{name: "too many", label: "gzip,gzip,gzip,gzip,gzip,gzip", body: zipped, cause: "encoded_body"},
		{name: "plain, said to be gzip", label: "gzip", body: text, cause: "encoded_body"},
		{name: "plain, said to be deflate", label: "deflate", body: text, cause: "encoded_body"},
		{name: "plain, said to be br", label: "br", body: text, cause: "encoded_body"},
		{name: "plain, said to be zstd", label: "zstd", body: text, cause: "encoded_body"},
		{name: "gzip, said to be zstd", label: "zstd", body: zipped, cause: "encoded_body"},
		{name: "once, said to be twice", label: "gzip, gzip", body: zipped, cause: "encoded_body"},
		{name: "gzip, of which nothing is said", body: zipped, cause: "unreadable_body"},
		{name: "of no JSON", label: "gzip", body: encode(t, []byte("model=m1"), "gzip"), cause: "unreadable_body"},
		{name: "of nothing", label: "gzip", body: encode(t, nil, "gzip"), cause: "unreadable_body"},
		{name: "of no prompt", label: "zstd", body: encode(t, []byte(`{"model":"m1"}`), "zstd"), cause: "empty_prompt"},
		{name: "breaks off at once", label: "gzip", body: zipped[:12], cause: "encoded_body"},
		{name: "breaks off", label: "gzip", body: zipped[:len(zipped)/2]},
		{name: "breaks off, br", label: "br", body: encode(t, text, "br")[:len(zipped)/2]},
		{name: "corrupt", label: "gzip", body: slices.Concat(zipped[:len(zipped)/2], randomBytes(500))},
		{name: "10 GB of the same letter", label: "gzip", body: bomb(t, "", 600), cause: "unreadable_body"},
		{name: "10 GB of prompt", label: "gzip", body: bomb(t, chatOpening, 600), cut: "max_body"},
		{name: "10 GB of prompt, twice encoded", label: "gzip, gzip", body: encode(t, bomb(t, chatOpening, 600), "gzip"), cut: "max_body"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := len(engine.received())
			require.Equal(t, http.StatusUnsupportedMediaType, s.send("/v1/chat/completions", test.label, test.body), "the engine's answer")
			got := engine.received()
			require.Len(t, got, n+1)
			require.Equal(t, hash(test.body), hash(got[n].body))
			require.Equal(t, test.label, got[n].header.Get("Content-Encoding"))
			decision := s.lastDecision(n + 1)
			require.Equal(t, test.cause, decision["cause"])
			require.Equal(t, test.cut, decision["cut"])
			if test.cause != nil {
				require.Zero(t, decision["prompt_tokens"], "encoded bytes were taken for text")
			} else {
				require.LessOrEqual(t, decision["prompt_tokens"], float64(defaultMaxBody/3))
			}
		})
	}
	requireIdle(t)
}

// chatOpening is how a chat begins.
const chatOpening = `{"model":"m1","messages":[{"role":"user","content":"`

// TestAnEncodedBodyThatIsNotReadIsNotTakenForText sends JSON where nobody looks into it.
func TestAnEncodedBodyThatIsNotReadIsNotTakenForText(t *testing.T) {
	engine := newEngine(t)
	engine.respondWith(taciturn)
	s := startSite(t, "lb_policy cache_aware", engine.address())
	text := []byte(chatOf(message("user", strings.Repeat("hello ", 700))))
	require.Equal(t, http.StatusOK, s.send("/v1/other", "", text))
	require.InDelta(t, len(text)/4, s.lastDecision(1)["prompt_tokens"], 60)
	require.Equal(t, http.StatusOK, s.send("/v1/other", "gzip", encode(t, text, "gzip")))
	require.Zero(t, s.lastDecision(2)["prompt_tokens"])
}

// TestThatThereWasNoRoomToDecodeIsTold has no memory for the decoder, then none for more
// than the beginning of the text.
func TestThatThereWasNoRoomToDecodeIsTold(t *testing.T) {
	engine := newEngine(t)
	engine.respondWith(taciturn)
	s := newSite(t)
	s.load(s.caddyfileWith("inference {\nmax_buffered 300KiB\n}", "lb_policy cache_aware", engine.address()))
	text := []byte(chatOf(message("user", texts["english"](rand.New(rand.NewPCG(33, 33)), 300_000))))

	require.Equal(t, http.StatusOK, s.send("/v1/chat/completions", "zstd", encode(t, text[:1000], "zstd")))
	decision := s.lastDecision(1)
	require.Equal(t, "encoded_body", decision["cause"])
	require.Equal(t, "max_buffered", decision["cut"])

	require.Equal(t, http.StatusOK, s.send("/v1/chat/completions", "gzip", encode(t, text, "gzip")))
	decision = s.lastDecision(2)
	require.NotContains(t, decision, "cause")
	require.Equal(t, "max_buffered", decision["cut"])
	require.InEpsilon(t, len(text)/4, decision["prompt_tokens"], 0.2, "the rest is estimated")
	requireIdle(t)
}

// TestTheDecodedCopyIsBounded decodes texts around max_body, with room and without.
func TestTheDecodedCopyIsBounded(t *testing.T) {
	const limit = firstPart + 30_000
	random := rand.New(rand.NewPCG(34, 34))
	for label, names := range labels {
		codings, known := coding.Parse([]string{label})
		require.True(t, known)
		if codings.None() {
			continue
		}
		for _, size := range []int{0, 1, 1000, firstPart, firstPart + 1, limit - 1, limit, limit + 1, 4 * limit} {
			text := []byte(letters(random, size))
			sent := encode(t, text, names...)
			for _, room := range []int64{1 << 40, 1000, 0} { // beside what the decoder takes
				t.Run(fmt.Sprintf("%s, %d bytes, room for %d", label, size, room), func(t *testing.T) {
					b := newBudget(1 << 40)
					in := readBody(bodyRequest(bytes.NewReader(sent), int64(len(sent))), defaultMaxBody, b)
					b.limit.Store(in.taken.Load() + room)
					if room > 0 {
						b.limit.Add(codings.Memory())
					}
					d := decode(in, codings, limit)
					require.Equal(t, in.taken.Load()+d.taken.Load(), b.used.Load())
					require.EqualValues(t, cap(d.data), d.taken.Load())
					require.LessOrEqual(t, cap(d.data), limit)
					require.True(t, bytes.HasPrefix(text, d.data))
					switch {
					case room == 0:
						require.Empty(t, d.data)
						require.True(t, d.broken())
						require.Equal(t, "max_buffered", d.cut)
					case size <= firstPart, size <= limit && room > limit:
						require.Len(t, d.data, size)
						require.True(t, d.whole)
						require.Empty(t, d.cut)
					case room > limit:
						require.Len(t, d.data, limit)
						require.False(t, d.whole)
						require.Equal(t, "max_body", d.cut)
						require.LessOrEqual(t, d.unread(int64(len(sent)), limit), 0, "more than max_body in all")
					default:
						require.GreaterOrEqual(t, len(d.data), firstPart)
						require.Equal(t, "max_buffered", d.cut)
					}
					d.letGo()
					d.letGo()
					require.Equal(t, in.taken.Load(), b.used.Load())
					in.letGo()
					require.Zero(t, b.used.Load())
				})
			}
		}
	}
}

// TestOfAnEncodedBodyThatWasCutTheBeginningIsDecoded reads less of a body than there is.
func TestOfAnEncodedBodyThatWasCutTheBeginningIsDecoded(t *testing.T) {
	const limit = 1 << 20
	text := []byte(letters(rand.New(rand.NewPCG(35, 35)), limit-1))
	for _, name := range []string{"gzip", "zlib", "deflate", "br", "zstd"} {
		sent := encode(t, text, name)
		codings, _ := coding.Parse([]string{strings.Replace(name, "zlib", "deflate", 1)})
		b := newBudget(1 << 40)
		in := readBody(bodyRequest(bytes.NewReader(sent), int64(len(sent))), int64(len(sent)/2), b)
		d := decode(in, codings, limit)
		require.True(t, bytes.HasPrefix(text, d.data))
		require.Greater(t, len(d.data), len(text)/4, name)
		require.False(t, d.whole)
		require.Equal(t, "max_body", d.cut)
		require.InEpsilon(t, len(text)-len(d.data), d.unread(int64(len(sent)), limit), 0.5, "what follows is estimated")
		require.LessOrEqual(t, d.unread(1<<62, limit), limit-len(d.data))
		require.Zero(t, d.unread(-1, limit))
	}
}

// TestEncodedBodiesAroundTheLimitArriveWhole has max_body around the length of a body, and
// around that of its text.
func TestEncodedBodiesAroundTheLimitArriveWhole(t *testing.T) {
	text := []byte(chatOf(message("user", texts["english"](rand.New(rand.NewPCG(38, 38)), 400_000))))
	for _, name := range []string{"gzip", "br", "zstd"} {
		sent := encode(t, text, name)
		for _, limit := range []int{len(sent) - 1, len(sent), len(sent) + 1, len(text) - 1, len(text), len(text) + 1} {
			engines := newEngines(t, 3)
			for _, e := range engines {
				e.respondWith(taciturn)
			}
			s := startSite(t, fmt.Sprintf("lb_policy cache_aware {\nmax_body %dB\n}", limit), addresses(engines)...)
			home := -1
			for n := 1; n <= 2; n++ {
				which := served(t, engines, func() {
					require.Equal(t, http.StatusOK, s.send("/v1/chat/completions", name, sent))
				})
				got := engines[which].received()
				require.Equal(t, hash(sent), hash(got[len(got)-1].body))
				decision := s.lastDecision(n)
				require.NotContains(t, decision, "cause")
				if limit < len(text) {
					require.Equal(t, "max_body", decision["cut"])
				} else {
					require.NotContains(t, decision, "cut")
				}
				if n == 2 {
					require.Equal(t, home, which)
					require.Equal(t, "hit", decision["reason"])
				}
				home = which
			}
			requireIdle(t)
		}
	}
}

// TestTextsThatAreDecodedAtOnceNeverMix decodes into buffers that others used.
func TestTextsThatAreDecodedAtOnceNeverMix(t *testing.T) {
	b := newBudget(1 << 30)
	inParallel(100, func(i int) {
		text := bytes.Repeat([]byte{byte('a' + i%26)}, 100+1000*i)
		name := []string{"gzip", "br", "zstd"}[i%3]
		sent := encode(t, text, name)
		codings, _ := coding.Parse([]string{name})
		in := readBody(bodyRequest(bytes.NewReader(sent), int64(len(sent))), defaultMaxBody, b)
		for range 5 {
			d := decode(in, codings, defaultMaxBody)
			runtime.Gosched()
			if !bytes.Equal(text, d.data) {
				t.Errorf("%d bytes of another, or %d too few", len(text)-bytes.Count(d.data, text[:1]), len(text)-len(d.data))
			}
			d.letGo()
		}
		in.letGo()
	})
	require.Zero(t, b.used.Load())
}

// TestDecodedTextIsNotHeldWhileTheEngineWorks looks at what is held of a body that is
// short, and of which the text is long.
func TestDecodedTextIsNotHeldWhileTheEngineWorks(t *testing.T) {
	engine := newEngine(t)
	proceed := make(chan struct{})
	engine.respondWith(func(w http.ResponseWriter, r *http.Request) {
		<-proceed
		taciturn(w, r)
	})
	s := startSite(t, "lb_policy cache_aware", engine.address())
	sent := encode(t, []byte(chatOf(message("user", strings.Repeat("hello ", 50_000)))), "gzip")
	done := make(chan int)
	go func() { done <- s.send("/v1/chat/completions", "gzip", sent) }()
	require.Eventually(t, func() bool { return engine.openRequests() == 1 }, patience, tick)
	require.Positive(t, theState(t).buffered.used.Load())
	require.LessOrEqual(t, theState(t).buffered.used.Load(), int64(2*leastBuffer))
	close(proceed)
	require.Equal(t, http.StatusOK, <-done)
	requireIdle(t)
}
