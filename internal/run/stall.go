package run

import (
	"context"
	"fmt"
	"io"
	"time"
)

// stallsAfter is how long a sandbox may take nothing of what is put into it. The kernel of one was seen to turn in circles
// on a machine with far too much to do; cuts of a runner's network, which take no longer than a minute, are well below it.
const stallsAfter = 3 * time.Minute

// putMoving has put read r, as long as it goes on. How long r itself takes does not count.
func putMoving(ctx context.Context, r io.Reader, put func(context.Context, io.Reader) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stallsAfter, func() {
		cancel(fmt.Errorf("the sandbox took nothing of what was put into it for %v", stallsAfter))
	})
	defer stalled.Stop()
	return put(ctx, &moving{r: r, stalled: stalled})
}

// moving is a reader that puts off a timer whenever it is read.
type moving struct {
	r       io.Reader
	stalled *time.Timer
}

func (m *moving) Read(p []byte) (int, error) {
	m.stalled.Stop()
	defer m.stalled.Reset(stallsAfter)
	return m.r.Read(p)
}
