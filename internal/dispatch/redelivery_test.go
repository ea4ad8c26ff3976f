package dispatch

import (
	"sync/atomic"
	"testing"
	"time"

	"ravi/internal/store"
)

// A run that takes longer than the bus waits for an acknowledgement is held by heartbeats; where they are lost, or somebody
// delivers by hand, the message comes again, and nothing is begun again for it, also when it is over or canceled.
func TestWhatComesAgainIsNotDoneAgain(t *testing.T) {
	for name, c := range map[string]struct {
		beat time.Duration
		end  store.RunStatus
		want store.WorkStatus
	}{
		"held":                {beat: 50 * time.Millisecond, end: store.RunSucceeded, want: store.WorkDone},
		"heartbeats are lost": {beat: time.Hour, end: store.RunSucceeded, want: store.WorkDone},
		"canceled":            {beat: time.Hour, end: store.RunCanceled, want: store.WorkCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.gate = true
			var taken atomic.Int64
			w.dispatcher(func(o *Options) {
				o.taken, o.ackWait, o.beatEvery = func(string) { taken.Add(1) }, 200*time.Millisecond, c.beat
			})
			beats, err := w.nc.SubscribeSync("$JS.ACK.>")
			if err != nil {
				t.Fatal(err)
			}
			k := w.send(w.session("acme", "main"), "x", store.Normal)
			w.until("the run", func() bool { return len(w.tries()) == 1 })
			if c.beat < time.Hour {
				for n := 0; n < 3*4; n++ {
					if m, err := beats.NextMsg(time.Minute); err != nil || string(m.Data) != "+WPI" {
						t.Fatalf("the bus is told %v, %v, and not that the message is worked on", m, err)
					}
				}
			} else {
				w.until("that it comes again", func() bool { return taken.Load() >= 3 })
			}
			js := newJetStream(t, w.nc)
			again := func() {
				if _, err := js.Publish(t.Context(), workSubject(k), []byte("{}")); err != nil {
					t.Fatal(err)
				}
			}
			before := taken.Load()
			again()
			w.until("the one by hand", func() bool { return taken.Load() > before })
			w.end(w.tries()[0].RunID, store.Run{Status: c.end})
			w.over(k)
			again()
			w.until("an empty queue", func() bool { return w.left(WorkStream) == 0 })
			if got := w.work(k.ID); got.Status != c.want || got.Tries != 0 || len(w.tries()) != 1 {
				t.Errorf("the work is %+v after %d tries", got, len(w.tries()))
			}
		})
	}
}
