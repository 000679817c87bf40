//go:build !linux

package machine

// cpuModel returns no name: only Linux tells it in a file.
func cpuModel() string { return unknown }
