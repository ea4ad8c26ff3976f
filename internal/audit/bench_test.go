package audit

import (
	"slices"
	"sync"
	"testing"
	"time"

	"ravi/internal/store"
)

// One append alone: what a call waits for.
func BenchmarkAppendAlone(b *testing.B) {
	w := benchWriter(b)
	var took []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := w.Append(b.Context(), benchRecord()); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
}

// 64 at once: what many calls get.
func BenchmarkAppend64(b *testing.B) {
	w := benchWriter(b)
	start := time.Now()
	next := make(chan struct{})
	var wait sync.WaitGroup
	for range 64 {
		wait.Go(func() {
			for range next {
				if err := w.Append(b.Context(), benchRecord()); err != nil {
					b.Error(err)
				}
			}
		})
	}
	n := 0
	for b.Loop() {
		next <- struct{}{}
		n++
	}
	close(next)
	wait.Wait()
	b.ReportMetric(float64(n)/time.Since(start).Seconds(), "rows/s")
}

func benchWriter(b *testing.B) *Writer {
	b.Helper()
	s, err := store.Open(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	w := NewWriter(Log{Store: s})
	b.Cleanup(func() {
		if err := w.Close(); err != nil {
			b.Error(err)
		}
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return w
}

func benchRecord() Record {
	return Record{Caller: "ctx_0123456789abcdefghijklmn", Action: "command.tasks.show", Object: "tsk01jf8f8f8f8f8f8f8f8f8f8f8f", Decision: store.Allowed,
		RunID: "run01jf8f8f8f8f8f8f8f8f8f8f8f", Detail: []byte(`{"input":{"task":"tsk01jf8f8f8f8f8f8f8f8f8f8f8f"},"ms":0.412}`)}
}
