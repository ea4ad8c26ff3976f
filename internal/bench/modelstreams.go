package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"ravi/internal/broker"
)

const (
	streamCount = 200
	// stallMS is how much longer than without a broker a stream may pause.
	stallMS = 250
)

// modelStreams measures many streams at once by one broker on one processor, while one more call gets no answer.
func (b *bench) modelStreams(ctx context.Context) (err error) {
	up, err := newModelUpstream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.close()) }()
	round := 0
	return inTurns(ctx, min(b.Runs, mostCrowds), []string{direct, byBroker}, func(by string) error {
		token, hash := broker.NewToken()
		c := newModelClient(token)
		defer c.close()
		if by == direct {
			gap, err := c.crowd(ctx, up, up.url, up.hung, func() error { return nil })
			if err == nil {
				b.addTime("model_streams", by, gap)
			}
			return err
		}
		round++
		home := filepath.Join(b.dir, fmt.Sprintf("streams-%d", round))
		if err := os.Mkdir(home, 0o700); err != nil {
			return err
		}
		p, err := b.startBroker(ctx, job{Do: jobBroker, Base: up.url, Hung: up.hung, Body: hash, Home: home}, 1)
		if err != nil {
			return err
		}
		gap, kb, err := c.brokered(ctx, up, p)
		if err = errors.Join(err, p.close()); err != nil {
			return err
		}
		b.addTime("model_streams", by, gap)
		b.add("model_mem", by, kb)
		return nil
	}, func(by string, err error) { b.fail("model_streams", by, err) })
}

// brokered has the streams go by a new broker: what they take is what it did not have before.
func (c *modelClient) brokered(ctx context.Context, up *modelUpstream, p *brokerProcess) (gap time.Duration, kb float64, err error) {
	rss := func() (int64, error) { return procKB(fmt.Sprintf("/proc/%d/status", p.pid()), "VmRSS") }
	base := p.url + "/" + benchProvider
	// What the program loads for its first call is no stream's.
	if _, err := c.first(ctx, base, question(shortModel, 100)); err != nil {
		return 0, 0, err
	}
	before, err := rss()
	if err != nil {
		return 0, 0, err
	}
	gap, err = c.crowd(ctx, up, base, p.url+"/"+hungProvider, func() error {
		during, err := rss()
		kb = float64(during-before) * 1024 / 1000 / streamCount
		return err
	})
	return gap, kb, err
}

// crowd has many streams at once, and one more call that hangs. It gives the longest that any stream was silent after its
// first event, and calls within when half of the time is over.
func (c *modelClient) crowd(ctx context.Context, up *modelUpstream, base, hung string, within func() error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, streamFor+time.Minute)
	defer cancel()
	hanging, unhang := context.WithCancel(ctx)
	hangs := make(chan error, 1)
	go func() {
		_, err := c.open(hanging, hung, question(shortModel, 100))
		hangs <- err
	}()
	select {
	case <-up.asked:
	case err := <-hangs:
		unhang()
		return 0, fmt.Errorf("what was to hang did not: %w", err)
	}
	gaps := make([]time.Duration, streamCount)
	failed := make([]error, streamCount, streamCount+1)
	var all sync.WaitGroup
	for i := range streamCount {
		all.Go(func() { gaps[i], failed[i] = c.stream(ctx, base) })
	}
	select {
	case <-time.After(streamFor / 2):
		failed = append(failed, within())
	case <-ctx.Done():
	}
	all.Wait()
	select {
	case err := <-hangs:
		failed = append(failed, fmt.Errorf("what was to hang ended before the streams: %w", err))
	default:
		unhang()
		<-hangs
	}
	unhang()
	longest := time.Duration(0)
	for _, g := range gaps {
		longest = max(longest, g)
	}
	return longest, errors.Join(failed...)
}

// stream reads a stream to its end, and gives the longest time between two events. None may be missing.
func (c *modelClient) stream(ctx context.Context, base string) (longest time.Duration, err error) {
	body, err := c.open(ctx, base, question(streamModel, 100))
	if err != nil {
		return 0, err
	}
	defer body.Close()
	in := bufio.NewReader(body)
	var last time.Time
	events, ended := 0, false
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if !strings.HasPrefix(line, "event: ") {
			continue
		}
		now := time.Now()
		if !last.IsZero() {
			longest = max(longest, now.Sub(last))
		}
		last = now
		if line == streamMark {
			events++
		}
		ended = ended || strings.HasPrefix(line, modelEnd)
	}
	if events != streamEvents || !ended {
		return 0, fmt.Errorf("a stream had %d events, not %d, and its end: %v", events, streamEvents, ended)
	}
	return longest, nil
}
