package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"ravi/sandbox"
)

const (
	crowdSize   = 100
	crowdMB     = 1
	crowdMakers = 4 // sandboxes that are made at the same time
)

// crowd has many sandboxes get the same at once. All of them are there, with
// their connections made, before the first byte moves.
func (b *bench) crowd(ctx context.Context) (err error) {
	n, err := b.newNetworked()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.servers.close()) }()
	n.servers.crowd.expect(crowdSize, crowdMB*1e6)
	// All wait for all, but not for ever.
	together, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()

	all := make([]*sandbox.Sandbox, crowdSize)
	failed := make([]error, crowdSize)
	defer func() {
		closing := make([]error, crowdSize)
		each(crowdMakers, crowdSize, func(i int) {
			if all[i] != nil {
				closing[i] = all[i].Close()
			}
		})
		err = errors.Join(err, errors.Join(closing...))
	}()
	if err := n.trusting(func() { each(crowdMakers, crowdSize, func(i int) { all[i], _, failed[i] = n.open(together) }) }); err != nil {
		return err
	}
	for i, err := range failed {
		if err != nil {
			n.fail(netCrowd, ours, fmt.Errorf("sandbox %d: %w", i, err))
		}
	}
	if r := n.report.find(netCrowd, ours); r != nil && r.Failures > 0 {
		return ctx.Err()
	}
	var clients sync.WaitGroup
	for i := range crowdSize {
		if i >= crowdMakers {
			// To start a program is more work than to wait: not all at once.
			select {
			case <-n.servers.crowd.arrived:
			case <-together.Done():
			}
		}
		clients.Go(func() {
			_, failed[i] = n.client(together, all[i], job{Do: jobCrowd, Over: overHTTPS1, Bytes: crowdMB * 1e6})
			if failed[i] != nil {
				cancel() // the others would wait for it
			}
		})
	}
	clients.Wait()
	for i, err := range failed {
		if err != nil {
			n.fail(netCrowd, ours, fmt.Errorf("sandbox %d: %w", i, err))
		}
	}
	for _, d := range n.servers.crowd.times() {
		n.addTime(netCrowd, ours, d)
	}
	return nil
}

// each calls do with 0 to count-1, some at a time.
func each(atOnce, count int, do func(int)) {
	var wait sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range count {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	wait.Wait()
}
