package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBudget(10)
		if err := b.take(t.Context(), 8); err != nil {
			t.Fatal(err)
		}
		if b.grab(3) {
			t.Error("more than there is was grabbed")
		}
		ctx, cancel := context.WithCancel(t.Context())
		given, gaveUp := make(chan error), make(chan error)
		go func() { gaveUp <- b.take(ctx, 5) }()
		go func() { given <- b.take(t.Context(), 4) }()
		synctest.Wait()
		cancel()
		if err := <-gaveUp; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		b.give(8)
		if err := <-given; err != nil || b.left != 6 {
			t.Error(err, b.left)
		}
	})
}

// Large bodies wait for each other, and small ones for none.
func TestLargeBodiesAreReadInTurn(t *testing.T) {
	w := newWorld(t, nil, nil)
	if err := w.broker.large.take(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &call{b: w.broker, p: w.broker.providers["anthropic"], to: route{endpoint: messages}, r: w.request("POST", "/", "").WithContext(ctx)}
	if _, refused := c.check([]byte(anthropicBody)); refused != nil {
		t.Error(refused)
	}
	if _, refused := c.check(make([]byte, largeBody+1)); refused == nil || refused.status != 503 {
		t.Error(refused)
	}
	w.broker.large.give(1)
	if _, refused := c.check(make([]byte, largeBody+1)); refused == nil || refused.status != 400 {
		t.Error(refused)
	}
}

// Bodies together are bounded, and what was taken for one is given back.
func TestBodiesTogether(t *testing.T) {
	w := newWorld(t, nil, nil)
	all := w.broker.requests.left
	w.mustRefuse(w.post("/anthropic/v1/messages", `{"model":`), Anthropic, 400, "")
	if left := w.broker.requests.left; left != all {
		t.Errorf("%d of %d bytes are free", left, all)
	}
	w.broker.requests.grab(all)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &call{b: w.broker, r: w.request("POST", "/", anthropicBody)}
	if _, _, refused := c.body(ctx); refused == nil || refused.status != 503 {
		t.Error(refused)
	}
}
