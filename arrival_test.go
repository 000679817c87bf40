package inference

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

// ways are the ways in which clients send a body. Each sends the request and returns the
// answer's status; the body is the request's own to read.
var ways = map[string]func(c *clients, r *http.Request) (status int, err error){
	"with its length": func(c *clients, r *http.Request) (int, error) { return c.do(c.http1, r) },
	"in chunks": func(c *clients, r *http.Request) (int, error) {
		return c.do(c.http1, untold(r, onlyReader{r.Body}))
	},
	"byte by byte, in chunks": func(c *clients, r *http.Request) (int, error) {
		return c.do(c.http1, untold(r, iotest.OneByteReader(r.Body)))
	},
	"byte by byte": func(c *clients, r *http.Request) (int, error) { return c.byteByByte(r) },
	"when it is asked for": func(c *clients, r *http.Request) (int, error) {
		r.Header.Set("Expect", "100-continue")
		return c.do(c.http1, r)
	},
	"with trailers": func(c *clients, r *http.Request) (int, error) {
		r = untold(r, onlyReader{r.Body})
		r.Trailer = http.Header{"X-Checked": {"yes"}}
		return c.do(c.http1, r)
	},
	"by HTTP/2": func(c *clients, r *http.Request) (int, error) { return c.do(c.http2, r) },
	"by HTTP/2, without a length": func(c *clients, r *http.Request) (int, error) {
		return c.do(c.http2, untold(r, onlyReader{r.Body}))
	},
}

// untold has the body sent without its length.
func untold(r *http.Request, body io.Reader) *http.Request {
	r.Body, r.ContentLength, r.GetBody = io.NopCloser(body), -1, nil
	return r
}

// clients send requests.
type clients struct {
	http1, http2 *http.Transport
}

func newClients(t *testing.T) *clients {
	c := &clients{
		http1: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true, ExpectContinueTimeout: patience},
		http2: &http.Transport{Protocols: new(http.Protocols), DisableCompression: true},
	}
	c.http2.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(c.http1.CloseIdleConnections)
	t.Cleanup(c.http2.CloseIdleConnections)
	return c
}

func (c *clients) do(transport *http.Transport, r *http.Request) (int, error) {
	response, err := transport.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Body.Close()
}

// byteByByte writes each byte of the body on its own.
func (c *clients) byteByByte(r *http.Request) (int, error) {
	conn, err := net.Dial("tcp", r.URL.Host)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", r.URL.Path, r.URL.Host, len(body))
	_ = r.Header.Write(conn)
	_, _ = io.WriteString(conn, "\r\n")
	for i := range body {
		if _, err := conn.Write(body[i : i+1]); err != nil {
			return 0, err
		}
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Body.Close()
}

// TestEveryBodyArrivesAsItWasSent sends bodies of all codings in all ways, many at once,
// and those that are sent first to an upstream that is not there once more.
func TestEveryBodyArrivesAsItWasSent(t *testing.T) {
	overPolicies(t, everyBodyArrivesAsItWasSent)
}

func everyBodyArrivesAsItWasSent(t *testing.T, policy string) {
	engines := newEngines(t, 3)
	var checked atomic.Int64
	for _, e := range engines {
		e.respondWith(func(w http.ResponseWriter, r *http.Request) {
			if r.Trailer.Get("X-Checked") == "yes" {
				checked.Add(1)
			}
			taciturn(w, r)
		})
	}
	s := startSite(t, "lb_policy "+policy+"\nlb_retries 3", append(addresses(engines), freeAddress(t))...)
	c := newClients(t)
	wayNames, labelNames := slices.Sorted(maps.Keys(ways)), append(slices.Sorted(maps.Keys(labels)), "")
	jobs := len(wayNames) * len(labelNames) * 2
	sums := make([]string, jobs)
	inParallel(jobs, func(i int) {
		way, label := wayNames[i%len(wayNames)], labelNames[i/len(wayNames)%len(labelNames)]
		random := rand.New(rand.NewPCG(36, uint64(i)))
		letter := string(rune('a' + random.IntN(26)))
		size := 100 + random.IntN(1000)
		if !strings.HasPrefix(way, "byte") {
			size += random.IntN(200_000)
		}
		body := []byte(chatOf(message("user", strconv.Itoa(i)+strings.Repeat(letter, size/2)+letters(random, size/2))))
		body = encode(t, body, labels[label]...)
		sums[i] = hash(body)
		request := newRequest(t, s.url+"/v1/chat/completions", bytes.NewReader(body))
		request.Header.Set("X-Job", strconv.Itoa(i))
		if label != "" {
			request.Header.Set("Content-Encoding", label)
		}
		status, err := ways[way](c, request)
		if err != nil || status != http.StatusOK {
			t.Errorf("%s, %s: status %d, %v", way, label, status, err)
		}
	})
	arrived := 0
	for _, e := range engines {
		for _, got := range e.received() {
			arrived++
			i, err := strconv.Atoi(got.header.Get("X-Job"))
			require.NoError(t, err)
			way, label := wayNames[i%len(wayNames)], labelNames[i/len(wayNames)%len(labelNames)]
			require.Equal(t, sums[i], hash(got.body), "%s, %s", way, label)
			sums[i] = "arrived"
			require.Equal(t, label, got.header.Get("Content-Encoding"))
			require.Equal(t, "application/json", got.header.Get("Content-Type"))
			if way != "with trailers" {
				require.EqualValues(t, len(got.body), got.length, "%s, %s", way, label)
			}
		}
	}
	require.Equal(t, jobs, arrived)
	require.EqualValues(t, jobs/len(wayNames), checked.Load(), "trailers")
	requireIdle(t)
}

// TestAFormIsSentOnUnread sends a form in which a large file comes before the model.
func TestAFormIsSentOnUnread(t *testing.T) {
	engine := newEngine(t)
	s := startSite(t, "lb_policy cache_aware", engine.address())
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("file", "speech.wav")
	require.NoError(t, err)
	_, _ = file.Write(randomBytes(defaultMaxBody + 4<<20))
	require.NoError(t, w.WriteField("model", "m1"))
	require.NoError(t, w.Close())
	for n, path := range []string{"/v1/audio/transcriptions", "/v1/chat/completions"} {
		request := newRequest(t, s.url+path, bytes.NewReader(form.Bytes()))
		request.Header.Set("Content-Type", w.FormDataContentType())
		response, err := s.client.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		got := engine.received()
		require.Equal(t, hash(form.Bytes()), hash(got[n].body))
		require.Equal(t, w.FormDataContentType(), got[n].header.Get("Content-Type"))
		require.Equal(t, []any{"unknown_endpoint", "unreadable_body"}[n], s.lastDecision(n + 1)["cause"])
	}
	requireIdle(t)
}

// TestABodyThatBreaksOffDoesNotArriveForWhole has clients declare more than they send.
func TestABodyThatBreaksOffDoesNotArriveForWhole(t *testing.T) {
	var whole atomic.Int64
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		if _, err := io.ReadAll(r.Body); err == nil {
			whole.Add(1)
		}
		taciturn(w, r)
	}))
	defer engine.Close()
	s := startSite(t, "lb_policy cache_aware\nlb_retries 3", engine.Listener.Addr().String())
	text := []byte(chatOf(message("user", letters(rand.New(rand.NewPCG(37, 37)), 100_000))))
	var group sync.WaitGroup
	for label, codings := range labels {
		sent := encode(t, text, codings...)
		for _, head := range []string{"Content-Length: " + strconv.Itoa(len(sent)+1), "Transfer-Encoding: chunked"} {
			group.Go(func() {
				conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: %s\r\n%s\r\n\r\n", label, head)
				if strings.HasPrefix(head, "Transfer") {
					fmt.Fprintf(conn, "%x\r\n", len(sent)+1)
				}
				_, _ = conn.Write(sent)
				_ = conn.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			})
		}
	}
	group.Wait()
	require.Zero(t, whole.Load())
	requireIdle(t)
}
