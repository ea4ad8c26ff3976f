package cli

import (
	"fmt"
	"net/http"
	"sync"

	"ravi/internal/command"
)

// Bounds of the calls of keys that wait for a reply: each holds a connection to the gateway for as long as that takes, and
// those are everybody's.
const (
	mostWaitsOfKey  = 16
	mostWaitsOfKeys = 128 // all together; whoever has a key makes children of it
)

// waits are the calls of keys that wait now.
type waits struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

var waitsOfKeys = &waits{of: map[string]int{}}

// enter counts a call in until leave. The operator's are not counted.
func (w *waits) enter(env *command.Env) (leave func(), err error) {
	if env.Caller.IsOperator() {
		return func() {}, nil
	}
	name := env.Caller.Name()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[name] >= mostWaitsOfKey || w.all >= mostWaitsOfKeys {
		return nil, &command.Error{
			Code: command.CodeUnavailable, Message: fmt.Sprintf("too many calls wait for a reply already: %d of this key, %d of all", w.of[name], w.all),
			Hint: "send without --wait, and look for the reply later: ravi sessions transcript", Status: http.StatusTooManyRequests, Exit: command.ExitFailed,
		}
	}
	w.all++
	w.of[name]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.all--
		if w.of[name]--; w.of[name] == 0 {
			delete(w.of, name)
		}
	}, nil
}
