package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	mostIdles    = 3 // rounds: each takes a while
	mostIdleTime = 10
)

// idleBus measures a daemon that nobody asks for anything, with and without a bus: both at once, since neither does much.
func (b *bench) idleBus(ctx context.Context) error {
	both := []*gateway{
		{bench: b, home: filepath.Join(b.dir, "idle-bus")},
		{bench: b, home: filepath.Join(b.dir, "idle-none")},
	}
	for i, bus := range []string{`{"port": 0}`, `{"enabled": false}`} {
		if err := os.Mkdir(both[i].home, 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(both[i].home, "config.json"), []byte(`{"gateway": {"port": 0}, "bus": `+bus+`}`), 0o600); err != nil {
			return err
		}
	}
	return inTurns(ctx, min(b.Runs, mostIdles), []string{busAdds}, func(string) error {
		return b.idlePair(ctx, both[0], both[1])
	}, func(by string, err error) { b.fail(busMem, by, err) })
}

func (b *bench) idlePair(ctx context.Context, with, without *gateway) (err error) {
	type state struct {
		mb  float64
		cpu time.Duration
	}
	var daemons []*daemonProcess
	defer func() {
		for _, d := range daemons {
			err = errors.Join(err, d.stop())
		}
	}()
	for _, g := range []*gateway{with, without} {
		d, err := g.startDaemon(ctx)
		if err != nil {
			return err
		}
		daemons = append(daemons, d)
	}
	look := func() (all [2]state, err error) {
		for i, d := range daemons {
			kb, err := procKB(fmt.Sprintf("/proc/%d/status", d.pid()), "VmRSS")
			if err != nil {
				return all, err
			}
			all[i].mb = float64(kb) * 1024 / 1e6
			if all[i].cpu, err = cpuOf(d.pid()); err != nil {
				return all, err
			}
		}
		return all, nil
	}
	if err := settle(ctx); err != nil {
		return err
	}
	before, err := look()
	if err != nil {
		return err
	}
	start := time.Now()
	select {
	case <-time.After(time.Duration(min(b.Idle, mostIdleTime)) * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	after, err := look()
	if err != nil {
		return err
	}
	for i, by := range []string{withBus, withoutBus} {
		b.add(busMem, by, after[i].mb)
		b.add(busCPU, by, 100*float64(after[i].cpu-before[i].cpu)/float64(time.Since(start)))
	}
	b.add(busMem, busAdds, after[0].mb-after[1].mb)
	return nil
}
