package main

import (
	"os"
	"runtime"
	"strings"
)

// cpuName names the processor as the system does, with family and model where it tells them, else the architecture.
func cpuName() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	return cpuNameIn(string(info))
}

// cpuNameIn reads the first processor of a /proc/cpuinfo.
func cpuNameIn(info string) string {
	first, _, _ := strings.Cut(info, "\n\n")
	fields := map[string]string{}
	for line := range strings.Lines(first) {
		name, value, _ := strings.Cut(line, ":")
		fields[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	name := fields["model name"]
	if name == "" {
		return runtime.GOARCH
	}
	if fields["cpu family"] != "" && fields["model"] != "" {
		name += " (family " + fields["cpu family"] + ", model " + fields["model"] + ")"
	}
	return oneLine(name)
}
