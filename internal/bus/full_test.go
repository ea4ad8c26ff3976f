package bus

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// smallDisk is an empty disk with few bytes.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("ravi-test", dir, "tmpfs", 0, "size=24m,mode=700"); err != nil {
		t.Skip("a small disk cannot be made here: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes to a file of the disk until this many bytes are free, and gives what takes it away again.
func fill(t *testing.T, dir string, leave uint64) func() {
	t.Helper()
	free, _, err := diskFree(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "fill")
	// Somebody else may have written meanwhile: then it is full before.
	if err := os.WriteFile(path, make([]byte, free-min(free, leave)), 0o600); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func workStream(t *testing.T, s *Server) jetstream.JetStream {
	t.Helper()
	js := newJetStream(t, control(t, s))
	answered(t, func() error {
		_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "WORK", Subjects: []string{"work.>"}})
		return err
	})
	return js
}

// answered calls f until somebody answers it: for a moment nobody does when a server has just begun, and joins another.
func answered(t *testing.T, f func() error) {
	t.Helper()
	until(t, func() error {
		err := f()
		if err != nil && !errors.Is(err, nats.ErrNoResponders) {
			t.Fatal(err)
		}
		return err
	})
}

// until calls f until it is nil.
func until(t *testing.T, f func() error) {
	t.Helper()
	end := time.Now().Add(2 * time.Minute)
	for err := f(); err != nil; err = f() {
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func startLooking(t *testing.T, o Options, every time.Duration) *Server {
	t.Helper()
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	if err := ourFolder(o.Dir); err != nil {
		t.Fatal(err)
	}
	s := newServer(o)
	s.lookAtDisk = every
	if err := s.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// full says whether a stream took no more for want of space.
func full(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.ErrorCode == 10002 || api.ErrorCode == 10023) // resource limits exceeded, insufficient resources
}

// A disk that others fill: the bus says so at once, and goes on when there is space again. Nothing that was stored is lost.
func TestDiskGetsFull(t *testing.T) {
	home := smallDisk(t)
	s := startLooking(t, optionsIn(home), time.Millisecond)
	js := workStream(t, s)
	if _, err := js.Publish(t.Context(), "work.acme.1", []byte("1")); err != nil {
		t.Fatal(err)
	}
	free := fill(t, home, 64<<10)
	until(t, func() error {
		if err := s.Ready(); !errors.Is(err, ErrFull) {
			return errors.New("it does not say that the disk is full")
		}
		return nil
	})
	began := time.Now()
	if _, err := js.Publish(t.Context(), "work.acme.2", []byte("2")); !full(err) {
		t.Fatal(err, time.Since(began))
	}
	free()
	until(t, s.Ready)
	until(t, func() error {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		_, err := js.Publish(ctx, "work.acme.3", []byte("3"), jetstream.WithMsgID("3")) // one that was late is there, too
		return err
	})
	stream, err := js.Stream(t.Context(), "WORK")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := stream.Info(t.Context()); err != nil || info.State.Msgs != 2 {
		t.Fatal(info, err)
	}
}

// A disk that gets full between two looks: the server's stream is broken then, and is mended.
func TestStreamMeetsAFullDisk(t *testing.T) {
	home := smallDisk(t)
	s := startLooking(t, optionsIn(home), time.Hour)
	js := workStream(t, s)
	if _, err := js.Publish(t.Context(), "work.acme.1", []byte("1")); err != nil {
		t.Fatal(err)
	}
	free := fill(t, home, 0)
	for s.Ready() == nil {
		// The server says nothing to who publishes.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if ack, err := js.Publish(ctx, "work.acme.2", bytes.Repeat([]byte("x"), 500_000)); err == nil {
			t.Error("it was stored", ack)
		}
		cancel()
	}
	if err := s.Ready(); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	if err := s.lookDisk(); err != nil {
		t.Fatal(err)
	}
	free()
	if err := s.lookDisk(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "work.acme.3", []byte("3")); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "WORK")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.GetMsg(t.Context(), 1); err != nil || string(m.Data) != "1" {
		t.Fatal(m, err)
	}
}

func TestStartOnAFullDisk(t *testing.T) {
	home := smallDisk(t)
	o := optionsIn(home)
	s := start(t, o)
	workStream(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := CheckSpace(o.Dir); err != nil {
		t.Fatal(err)
	}
	free := fill(t, home, 0)
	if err := CheckSpace(o.Dir); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), o)
	if err == nil {
		err = errors.Join(s.Ready(), s.Close())
	}
	if !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	free()
	if err := start(t, o).Ready(); err != nil {
		t.Fatal(err)
	}
}

func TestStoreHasABound(t *testing.T) {
	o := options(t)
	o.MaxStore = 1 << 20
	s := start(t, o)
	js := workStream(t, s)
	var err error
	stored := 0
	for ; err == nil && stored < 100; stored++ {
		_, err = js.Publish(t.Context(), "work.acme.1", make([]byte, 100_000))
	}
	if !full(err) || stored < 9 || stored > 13 {
		t.Fatal(stored, err)
	}
	// No client has streams.
	other, err := jetstream.New(warden(t, s, "acme"), jetstream.WithDefaultTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.CreateStream(t.Context(), jetstream.StreamConfig{Name: "X", Subjects: []string{"x"}}); err == nil {
		t.Error("a client has a stream")
	}
	// Memory is none either.
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "M", Subjects: []string{"m"}, Storage: jetstream.MemoryStorage}); err == nil {
		if _, err = js.Publish(t.Context(), "m", make([]byte, 100)); err == nil {
			t.Error("a stream in memory takes messages")
		}
	}
}

// Who is revoked while nothing can be written is cut all the same, and stays so over a restart once it can.
func TestRevokedOnAFullDisk(t *testing.T) {
	home := smallDisk(t)
	o := optionsIn(home)
	s := start(t, o)
	c := issue(t, s, guest("acme", run1))
	revoked := map[string]time.Time{c.User: time.Now()}
	free := fill(t, home, 0)
	if err := s.Revoke(t.Context(), "acme", revoked); err == nil {
		t.Error("it was written to a full disk")
	}
	if _, err := tryDial(t, s.URL(), c); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
	free()
	if err := s.Revoke(t.Context(), "acme", revoked); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = start(t, o)
	if _, err := tryDial(t, s.URL(), c); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}
