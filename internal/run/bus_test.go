package run

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
)

// A sandbox that connects to a bus that is not there, again and again, does not make the events grow.
func TestABusThatIsNotThereIsToldAFewTimes(t *testing.T) {
	dir, err := newFolder(t.TempDir(), "run1", redactor())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.close()
	s := &state{dir: dir, Options: Options{Bus: &Bus{Serve: func(context.Context, net.Conn) error { return errors.New("it is gone") }}}}
	serve := s.serveBus()
	for range 50 * mostBusTold {
		serve(t.Context(), nil)
	}
	b, err := os.ReadFile(dir.path(EventsFile))
	if n := strings.Count(string(b), "bus_not_reached"); err != nil || n != mostBusTold {
		t.Errorf("it was told %d times, %v", n, err)
	}
}
