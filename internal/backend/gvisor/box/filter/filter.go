// Package filter has gVisor's kernel confine itself with a list of system calls
// that was compiled before.
//
// Without it each kernel compiles that list anew when it starts, which takes a
// tenth of the time that a sandbox needs. gVisor's own releases carry it; its Go
// module does not, but looks for it all the same, under a name that holds
// everything which it depends on. If the name does not fit, the kernel compiles
// as before.
//
// The package holds one list, for the only way in which Ravi starts a kernel. It
// comes from gVisor's own code, and a test compares the two. It must not change
// what is allowed.
package filter

//go:generate go run ./generate.go

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	bootfilter "gvisor.dev/gvisor/runsc/boot/filter"
)

// programs is where the kernel looks.
//
//go:linkname programs gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var programs map[string]precompiledseccomp.Program

// Register offers the list to the kernel of this process.
func Register() {
	if compiled.Name == "" {
		return
	}
	bootfilter.ListPrecompiled() // which empties the table the first time
	programs[compiled.Name] = compiled
}
