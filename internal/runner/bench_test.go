package runner

import (
	"testing"

	"ravi/sandbox"
)

// BenchmarkOpen is from nothing to a command that has run: here, on a runner within this process, and over a bus.
func BenchmarkOpen(b *testing.B) {
	one := func(b *testing.B, open func() *sandbox.Sandbox) {
		for b.Loop() {
			sb := open()
			sh(b, sb, "true")
			b.StopTimer()
			if err := sb.Close(); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
	b.Run("here", func(b *testing.B) {
		home := b.TempDir()
		one(b, func() *sandbox.Sandbox {
			cfg := sandbox.Default()
			cfg.MemoryMiB = 512
			sb, err := sandbox.Open(b.Context(), cfg, "", sandbox.WithHome(home))
			if err != nil {
				b.Fatal(err)
			}
			return sb
		})
	})
	b.Run("runner", func(b *testing.B) {
		g := newRig(b, Options{})
		one(b, func() *sandbox.Sandbox { return g.open(b, nil) })
	})
	b.Run("tunnel", func(b *testing.B) {
		g := newRig(b, Options{})
		overBus(b, g)
		one(b, func() *sandbox.Sandbox { return g.open(b, nil) })
	})
}
