package bus

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// reserve is what is left free on the disk, at most this: a stream that meets a full disk is of no use any more.
	reserve = 64 << 20
	// diskEvery is the time between looks at the disk.
	diskEvery = 2 * time.Second
)

// space is what is known of the space for streams.
type space struct {
	low  bool   // nothing is stored until there is space again
	free uint64 // bytes that the disk had free at the last look
}

// Ready says whether the bus can store, and why not: ErrFull. Who cannot store asks it, as the server may not answer then.
func (s *Server) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.space.low || s.log.broken.Load():
		return s.full(fmt.Sprintf("%d MB are free", s.space.free>>20))
	}
	return nil
}

// full is the error of a disk that is.
func (s *Server) full(why string) error { return fullDisk(s.opts.Dir, why) }

func fullDisk(dir, why string) error {
	return refuse(ErrFull, fmt.Sprintf("free some space: df -h %q; the bus goes on by itself then", dir),
		"the bus stores nothing, as the disk of %s is full: %s", dir, why)
}

// CheckSpace is ErrFull if our own bus in a folder (Options.Dir) has no space to store in. Who has no bus at hand asks it.
func CheckSpace(dir string) error {
	free, least, err := diskFree(dir)
	if err == nil && free < least {
		return fullDisk(dir, fmt.Sprintf("%d MB are free", free>>20))
	}
	return err
}

// watchDisk keeps the streams from meeting a full disk, and mends them when they met one all the same. The server does
// neither: a stream that could not be written answers nobody until it is started anew.
func (s *Server) watchDisk(ctx context.Context) {
	tick := time.NewTicker(s.lookAtDisk)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.lookDisk(); err != nil {
			s.opts.Log.Error("the bus cannot look after the space for its streams", "error", err)
		}
	}
}

func (s *Server) lookDisk() error {
	free, least, err := diskFree(s.opts.Dir)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.space.free = free
	// It has to be a bit more than it was when it got too little, or it would go back and forth.
	low := free < least || s.space.low && free < least+least/4
	if low != s.space.low {
		s.space.low = low
		if low {
			s.opts.Log.Error(s.full(fmt.Sprintf("%d MB are free", free>>20)).Error())
		} else {
			s.opts.Log.Info("the bus stores again: its disk has space", "free_mb", free>>20)
		}
		if err := s.push("CONTROL", s.keys.doc.Control); err != nil {
			return err
		}
	}
	if low || !s.log.broken.Load() {
		return nil
	}
	s.log.broken.Store(false)
	s.opts.Log.Warn("the bus starts its streams anew: one could not be written")
	if err := s.ns.ShutdownJetStream(); err != nil {
		return err
	}
	if err := s.ns.EnableJetStream(&server.JetStreamConfig{
		StoreDir: s.opts.Dir, MaxStore: s.opts.MaxStore, MaxMemory: maxMemory, Domain: s.domain, Strict: true, CompressOK: true,
	}); err != nil {
		s.log.broken.Store(true)
		return fmt.Errorf("the streams of the bus do not start: %w", err)
	}
	return nil
}

// diskFree is what is free on the disk of a folder, and what has to be.
func diskFree(dir string) (free, least uint64, err error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, 0, fmt.Errorf("cannot see how much space there is: %w", err)
	}
	return fs.Bavail * uint64(fs.Bsize), min(reserve, fs.Blocks*uint64(fs.Bsize)/20), nil
}
