package router

import (
	"errors"
	"time"

	"github.com/prometheus/procfs"
)

// Usage is what an instance has taken since its start.
type Usage struct {
	CPU     time.Duration // user and system
	RSS     int64         // resident memory now, in bytes
	PeakRSS int64         // the most it was
}

// ErrUnknown is returned for the usage of a router that was not started here, and
// of any router on a system that is not Linux.
var ErrUnknown = errors.New("usage is not known: the router runs elsewhere, or there is no /proc here")

// Usage returns what the process has taken so far.
func (i *Instance) Usage() (Usage, error) {
	if i.command == nil {
		return Usage{}, ErrUnknown
	}
	return usage(procfs.DefaultMountPoint, i.command.Process.Pid)
}

// usage reads what a process has taken from a proc file system.
func usage(proc string, pid int) (Usage, error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return Usage{}, ErrUnknown
	}
	p, err := fs.Proc(pid)
	if err != nil {
		return Usage{}, err
	}
	status, err := p.NewStatus()
	if err != nil {
		return Usage{}, err
	}
	cpu, err := processorTime(fs, p)
	if err != nil {
		return Usage{}, err
	}
	return Usage{
		CPU:     cpu,
		RSS:     int64(status.VmRSS), //nolint:gosec // bytes of memory
		PeakRSS: int64(status.VmHWM), //nolint:gosec // bytes of memory
	}, nil
}

// processorTime is what a process ran. The kernel tells it in two ways, of which
// one is used for all of a process's life, as the difference of one to the other
// is no time that passed. What each thread ran is exact to the nanosecond, but is
// lost when the thread ends, which those of a Go program hardly ever do. Where that
// is not told, what is left is the process's own time, in ticks of 10 ms.
func processorTime(fs procfs.FS, p procfs.Proc) (time.Duration, error) {
	// Some kernels have the file and write only zeros into it.
	if first, err := p.Schedstat(); err == nil && first.RunningNanoseconds > 0 {
		return threadTime(fs, p.PID)
	}
	stat, err := p.Stat()
	return time.Duration(stat.CPUTime() * float64(time.Second)), err
}

// threadTime is what the threads that a process has now ran.
func threadTime(fs procfs.FS, pid int) (total time.Duration, err error) {
	threads, err := fs.AllThreads(pid)
	for _, t := range threads {
		if stat, err := t.Schedstat(); err == nil { // it may have ended just now
			total += time.Duration(stat.RunningNanoseconds) //nolint:gosec // less than centuries
		}
	}
	return total, err
}
