// Package box is the part of the gVisor backend that contains gVisor: it runs
// in processes of its own, which the keeper's supervisor starts from the program
// ravi-kernel under the name ravi-box, and in those that gVisor starts from the
// same program under its own names.
//
// A box process has the rights to make a sandbox. It reads one request, which
// only Ravi writes, and never a byte from a guest. Only cmd/ravi-kernel imports
// it, since it brings in the whole kernel.
package box

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cli/maincli"

	"ravi/internal/backend/gvisor"
	"ravi/internal/backend/gvisor/box/filter"
	"ravi/internal/keeper"
	"ravi/internal/link"
)

// Name is what the program is called when it is to make a sandbox.
const Name = gvisor.MakerName

// Dispatch serves the processes that this package is for, and returns if this
// is not one of them. It must be the first thing that main does.
//
// gVisor starts its own parts from /proc/self/exe, under names that begin
// with "runsc" or, for small helpers, under the link's own name.
func Dispatch() {
	name := filepath.Base(os.Args[0])
	switch {
	case strings.HasPrefix(name, "runsc"), name == "exe":
		filter.Register()
		maincli.Main()
		os.Exit(0)
	case name == Name:
		debug.SetGCPercent(-1) // it lives for a moment
		// gVisor's own log is for those who ask for it; see kernelConfig.
		log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
		os.Exit(serve())
	}
}

// networkFD is the descriptor of the sandbox's network namespace.
const networkFD = 6

// serve answers one request on descriptor 3.
func serve() int {
	conn := os.NewFile(3, "supervisor")
	var req keeper.MakerRequest
	var reply keeper.MakerReply
	err := json.NewDecoder(conn).Decode(&req)
	if err == nil {
		var box gvisor.Request
		if err = json.Unmarshal(req.Request, &box); err == nil {
			reply.Notes, err = do(req, box)
		}
	}
	if err != nil {
		reply.Error = err.Error()
		var h hinted
		if errors.As(err, &h) {
			reply.Hint = h.hint
		}
	}
	if err := json.NewEncoder(conn).Encode(reply); err != nil {
		fmt.Fprintln(os.Stderr, "ravi-box: answering:", err)
		return 1
	}
	return 0
}

func do(req keeper.MakerRequest, r gvisor.Request) (notes []string, err error) {
	switch req.Op {
	case "make":
		return create(r, guestFiles(r))
	case "pause", "resume", "checkpoint":
		return nil, operate(req.Op, req.Dir, r)
	default:
		return nil, fmt.Errorf("unknown request %q", req.Op)
	}
}

// guestFiles are the descriptors of the guest agent: its ends of the link and of
// the lanes, which lie behind the network namespace here.
func guestFiles(r gvisor.Request) map[int]*os.File {
	files, next := map[int]*os.File{3: os.NewFile(4, "link"), 4: os.NewFile(5, "link")}, networkFD
	if r.Network {
		next++
	}
	for i := range 2 * r.Lanes {
		files[link.FirstLane+i] = os.NewFile(uintptr(next+i), "lane")
	}
	return files
}

// hinted is an error with what mends it.
type hinted struct {
	error
	hint string
}

func (h hinted) Unwrap() error { return h.error }
