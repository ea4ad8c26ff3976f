package sandbox

import (
	"context"
	"io"
	"testing"
	"time"

	"connectrpc.com/connect"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/guestapi/ravi"
	"ravi/internal/guestapi/ravi/raviconnect"
)

// killer is a guest that hears what is to be killed.
type killer struct {
	raviconnect.GuestClient
	killed chan uint32
	dead   context.CancelFunc
}

func (k killer) Kill(_ context.Context, r *connect.Request[ravi.KillRequest]) (*connect.Response[ravi.KillResponse], error) {
	k.killed <- r.Msg.GetProcess().GetPid()
	k.dead()
	return connect.NewResponse(&ravi.KillResponse{Signalled: 1}), nil
}

// A command that begins while its caller goes is killed, though the word that it has begun comes only afterwards. One that
// belongs to somebody else is left alone.
func TestCanceledWhileItStarts(t *testing.T) {
	for name, borrowed := range map[string]bool{"its own": false, "another's": true} {
		t.Run(name, func(t *testing.T) {
			streamCtx, stop := context.WithCancel(context.Background())
			k := killer{killed: make(chan uint32, 2), dead: stop}
			p := &Process{sb: &Sandbox{client: &guestapi.Client{Guest: k}}, stop: stop, done: make(chan struct{}), over: make(chan struct{}), borrowed: borrowed}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			begun := make(chan struct{})
			told := 0
			// In either order it has to be killed; this is the one that matters.
			timer := time.AfterFunc(50*time.Millisecond, func() { close(begun) })
			defer timer.Stop()
			err := p.follow(ctx, eventStream{close: func() error { return nil }, next: func() (*process.ProcessEvent, error) {
				switch told++; told {
				case 1:
					<-begun
				case 2:
					<-streamCtx.Done()
					return &process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{}}}, nil
				default:
					return nil, io.EOF
				}
				return &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 42}}}, nil
			}}, Cmd{})
			if err != nil {
				t.Fatalf("it says %v", err)
			}
			<-p.over
			select {
			case pid := <-k.killed:
				if pid != 42 || borrowed {
					t.Errorf("%d was killed", pid)
				}
			default:
				if !borrowed {
					t.Error("it runs on")
				}
			}
		})
	}
}
