package tunnel

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// errDown: the bus is away, and will tell when it is back.
var errDown = errors.New("the bus is away")

// bus is what carries packets, as badly as it likes.
type bus interface {
	// publish does not keep the packet. It returns errDown while the bus is away, and other errors when that is for good.
	publish(subject string, packet []byte) error
	// subscribe calls take with one packet after the other, which are take's to keep.
	subscribe(subject string, take func(subject string, packet []byte)) (cancel func() error, err error)
	// limit is the largest packet, in bytes.
	limit() int
	// watch calls f whenever the bus is there again, or gone for good. f is not called after cancel.
	watch(f func()) (cancel func())
}

// natsBus is a connection to NATS.
type natsBus struct{ *nats.Conn }

// pending bounds what a subscription holds that was not looked at yet: more than the windows of the sessions of a busy
// runner, which look at it at once. What is beyond is dropped, and sent again.
const (
	pendingPackets = 64 << 10
	pendingBytes   = 64 << 20
)

func (b natsBus) publish(subject string, packet []byte) error {
	switch {
	case b.IsClosed():
		return ErrBusDown
	case !b.IsConnected(): // otherwise NATS keeps it, and sends it with all that is sent again
		return errDown
	}
	err := b.Publish(subject, packet)
	switch {
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return ErrBusDown
	case errors.Is(err, nats.ErrBadSubject):
		return fmt.Errorf("cannot send on the tunnel: %w", err)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting):
		return errDown
	}
	// What is left is a socket that broke, which NATS finds out next, or a new server that takes smaller packets. The
	// packet is lost, and whoever sent it is prepared for that.
	return nil
}

func (b natsBus) subscribe(subject string, take func(string, []byte)) (func() error, error) {
	s, err := b.Subscribe(subject, func(m *nats.Msg) { take(m.Subject, m.Data) })
	if err != nil {
		return nil, fmt.Errorf("cannot listen on the tunnel: %w", err)
	}
	if err := s.SetPendingLimits(pendingPackets, pendingBytes); err != nil {
		return nil, errors.Join(err, s.Unsubscribe())
	}
	return func() error {
		if err := s.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		return nil
	}, nil
}

func (b natsBus) limit() int {
	n := b.MaxPayload()
	if n < minPacket { // before the first connection it is not known
		return minPacket
	}
	return int(min(n, maxPacket))
}

func (b natsBus) watch(f func()) func() {
	changes := b.StatusChanged(nats.CONNECTED, nats.CLOSED)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for range changes {
			f()
		}
	}()
	return func() {
		b.RemoveStatusListener(changes)
		<-stopped
	}
}
