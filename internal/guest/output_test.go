package guest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ravi/internal/guestapi/process"
)

func TestSpoolKeepsOrder(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s := spool{dir: dir, limit: 1 << 20}
		defer s.close()
		var want []byte
		var last *chunk
		seq := byte(0)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				seq++
				c := chunk{stream: stream(seq % 3), data: bytes.Repeat([]byte{seq}, rapid.IntRange(1, 100<<10).Draw(t, "size"))}
				err := s.append(c)
				switch {
				case errors.Is(err, errSpoolFull):
					if s.write+int64(len(c.data)) < s.limit-recordHeader {
						t.Fatalf("full with %d bytes in the file", s.write)
					}
				case err != nil:
					t.Fatal(err)
				default:
					want = append(want, seq)
				}
			},
			"next": func(t *rapid.T) {
				c, ok, err := s.next()
				if err != nil {
					t.Fatal(err)
				}
				if ok != (len(want) > 0) {
					t.Fatalf("there is one: %v; want %d", ok, len(want))
				}
				if !ok {
					return
				}
				if c.data[0] != want[0] || c.stream != stream(want[0]%3) || len(bytes.Trim(c.data, string(want[0]))) != 0 {
					t.Fatalf("got %d, want %d", c.data[0], want[0])
				}
				want = want[1:]
				last = &c
			},
			"unread": func(t *rapid.T) {
				if last == nil {
					t.Skip()
				}
				s.unread(*last)
				want = append([]byte{last.data[0]}, want...)
				last = nil
			},
			"": func(t *rapid.T) {
				if s.empty() != (len(want) == 0) {
					t.Fatalf("empty is %v with %d kept", s.empty(), len(want))
				}
			},
		})
	})
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files stayed: %v, %v", left, err)
	}
}

func text(s string) chunk { return chunk{data: []byte(s)} }

func TestUndeliveredChunkComesAgainFirst(t *testing.T) {
	o := newOutput(t.TempDir(), 1<<20)
	r := o.attach()
	go o.publish(text("one"))
	c, _, err := r.next(context.Background(), nil)
	if err != nil || string(c.data) != "one" {
		t.Fatalf("%v, %v", c, err)
	}
	r.detach(c) // the client was gone when it should have been sent
	o.publish(text("two"))
	again := o.attach()
	for _, want := range []string{"one", "two"} {
		c, _, err := again.next(context.Background(), nil)
		if err != nil || string(c.data) != want {
			t.Fatalf("%v, %v; want %q", c, err, want)
		}
	}
	o.finish(&process.ProcessEvent_EndEvent{ExitCode: 3})
	if _, end, err := again.next(context.Background(), nil); err != nil || end.GetExitCode() != 3 {
		t.Errorf("%v, %v", end, err)
	}
}

// A reader that comes while another still reads what was kept gets what is
// new, and neither gets anything twice.
func TestReaderDuringReplay(t *testing.T) {
	o := newOutput(t.TempDir(), 1<<20)
	o.publish(text("kept1 "))
	o.publish(text("kept2 "))
	first, second := o.attach(), o.attach()
	take := func(r *outputReader) string {
		t.Helper()
		c, _, err := r.next(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return string(c.data)
	}
	got := take(first)
	published := make(chan struct{})
	go func() {
		defer close(published)
		o.publish(text("live"))
	}()
	if other := take(second); other != "live" {
		t.Errorf("the second got %q", other)
	}
	<-published
	got += take(first) + take(first)
	if got != "kept1 kept2 live" {
		t.Errorf("the first got %q", got)
	}
	second.detach(nil)
	first.detach(nil)
	if !o.spool.empty() {
		t.Error("something stayed in the spool")
	}
}

func TestDiscardFreesPublishers(t *testing.T) {
	o := newOutput(t.TempDir(), 10)
	big := text(strings.Repeat("x", memorySpool+1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.publish(big) // fits nowhere
	}()
	select {
	case <-done:
		t.Fatal("dropped in silence")
	default:
	}
	o.discard()
	<-done
}

// A spool that cannot be written is no reason to lose output: it waits for a reader.
func TestSpoolWithoutSpace(t *testing.T) {
	o := newOutput("/dev/null/nowhere", 1<<20)
	big := text(strings.Repeat("x", memorySpool+1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.publish(big)
	}()
	r := o.attach()
	c, _, err := r.next(context.Background(), nil)
	if err != nil || len(c.data) != len(big.data) {
		t.Fatalf("%v", err)
	}
	<-done
	r.detach(nil)
}
