package router

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// status and stat are the files of a process that ran for 130 ticks of 10 ms.
const (
	status = "VmHWM:\t    3000 kB\nVmRSS:\t    2000 kB\n"
	stat   = "42 (caddy) S 1 42 42 0 -1 4194560 1 0 0 0 100 30 0 0 20 0 2 0 1 1 1 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)

func TestUsageIsOfOneSeries(t *testing.T) {
	for _, test := range []struct {
		name    string
		threads map[string]string // by number, the process's own first
		want    time.Duration
	}{
		{"what the threads ran", map[string]string{"42": "100000005 7 9\n", "43": "1000000000 7 9\n"}, 1_100_000_005},
		{"also where it is less than the ticks", map[string]string{"42": "5 7 9\n"}, 5},
		{"ticks where the kernel tells nothing else", nil, 1300 * time.Millisecond},
		{"ticks where it tells nothing but zeros", map[string]string{"42": "0 0 0\n", "43": "0 0 0\n"}, 1300 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			proc := t.TempDir()
			write(t, filepath.Join(proc, "42", "status"), status)
			write(t, filepath.Join(proc, "42", "stat"), stat)
			for thread, schedstat := range test.threads {
				write(t, filepath.Join(proc, "42", "task", thread, "schedstat"), schedstat)
				if thread == "42" {
					write(t, filepath.Join(proc, "42", "schedstat"), schedstat)
				}
			}
			u, err := usage(proc, 42)
			require.NoError(t, err)
			require.Equal(t, Usage{CPU: test.want, RSS: 2000 << 10, PeakRSS: 3000 << 10}, u)
			_, err = usage(proc, 43)
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

func TestUsageIsUnknownWithoutProc(t *testing.T) {
	_, err := usage(filepath.Join(t.TempDir(), "proc"), 42)
	require.ErrorIs(t, err, ErrUnknown)
}

func write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}
