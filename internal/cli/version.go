package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version and commit are set by the build (make build). Without it the module's own record is used.
var version, commit string

// Version is what --version prints.
func Version() string {
	v, c := version, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && c == "" {
				c = s.Value[:min(len(s.Value), 12)]
			}
		}
	}
	if v == "" {
		v = "devel"
	}
	if c == "" {
		c = "unknown commit"
	}
	return fmt.Sprintf("%s (%s, %s)", v, c, runtime.Version())
}
