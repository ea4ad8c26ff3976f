package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
)

// Boot is what a daemon that has just begun to listen is told of one of its ports: who reaches it, and the findings that
// are errors or warnings. pid is the daemon.
func Boot(ctx context.Context, e Endpoint, port string, pid int) (Exposure, []Finding, error) {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return Exposure{}, nil, fmt.Errorf("the port %.20q: %w", port, err)
	}
	x, err := Expose(ctx, Listener{Name: e.Name, Port: uint16(n), Speaks: e.Speaks, Secure: e.TLS, PID: pid}, Interfaces)
	if err != nil {
		return x, nil, err
	}
	var r result
	e.findings(&r, x)
	return x, slices.DeleteFunc(r.findings, func(f Finding) bool { return f.Severity == Info }), nil
}
