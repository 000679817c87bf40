package fake

import "testing"

func BenchmarkSlow(b *testing.B) {
	for b.Loop() {
	}
	b.ReportMetric(Slow(), "slowness")
}
