package cli

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"

	"ravi/internal/command"
	safe "ravi/internal/term"
)

// progress shows steps on stderr: on a terminal the running step with its time, elsewhere one plain line at its end.
// What a command prints goes through it as well, so that the two never write into each other's lines.
type progress struct {
	mu       sync.Mutex
	out, err io.Writer
	quiet    bool
	live     bool // stderr is a terminal
	colour   bool
	outTTY   bool
	now      func() time.Time

	step    string
	began   time.Time
	id      int
	drawn   bool // the running step's line stands on the terminal
	halfway bool // the last thing on the terminal did not end its line
	mute    bool // output was seen during this step: the line is not drawn over it
	stop    chan struct{}
	wait    sync.WaitGroup
}

var _ command.Progress = (*progress)(nil)

func newProgress(env *command.Env) *progress {
	p := &progress{
		out: env.Stdout, err: env.Stderr, quiet: env.Quiet, live: env.StderrTerminal, outTTY: env.StdoutTerminal,
		colour: colours(env.StderrTerminal), now: time.Now, stop: make(chan struct{}),
	}
	if p.live && !p.quiet {
		p.wait.Go(p.animate)
	}
	return p
}

func (p *progress) animate() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		}
	}
}

// Step implements command.Progress.
func (p *progress) Step(name string) func(error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(nil)
	p.id++
	p.step, p.began, p.mute = safe.Safe(name), p.now(), false
	p.draw()
	id := p.id
	return func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.id == id {
			p.end(err)
		}
	}
}

// Log implements command.Progress.
func (p *progress) Log(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet {
		return
	}
	p.erase()
	fmt.Fprintln(p.err, "  "+indentAfterFirst(safe.SafeText(line)))
	p.draw()
}

// end writes the last line of the running step.
func (p *progress) end(err error) {
	if p.step == "" {
		return
	}
	took := p.now().Sub(p.began)
	p.erase()
	if !p.quiet {
		mark, red, green, dim, plain := "✓", "", "", "", ""
		if err != nil {
			mark = "✗"
		}
		if p.colour {
			red, green, dim, plain = "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"
		}
		if !p.live {
			mark = "done:"
			if err != nil {
				mark = "failed:"
			}
		}
		tint := green
		if err != nil {
			tint = red
		}
		fmt.Fprintf(p.err, "%s%s%s %s %s%s%s\n", tint, mark, plain, p.step, dim, shortDuration(took), plain)
	}
	p.step = ""
}

func (p *progress) draw() {
	if !p.live || p.quiet || p.mute || p.step == "" {
		return
	}
	p.erase()
	fmt.Fprintf(p.err, "· %s %s", p.step, shortDuration(p.now().Sub(p.began)))
	p.drawn = true
}

// erase takes the running line off the terminal, or ends a line that a command left open.
func (p *progress) erase() {
	switch {
	case p.drawn:
		io.WriteString(p.err, "\r\x1b[K")
	case p.live && p.halfway && !p.quiet:
		io.WriteString(p.err, "\n")
	}
	p.drawn, p.halfway = false, false
}

// close ends the display, and the running step as the command ended.
func (p *progress) close(err error) {
	close(p.stop)
	p.wait.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(err)
}

func (p *progress) stdout() io.Writer { return &shared{p: p, w: p.out, visible: p.live && p.outTTY} }
func (p *progress) stderr() io.Writer { return &shared{p: p, w: p.err, visible: p.live} }

// shared is a stream that the progress may be drawn on.
type shared struct {
	p       *progress
	w       io.Writer
	visible bool
}

func (s *shared) Write(data []byte) (int, error) {
	if !s.visible {
		return s.w.Write(data)
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.drawn {
		s.p.erase()
	}
	if s.p.step != "" {
		s.p.mute = true
	}
	n, err := s.w.Write(data)
	if n > 0 {
		s.p.halfway = !bytes.HasSuffix(data[:n], []byte("\n"))
	}
	return n, err
}

// shortDuration is a time with as many digits as a person reads.
func shortDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}
