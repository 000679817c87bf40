package machine

import "github.com/prometheus/procfs"

// cpuModel returns the name of the processor.
func cpuModel() string {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return unknown
	}
	info, err := fs.CPUInfo()
	if err != nil || len(info) == 0 || info[0].ModelName == "" {
		return unknown
	}
	return info[0].ModelName
}
