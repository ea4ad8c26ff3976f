package bus

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// full is the error of a bus that has no space.
func (s *Server) full(why string) error {
	return refuse(ErrFull, fmt.Sprintf("free some space: df -h %q", s.opts.Dir), "the bus has no space left on the disk of %s (%s)", s.opts.Dir, why)
}

// The numbers of the errors of JetStream that say that there is no space.
var fullCodes = map[jetstream.ErrorCode]bool{
	10023: true, // insufficient resources
	10028: true, // maximum consumers or storage of the account
	10047: true, // insufficient storage resources available
	10077: true, // maximum bytes, messages exceeded, and errors of the disk
	10122: true, // maximum bytes required
}

// StoreError says what an error of a stream means, for people: a full one is ErrFull. Others are returned as they are.
func StoreError(err error) error {
	var api *jetstream.APIError
	var old *nats.APIError
	full := errors.Is(err, syscall.ENOSPC)
	switch {
	case errors.As(err, &api):
		full = full || fullCodes[api.ErrorCode] || strings.Contains(api.Description, syscall.ENOSPC.Error())
	case errors.As(err, &old):
		full = full || fullCodes[jetstream.ErrorCode(old.ErrorCode)] || strings.Contains(old.Description, syscall.ENOSPC.Error())
	}
	if !full {
		return err
	}
	return refuse(errors.Join(ErrFull, err), "free space on the disk of "+filepath.Join("<home>", "bus")+", or raise bus.max_store_mb",
		"the bus can store no more: %s", err)
}
