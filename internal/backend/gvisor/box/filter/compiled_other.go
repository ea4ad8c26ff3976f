//go:build !amd64

package filter

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

// compiled is empty: the kernel compiles its list itself.
var compiled precompiledseccomp.Program
