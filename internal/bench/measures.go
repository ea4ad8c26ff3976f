package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"ravi/sandbox"
)

const (
	execsARound = 5 // a command is cheap, so each round has more of them
	outputSize  = 20_000_000
	fileSize    = 64_000_000
	mostClones  = 5 // a clone takes seconds
	idlers      = 4
	settleTime  = 2 * time.Second // for a new sandbox to come to rest
	stormSize   = 50
)

// inTurns calls do for everybody, round by round, beginning with another one
// each time. Who fails is out: its failure is noted and does not hold up the
// others.
func inTurns[C any](ctx context.Context, runs int, who []C, do func(C) error, failed func(C, error)) error {
	out := make([]bool, len(who))
	for round := range runs {
		for i := range who {
			at := (round + i) % len(who)
			if out[at] {
				continue
			}
			if err := do(who[at]); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				out[at] = true
				failed(who[at], err)
			}
		}
	}
	return nil
}

// coldStarts measures from nothing to a sandbox, and to its first output.
func (b *bench) coldStarts(ctx context.Context) error {
	return inTurns(ctx, b.Runs, b.contenders(), func(c contender) error {
		took, err := c.cold(ctx)
		if err != nil {
			return err
		}
		if took.create > 0 {
			b.addTime("create", c.by(), took.create)
		}
		b.addTime("first", c.by(), took.first)
		return nil
	}, func(c contender, err error) { b.fail("first", c.by(), err) })
}

// opened is a contender that lives.
type opened struct {
	by string
	session
}

// openAll opens everybody who can run further commands. What it gives must be
// closed, also when there is an error.
func (b *bench) openAll(ctx context.Context, forMeasure string) (all []opened, closeAll func() error, err error) {
	closeAll = func() error {
		ctx, cancel := cleaning(ctx)
		defer cancel()
		var errs []error
		for _, o := range all {
			errs = append(errs, o.close(ctx))
		}
		return errors.Join(errs...)
	}
	for _, c := range b.contenders() {
		if e, ok := c.(*engine); ok && (e.exec == nil || !b.want("exec")) {
			continue
		}
		s, err := c.open(ctx)
		if err == nil {
			all = append(all, opened{c.by(), s})
			_, err = s.exec(ctx) // the first one does not count
		}
		if err != nil {
			if ctx.Err() != nil {
				return all, closeAll, ctx.Err()
			}
			b.fail(forMeasure, c.by(), err)
		}
	}
	return all, closeAll, nil
}

// execs measures commands in what runs already, and the same from inside.
func (b *bench) execs(ctx context.Context) (err error) {
	all, closeAll, err := b.openAll(ctx, "exec")
	defer func() { err = errors.Join(err, closeAll()) }()
	if err != nil {
		return err
	}
	noSpawn := map[string]bool{}
	spawns := func(o opened) {
		s, ok := o.session.(*boxSession)
		if !ok || noSpawn[o.by] || !b.want("spawn") {
			return
		}
		took, err := s.spawns(ctx, execsARound, "/bin/true")
		switch {
		case errors.Is(err, errNoPython):
			b.skip("spawn inside "+o.by, err)
			noSpawn[o.by] = true
		case err != nil && ctx.Err() == nil:
			b.fail("spawn", o.by, err)
			noSpawn[o.by] = true
		}
		for _, d := range took {
			b.addTime("spawn", o.by, d)
		}
	}
	failed := func(o opened, err error) { b.fail("exec", o.by, err) }
	for range b.Runs {
		if b.want("exec") {
			if err := inTurns(ctx, execsARound, all, func(o opened) error {
				took, err := o.exec(ctx)
				if err == nil {
					b.addTime("exec", o.by, took)
				}
				return err
			}, failed); err != nil {
				return err
			}
		}
		for _, o := range all {
			spawns(o)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// noise is bytes that no one can guess or compress; the same every time.
func noise(n int) []byte {
	b := make([]byte, n)
	// Reading from it cannot fail.
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// living is a sandbox of ours, and whose.
type living struct {
	*box
	sb *sandbox.Sandbox
}

// eachBox makes a sandbox of each backend of ours, with a folder to see in it
// if one is named, and calls do with it, runs times in turns.
func (b *bench) eachBox(ctx context.Context, runs int, name, input string, prepare, do func(living) error) (err error) {
	var all []living
	defer func() {
		for _, m := range all {
			err = errors.Join(err, m.sb.Close())
		}
	}()
	for _, x := range b.boxes {
		var opts []sandbox.Option
		if input != "" && x.backend != sandbox.BackendHost { // which sees it as it is
			opts = append(opts, sandbox.WithInput(input))
		}
		l := living{box: x}
		if l.sb, err = x.sandbox(ctx, opts...); err == nil {
			if err = prepare(l); err == nil {
				all = append(all, l)
				continue
			}
			err = errors.Join(err, l.sb.Close())
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.fail(name, x.by(), err)
	}
	return inTurns(ctx, runs, all, do, func(m living, err error) { b.fail(name, m.by(), err) })
}

// streams measures bytes that come out of a command, and files that go in and
// come out. What arrives is compared with what left.
func (b *bench) streams(ctx context.Context) error {
	const blob, file = "/workspace/bench-output", "/workspace/bench-file"
	content, payload := noise(outputSize), noise(fileSize)
	sum := sha256.Sum256(content)
	prepare := func(l living) error {
		if err := l.sb.Files().Write(ctx, blob, bytes.NewReader(content)); err != nil {
			return err
		}
		return l.sb.Files().Write(ctx, file, bytes.NewReader(payload))
	}
	if b.want("output") {
		if err := b.eachBox(ctx, b.Runs, "output", "", prepare, func(l living) error {
			var got bytes.Buffer
			got.Grow(outputSize + bytes.MinRead)
			start := time.Now()
			p, err := l.sb.Start(ctx, sandbox.Cmd{Args: []string{"cat", path.Base(blob)}, Stdout: &got})
			if err == nil {
				err = ended(p.Wait())
			}
			took := time.Since(start)
			if err != nil {
				return err
			}
			if sha256.Sum256(got.Bytes()) != sum {
				return fmt.Errorf("%d bytes came out that are not the %d that the command wrote", got.Len(), outputSize)
			}
			b.addRate("output", l.by(), outputSize, took)
			return nil
		}); err != nil {
			return err
		}
	}
	if !b.wantAny("write", "read") {
		return nil
	}
	name := "write"
	if !b.want(name) {
		name = "read"
	}
	return b.eachBox(ctx, b.Runs, name, "", prepare, func(l living) error {
		start := time.Now()
		if err := l.sb.Files().Write(ctx, file, bytes.NewReader(payload)); err != nil {
			return err
		}
		b.addRate("write", l.by(), fileSize, time.Since(start))
		var got bytes.Buffer
		got.Grow(fileSize + bytes.MinRead)
		start = time.Now()
		r, err := l.sb.Files().Read(ctx, file)
		if err != nil {
			return err
		}
		defer r.Close()
		if _, err := io.Copy(&got, r); err != nil {
			return err
		}
		took := time.Since(start)
		if !bytes.Equal(got.Bytes(), payload) {
			return fmt.Errorf("%d bytes were read that are not the %d that were written", got.Len(), fileSize)
		}
		b.addRate("read", l.by(), fileSize, took)
		return nil
	})
}

// clones measures git clone in the sandbox's own files, and on the host.
func (b *bench) clones(ctx context.Context) error {
	bundle, err := makeRepo(ctx, b.dir)
	if err != nil {
		b.skip("clone", err)
		return nil
	}
	const to = "bench-clone"
	hostCopy := filepath.Join(b.dir, to)
	onHost := func() error {
		start := time.Now()
		if err := git(ctx, nil, "clone", "-q", bundle, hostCopy); err != nil {
			return err
		}
		b.addTime("clone", bare, time.Since(start))
		return os.RemoveAll(hostCopy)
	}
	hostFailed := false
	nothing := func(living) error { return nil }
	return b.eachBox(ctx, min(b.Runs, mostClones), "clone", filepath.Dir(bundle), nothing, func(l living) error {
		from := bundle
		if l.backend != sandbox.BackendHost {
			from = path.Join("/.ravi/in", filepath.Base(bundle))
		}
		start := time.Now()
		res, err := l.sb.Exec(ctx, sandbox.Cmd{Args: []string{"git", "clone", "-q", from, to}})
		took := time.Since(start)
		if err != nil {
			return err
		}
		if res.ExitCode != 0 {
			return fmt.Errorf("git clone: %s", res.Text(400))
		}
		b.addTime("clone", l.by(), took)
		if err := l.sb.Files().Remove(ctx, path.Join("/workspace", to)); err != nil {
			return err
		}
		if l.backend != ours || hostFailed {
			return nil // one turn of the host's for each of ours
		}
		if err := onHost(); err != nil && ctx.Err() == nil {
			hostFailed = true
			b.fail("clone", bare, err)
		}
		return ctx.Err()
	})
}

// memory measures what sandboxes at rest take, one kind after the other: what
// the same program shares with itself would flatter both.
func (b *bench) memory(ctx context.Context) error {
	for _, c := range b.contenders() {
		if e, ok := c.(*engine); ok && (!e.whole || e.exec == nil) {
			continue
		}
		if err := b.idle(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) idle(ctx context.Context, c contender) (err error) {
	var all []session
	defer func() {
		clean, cancel := cleaning(ctx)
		defer cancel()
		for _, s := range all {
			err = errors.Join(err, s.close(clean))
		}
	}()
	failed := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.fail("memory", c.by(), err)
		return nil
	}
	for range idlers {
		s, err := c.open(ctx)
		if err != nil {
			return failed(err)
		}
		all = append(all, s)
		if _, err := s.exec(ctx); err != nil {
			return failed(err)
		}
	}
	if err := settle(ctx); err != nil {
		return err
	}
	for _, s := range all {
		mb, err := pssOf(s.pid())
		if err != nil {
			return failed(err)
		}
		b.add("memory", c.by(), mb)
	}
	return nil
}

// storm makes many sandboxes at once. All of them live until the last is there.
func (b *bench) storm(ctx context.Context) error {
	for _, x := range b.boxes {
		var (
			wait   sync.WaitGroup
			took   [stormSize]time.Duration
			made   [stormSize]*sandbox.Sandbox
			failed [stormSize]error
		)
		start := time.Now()
		for i := range stormSize {
			wait.Go(func() {
				made[i], failed[i] = x.sandbox(ctx)
				took[i] = time.Since(start)
			})
		}
		wait.Wait()
		all := time.Since(start)
		var closing [stormSize]error
		for i, sb := range made {
			if sb != nil {
				wait.Go(func() { closing[i] = sb.Close() })
			}
		}
		wait.Wait()
		if err := errors.Join(closing[:]...); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for i, err := range failed {
			if err != nil {
				b.fail("storm", x.by(), err)
				continue
			}
			b.addTime("storm", x.by(), took[i])
		}
		if b.report.find("storm", x.by()).Failures == 0 {
			b.addTime("storm_all", x.by(), all)
		}
	}
	return nil
}

// versions measures how long the program takes to say its name.
func (b *bench) versions(ctx context.Context) error {
	return inTurns(ctx, b.Runs, []string{ours}, func(by string) error {
		cmd := program(ctx, b.Program, "--version")
		start := time.Now()
		err := finish(cmd)
		if err == nil {
			b.addTime("version", by, time.Since(start))
		}
		return err
	}, func(by string, err error) { b.fail("version", by, err) })
}
