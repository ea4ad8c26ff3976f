package run

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow takes its time for each byte.
type slow struct {
	r    io.Reader
	each time.Duration
}

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(s.each)
	return s.r.Read(p[:1])
}

func TestWhatIsPutMoves(t *testing.T) {
	for name, c := range map[string]struct {
		source, taker time.Duration // for each byte
		stops         int           // bytes after which nothing is taken
		ends          bool
	}{
		"a slow source":            {source: 10 * stallsAfter, stops: -1},
		"a slow taker":             {taker: stallsAfter - time.Second, stops: -1},
		"nothing is taken":         {stops: 0, ends: true},
		"nothing more is taken":    {stops: 3, ends: true},
		"all is taken, no answer":  {stops: 5, ends: true},
		"both take their time":     {source: stallsAfter, taker: stallsAfter / 2, stops: -1},
		"a taker that is too slow": {taker: stallsAfter + time.Second, stops: -1, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := putMoving(t.Context(), slow{strings.NewReader("abcd"), c.source}, func(ctx context.Context, r io.Reader) error {
					for n := 0; ; n++ {
						taken := time.After(c.taker)
						if n == c.stops {
							taken = nil
						}
						select {
						case <-ctx.Done():
							return context.Cause(ctx)
						case <-taken:
						}
						if _, err := r.Read(make([]byte, 10)); errors.Is(err, io.EOF) && c.stops < 0 {
							return nil
						}
					}
				})
				if c.ends != (err != nil) || c.ends && !strings.Contains(err.Error(), "took nothing of what was put into it for 3m0s") {
					t.Errorf("it ended with %v", err)
				}
			})
		})
	}
}
