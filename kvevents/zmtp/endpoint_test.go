package zmtp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEndpointsAreReadAsZeroMQWritesThem(t *testing.T) {
	for _, test := range []struct{ endpoint, network, address, fault string }{
		{"tcp://10.0.0.1:5557", "tcp", "10.0.0.1:5557", ""},
		{"tcp://engine.default.svc:5557", "tcp", "engine.default.svc:5557", ""},
		{"tcp://*:5557", "tcp", ":5557", ""},
		{"tcp://[::1]:5557", "tcp", "[::1]:5557", ""},
		{"tcp://::1:5557", "tcp", "[::1]:5557", ""},
		{"tcp://[fe80::1%eth0]:5557", "tcp", "[fe80::1%eth0]:5557", ""},
		{"ipc:///run/engine.sock", "unix", "/run/engine.sock", ""},
		{"ipc://@abstract", "unix", "@abstract", ""},
		{"ipc://", "", "", "no path"},
		{"tcp://10.0.0.1", "", "", "no port"},
		{"tcp://10.0.0.1:", "", "", "port"},
		{"tcp://10.0.0.1:65536", "", "", "port"},
		{"tcp://10.0.0.1:kv", "", "", "port"},
		{"tcp://:5557", "", "", "no host"},
		{"inproc://x", "", "", "want tcp://"},
		{"10.0.0.1:5557", "", "", "want tcp://"},
		{"", "", "", "want tcp://"},
	} {
		network, address, err := ParseEndpoint(test.endpoint)
		if test.fault != "" {
			require.ErrorContains(t, err, test.fault, test.endpoint)
			continue
		}
		require.NoError(t, err, test.endpoint)
		require.Equal(t, test.network, network)
		require.Equal(t, test.address, address)
	}
}
