package runner

import (
	"fmt"
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

// BenchmarkOutput is what a command writes, in bytes a second.
func BenchmarkOutput(b *testing.B) {
	const size = 64 << 20
	one := func(b *testing.B, sb *sandbox.Sandbox) {
		b.SetBytes(size)
		for b.Loop() {
			var n counting
			if _, err := sb.Exec(b.Context(), sandbox.Cmd{Args: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}, Stdout: &n}); err != nil || n != size {
				b.Fatal(n, err)
			}
		}
	}
	b.Run("here", func(b *testing.B) {
		sb, err := sandbox.Open(b.Context(), sandbox.Default(), "", sandbox.WithHome(b.TempDir()))
		if err != nil {
			b.Fatal(err)
		}
		defer sb.Close()
		one(b, sb)
	})
	b.Run("runner", func(b *testing.B) { one(b, newRig(b, Options{}).open(b, nil)) })
	b.Run("tunnel", func(b *testing.B) {
		g := newRig(b, Options{})
		overBus(b, g)
		one(b, g.open(b, nil))
	})
}

type counting int

func (c *counting) Write(b []byte) (int, error) {
	*c += counting(len(b))
	return len(b), nil
}
