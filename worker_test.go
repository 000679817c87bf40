package inference

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-inference/caddy-inference/radix"
)

// TestMoreWorkersThanTheTreeHasPlacesForAreToldOnce begins as Caddy does: a config's
// upstreams join before its app is started, and so before there is a logger.
func TestMoreWorkersThanTheTreeHasPlacesForAreToldOnce(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	s, app := newState(), newApp()
	app.logger = zap.New(core)
	join := func(from, to int) {
		for i := from; i < to; i++ {
			require.NotNil(t, s.join(fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256), nil))
		}
	}
	join(0, radix.MaxWorkers)
	require.Zero(t, logs.Len())
	join(radix.MaxWorkers, radix.MaxWorkers+2)
	s.start(app)
	t.Cleanup(func() { s.stop(app) })
	require.Equal(t, 1, logs.Len(), "what was found before the start is told at the start")

	join(radix.MaxWorkers+2, radix.MaxWorkers+4)
	require.Equal(t, 1, logs.Len())
	require.EqualValues(t, radix.MaxWorkers, logs.All()[0].ContextMap()["limit"])
}
