package router

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

func TestProgramThatEndsAtOnceSaysWhy(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho no such policy\nexit 3\n"), 0o700))
	_, err := Caddy{Label: "broken", Binary: program}.Start(t.Context(), Fleet{Engines: []string{"127.0.0.1:1"}})
	require.ErrorContains(t, err, "router broken")
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "no such policy")
}

func TestRoutersRunServeAndStop(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer engine.Close()
	fleet := Fleet{Engines: []string{engine.Listener.Addr().String()}, Speed: 20, Retry: true}
	binaries, err := Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	_, err = binaries.Named(t.Context(), "nobody")
	require.ErrorContains(t, err, `router "nobody"`)
	for _, name := range []string{"stock", "round_robin", "least_conn", "cache_aware"} {
		t.Run(name, func(t *testing.T) {
			r, err := binaries.Named(t.Context(), name)
			require.NoError(t, err)
			require.Equal(t, name, r.Name())
			i, err := r.Start(t.Context(), fleet)
			require.NoError(t, err)
			defer http.DefaultClient.CloseIdleConnections()
			response, err := http.Get(i.URL)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusTeapot, response.StatusCode)
			usage, err := i.Usage()
			require.NoError(t, err)
			require.Positive(t, usage.RSS)
			require.GreaterOrEqual(t, usage.PeakRSS, usage.RSS)
			require.Less(t, usage.CPU, time.Hour)
			require.NoError(t, i.Stop())
			require.NoError(t, i.Stop())
		})
	}
}

func TestRouterThatDiedIsReported(t *testing.T) {
	binaries, err := Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	r, err := binaries.Named(t.Context(), "stock")
	require.NoError(t, err)
	i, err := r.Start(t.Context(), Fleet{Engines: []string{"127.0.0.1:1"}})
	require.NoError(t, err)
	require.NoError(t, i.command.Process.Kill())
	<-i.ended
	require.ErrorContains(t, i.Stop(), "ended during the run")
	http.DefaultClient.CloseIdleConnections()
}
