package guest

import (
	"context"
	"testing"
)

func BenchmarkRoundTrip(b *testing.B) {
	g := startGuest(b, Options{})
	for b.Loop() {
		if end := g.start(b, context.Background(), sh("exit 0")).wait(); end.GetExitCode() != 0 {
			b.Fatal(end)
		}
	}
}

func BenchmarkOutput20MB(b *testing.B) {
	g := startGuest(b, Options{})
	b.SetBytes(20 << 20)
	for b.Loop() {
		r := g.start(b, context.Background(), sh("head -c 20971520 /dev/zero"))
		n := 0
		for r.end == nil {
			if more, err := r.step(); err != nil || !more {
				b.Fatal(err)
			}
			n += r.stdout.Len()
			r.stdout.Reset()
		}
		if n != 20<<20 {
			b.Fatalf("%d bytes", n)
		}
	}
}
