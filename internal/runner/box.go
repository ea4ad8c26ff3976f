package runner

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ravi/internal/backend"
	"ravi/internal/backend/remote"
	"ravi/internal/keeper"
	"ravi/sandbox"
)

// create makes the session's sandbox and stays with it until it is gone. Every way out ends the session.
func (s *served) create(ctx context.Context, c net.Conn, in *bufio.Reader, spec *remote.Spec) {
	if s.once.Swap(true) || spec == nil {
		_ = remote.WriteLine(c, remote.Failed(refuse("a session has one sandbox")))
		s.cancel(errNonsense)
		return
	}
	close(s.asked)
	defer s.bye(ctx)
	say := func(r remote.Reply) { _ = remote.WriteLine(c, r) } // who is gone misses nothing
	// Nothing more is said there; whoever goes on or goes away ends the sandbox.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = in.ReadByte()
		cancel()
	}()
	inst, free, err := s.make(ctx, spec, say)
	if err != nil {
		s.log.Info("a sandbox was not made", "error", err)
		say(remote.Failed(err))
		return
	}
	s.inst = inst
	close(s.made)
	say(remote.Reply{Event: remote.EventCreated})
	go func() {
		notes, err := inst.Ready(ctx)
		r := remote.Reply{Notes: notes}
		if err != nil {
			r = remote.Failed(err)
		}
		r.Event = remote.EventReady
		select {
		case <-ctx.Done():
		default:
			say(r)
		}
	}()
	given := ""
	select {
	case <-inst.Ended():
	case <-ctx.Done():
		given = keeper.ReasonRunner // home did not ask for it
		closing, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeTime, errors.New("it does not end"))
		if err := inst.Close(closing); err != nil {
			s.log.Error("a sandbox did not end in order", "error", err)
		}
		cancel()
		<-inst.Ended() // until then its part of the machine is taken
	}
	end := inst.End()
	end.Reason = cmp.Or(given, end.Reason)
	s.log.Info("a sandbox has ended", "reason", end.Reason)
	s.lastWords(ctx)
	free()
	say(remote.Reply{Event: remote.EventEnded, Reason: end.Reason, Detail: end.Detail, Error: end.Error})
}

// lastWords waits until what the network told is on its way home.
func (s *served) lastWords(ctx context.Context) {
	over := make(chan struct{})
	go func() {
		s.told.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-ctx.Done():
	case <-time.After(lastTime):
	}
}

// bye waits until home has heard what was said last and ends the session, and then ends it in any case.
func (s *served) bye(ctx context.Context) {
	wait := byeTime
	switch {
	case errors.Is(context.Cause(ctx), errNonsense):
		wait = 0
	case ctx.Err() != nil:
		wait = lastTime
	}
	select {
	case <-s.session.Done():
	case <-time.After(wait):
	}
	s.cancel(errOver)
	s.session.Close()
}

// make makes the sandbox. free gives back what it took, once it has ended.
func (s *served) make(ctx context.Context, spec *remote.Spec, say func(remote.Reply)) (inst backend.Instance, free func(), err error) {
	policy, err := s.check(spec)
	if err != nil {
		return nil, nil, err
	}
	giveRoom, err := s.room.take(spec.CPUs, spec.Memory)
	if err != nil {
		return nil, nil, err
	}
	var held []string
	free = func() {
		for _, digest := range held {
			if err := s.contents.free(digest); err != nil {
				s.log.Error("a folder that was sent is not removed", "error", err)
			}
		}
		giveRoom()
	}
	defer func() {
		if err != nil {
			free()
		}
	}()
	held, err = s.gather(ctx, spec.Contents, say)
	if err != nil {
		return nil, nil, err
	}
	id := sandbox.NewID()
	made := backend.Spec{
		ID: id, Dir: filepath.Join(s.home, sandboxesDir, id), Home: s.home, Image: spec.Image,
		CPUs: spec.CPUs, Memory: spec.Memory, Disk: spec.Disk, Processes: spec.Processes,
		Network: policy, RootsFile: s.roots, WorkspaceOnly: spec.WorkspaceOnly,
	}
	for _, c := range spec.Contents {
		made.Mounts = append(made.Mounts, backend.Mount{Host: s.contents.path(c.Digest), Guest: c.Guest, ReadOnly: !c.Overlay, Overlay: c.Overlay, Own: true, Real: true})
	}
	if inst, err = s.backend.Create(ctx, made); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(made.Dir)) // nothing runs yet
	}
	s.log.Info("a sandbox is made", "sandbox", id, "for", spec.ID, "cpus", spec.CPUs, "memory", spec.Memory)
	return inst, free, nil
}

// want is a folder that is to come. Whoever has it says so in got, unless nobody waits any more.
type want struct {
	remote.Content
	got  chan error
	over <-chan struct{}
}

// gather has the folders be there, and held. held are also those that are there when it fails.
func (s *served) gather(ctx context.Context, all []remote.Content, say func(remote.Reply)) (held []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, contentTime, errors.New("the folders did not come in time"))
	defer cancel()
	var need []string
	var wants []want
	for _, c := range all {
		switch {
		case slices.Contains(need, c.Digest):
		case s.contents.hold(c.Digest):
			held = append(held, c.Digest)
		default:
			need = append(need, c.Digest)
			w := want{c, make(chan error), ctx.Done()}
			wants = append(wants, w)
			s.wants <- w // there is room for all
		}
	}
	close(s.wants)
	if len(need) == 0 {
		return held, nil
	}
	say(remote.Reply{Event: remote.EventNeed, Need: need})
	for _, w := range wants {
		select {
		case err = <-w.got:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			return held, err
		}
		held = append(held, w.Digest)
	}
	return held, nil
}

// content takes the folder that comes next.
func (s *served) content(ctx context.Context, c net.Conn, in io.Reader, digest string) {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var w want
	select {
	case w = <-s.wants:
	case <-ctx.Done():
		return
	}
	err := refuse("%.80q was not asked for", digest)
	if w.got != nil {
		if w.Digest == digest {
			err = s.contents.add(ctx, w.Content, in)
		}
		select {
		case w.got <- err:
		case <-w.over:
			if err == nil {
				err = s.contents.free(digest)
			}
		}
	}
	r := remote.Reply{}
	if err != nil {
		r = remote.Failed(err)
	}
	_ = remote.WriteLine(c, r) // who is gone misses nothing
}
