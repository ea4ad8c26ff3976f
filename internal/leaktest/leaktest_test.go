package leaktest

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { Main(m) }

func TestWhatEndsLateIsNoLeak(t *testing.T) {
	begun := time.Now()
	go time.Sleep(2 * time.Second)
	None(t)
	if d := time.Since(begun); d < 2*time.Second {
		t.Errorf("it was over after %s", d)
	}
}

func TestWhatDoesNotEndIsOne(t *testing.T) {
	end := make(chan struct{})
	before := goleak.IgnoreCurrent()
	go func() { <-end }()
	if err := find(time.Millisecond, before); err == nil || !strings.Contains(err.Error(), "TestWhatDoesNotEndIsOne") {
		t.Error(err)
	}
	close(end)
}
