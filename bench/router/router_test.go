package router

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// built returns the programs, which all tests share.
var built func() (Binaries, error)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "router-")
	if err != nil {
		panic(err)
	}
	built = sync.OnceValues(func() (Binaries, error) { return Build(context.Background(), dir) })
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}

func TestCaddyfileHasNothingThatAUserWouldNotWrite(t *testing.T) {
	engines := []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}
	head := "{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n\tlog {\n\t\tlevel ERROR\n\t}\n"
	for _, test := range []struct {
		name  string
		caddy Caddy
		fleet Fleet
		want  string
	}{
		{
			name:  "stock",
			fleet: Fleet{Engines: engines},
			want:  head + "}\nhttp://a:1 {\n\treverse_proxy 127.0.0.1:1 127.0.0.1:2 127.0.0.1:3 {\n\t}\n}\n",
		},
		{
			name:  "time that is compressed concerns our policies only",
			caddy: Caddy{Policy: "least_conn"},
			fleet: Fleet{Engines: engines[:1], Speed: 20},
			want:  head + "}\nhttp://a:1 {\n\treverse_proxy 127.0.0.1:1 {\n\t\tlb_policy least_conn\n\t}\n}\n",
		},
		{
			name:  "ours with retries",
			caddy: Caddy{Policy: "cache_aware", Ours: true},
			fleet: Fleet{Engines: engines, Speed: 20, Retry: true},
			want: head + "\tinference {\n\t\ttime_scale 20\n\t}\n}\nhttp://a:1 {\n\treverse_proxy 127.0.0.1:1 127.0.0.1:2 127.0.0.1:3 {\n" +
				"\t\tlb_policy cache_aware\n\t\tlb_retries 2\n\t\tfail_duration 500ms\n\t}\n}\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, test.caddy.caddyfile("a:1", test.fleet))
		})
	}
}

func TestExternalRouterIsANameAndAURL(t *testing.T) {
	e, err := ParseExternal("mine=http://127.0.0.1:8080/")
	require.NoError(t, err)
	require.Equal(t, External{Label: "mine", URL: "http://127.0.0.1:8080"}, e)
	for _, wrong := range []string{"", "mine", "mine=", "=http://a", "mine=a:1", "mine=ftp://a", "mine=http://"} {
		_, err := ParseExternal(wrong)
		require.ErrorContains(t, err, "must be NAME=URL", wrong)
	}
}

func TestExternalRouterMustAnswer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	e := External{Label: "mine", URL: server.URL}
	i, err := e.Start(t.Context(), Fleet{})
	require.NoError(t, err)
	require.Equal(t, server.URL, i.URL)
	_, err = i.Usage()
	require.ErrorIs(t, err, ErrUnknown)
	require.NoError(t, i.Stop())
	server.Close()
	_, err = e.Start(t.Context(), Fleet{})
	require.ErrorContains(t, err, "router mine does not answer")
	http.DefaultClient.CloseIdleConnections()
}

// silent is a server that takes requests and never answers.
type silent struct{}

func (silent) RoundTrip(request *http.Request) (*http.Response, error) {
	<-request.Context().Done()
	return nil, request.Context().Err()
}

func TestExternalRouterIsNotWaitedForWithoutEnd(t *testing.T) {
	http.DefaultClient.Transport = silent{}
	defer func() { http.DefaultClient.Transport = nil }()
	synctest.Test(t, func(t *testing.T) { // its time passes at once
		start := time.Now()
		_, err := External{Label: "mine", URL: "http://127.0.0.1:1"}.Start(t.Context(), Fleet{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "router mine does not answer")
		require.Equal(t, startTimeout, time.Since(start))
	})
}

func TestProgramThatDoesNotStartSaysWhyAndLeavesNothing(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         []string
	}{
		{"fails", "#!/bin/sh\necho no such policy\nexit 3\n", []string{"ended at once: exit status 3", "no such policy"}},
		{"ends as if all were well", "#!/bin/sh\necho enough\n", []string{"ended at once: exit status 0", "enough"}},
		{"is no program", "", []string{"exec format error"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "program")
			require.NoError(t, os.WriteFile(program, []byte(test.script), 0o700))
			temporary := t.TempDir()
			t.Setenv("TMPDIR", temporary)
			_, err := Caddy{Label: "broken", Binary: program}.Start(t.Context(), Fleet{Engines: []string{"127.0.0.1:1"}})
			require.ErrorContains(t, err, "router broken: ")
			for _, want := range test.want {
				require.ErrorContains(t, err, want)
			}
			left, err := os.ReadDir(temporary)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestRoutersRunServeAndStop(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer engine.Close()
	fleet := Fleet{Engines: []string{engine.Listener.Addr().String()}, Speed: 20, Retry: true}
	binaries, err := built()
	require.NoError(t, err)
	for _, name := range []string{"nobody", "random", "first"} { // of which Caddy has the last two
		_, err = binaries.Named(t.Context(), name)
		require.ErrorContains(t, err, fmt.Sprintf("router %q: must be one of least_conn, round_robin, stock, cache_aware, kv_aware, prefix_hash", name))
		require.ErrorContains(t, err, "or NAME=URL")
	}
	for _, name := range []string{"stock", "round_robin", "least_conn", "cache_aware", "kv_aware", "prefix_hash"} {
		t.Run(name, func(t *testing.T) {
			r, err := binaries.Named(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, name, r.Name())
			i, err := r.Start(t.Context(), fleet)
			require.NoError(t, err)
			defer http.DefaultClient.CloseIdleConnections()
			var usage Usage
			for usage.CPU == 0 { // ticks may be all that the kernel counts
				response, err := http.Get(i.URL)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())
				require.Equal(t, http.StatusTeapot, response.StatusCode)
				usage, err = i.Usage()
				require.NoError(t, err)
			}
			require.Positive(t, usage.CPU)
			require.Positive(t, usage.RSS)
			require.GreaterOrEqual(t, usage.PeakRSS, usage.RSS)
			require.NoError(t, i.Stop())
			require.NoError(t, i.Stop())
		})
	}
}

func TestRouterIsReportedOnlyIfItEndedUnasked(t *testing.T) {
	binaries, err := built()
	require.NoError(t, err)
	r, err := binaries.Named(t.Context(), "stock")
	require.NoError(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	fleet := Fleet{Engines: []string{"127.0.0.1:1"}}

	died, err := r.Start(t.Context(), fleet)
	require.NoError(t, err)
	require.NoError(t, died.command.Process.Kill())
	<-died.ended
	require.ErrorContains(t, died.Stop(), "ended during the run: signal: killed")

	ctx, cancel := context.WithCancel(t.Context())
	asked, err := r.Start(ctx, fleet)
	require.NoError(t, err)
	cancel()
	<-asked.ended
	require.NoError(t, asked.Stop())
	require.NoDirExists(t, asked.dir)
}
