// Package machine describes the machine that figures were measured on.
package machine

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// Machine is where and with what something was measured.
type Machine struct {
	Date  string `json:"date"`  // day and time, UTC
	CPU   string `json:"cpu"`   // its model
	Cores int    `json:"cores"` // that Go uses
	OS    string `json:"os"`    // and architecture
	Go    string `json:"go"`    // version
	Caddy string `json:"caddy"` // version that both programs are built from
}

const unknown = "unknown"

// This returns the machine at hand.
func This() Machine {
	m := Machine{
		Date:  time.Now().UTC().Format("2006-01-02 15:04"),
		CPU:   cpuModel(),
		Cores: runtime.GOMAXPROCS(0),
		OS:    runtime.GOOS + "/" + runtime.GOARCH,
		Go:    runtime.Version(),
		Caddy: unknown,
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, d := range build.Deps {
			if d.Path == "github.com/caddyserver/caddy/v2" {
				m.Caddy = d.Version
			}
		}
	}
	return m
}

// String is the machine in one line.
func (m Machine) String() string {
	return fmt.Sprintf("%s UTC, %d cores of %s, %s, %s, Caddy %s", m.Date, m.Cores, m.CPU, m.OS, m.Go, m.Caddy)
}
