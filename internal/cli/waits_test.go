package cli

import (
	"fmt"
	"net/http"
	"testing"

	"ravi/internal/access"
	"ravi/internal/command"
)

// A key holds so many calls that wait, keys together not so many more, and the operator as many as it likes. Each that is over
// makes room.
func TestWaitsAreBounded(t *testing.T) {
	w := &waits{of: map[string]int{}}
	envOf := func(id string) *command.Env { return &command.Env{Caller: access.WithKey(access.Key{ID: id})} }
	var leave []func()
	for n := range 2 * mostWaitsOfKey {
		l, err := w.enter(envOf("ctx_one"))
		if (err == nil) != (n < mostWaitsOfKey) {
			t.Fatalf("the call %d: %v", n, err)
		}
		if err == nil {
			leave = append(leave, l)
		} else if told := command.AsError(err); told.Status != http.StatusTooManyRequests {
			t.Errorf("it is told %+v", told)
		}
	}
	for n := range 2 * mostWaitsOfKeys {
		if l, err := w.enter(envOf(fmt.Sprint("ctx_child", n))); err == nil {
			leave = append(leave, l)
		}
	}
	if len(leave) != mostWaitsOfKeys {
		t.Errorf("%d calls wait", len(leave))
	}
	for range mostWaitsOfKeys {
		if _, err := w.enter(&command.Env{Caller: access.AsOperator()}); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range leave {
		l()
	}
	if w.all != 0 || len(w.of) != 0 {
		t.Errorf("%d are counted, of %v", w.all, w.of)
	}
}
