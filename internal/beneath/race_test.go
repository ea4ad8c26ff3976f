package beneath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// swap exchanges two files of the workspace without a rest, until the returned function is called.
func (p *place) swap(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := unix.Renameat2(unix.AT_FDCWD, p.at(a), unix.AT_FDCWD, p.at(b), unix.RENAME_EXCHANGE); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return func() {
		cancel()
		must(t, <-done)
	}
}

// While another process swaps a folder, or a file, for a link that leads outside, nothing is read, written, made, removed
// or seen there. Each is tried 1,000 times and more, until it met both.
func TestSwappedForALink(t *testing.T) {
	const tries = 1000
	seen := func(data []byte) error {
		if bytes.Contains(data, []byte(canary)) {
			return errors.New("a file from outside was read")
		}
		return nil
	}
	for what, try := range map[string]func(ctx context.Context, p *place, i int) (done bool, wrong error){
		"read in a folder": func(ctx context.Context, p *place, _ int) (bool, error) {
			data, err := p.ReadFile(ctx, "d/f", 99)
			return err == nil, seen(data)
		},
		"read a file": func(ctx context.Context, p *place, _ int) (bool, error) {
			data, err := p.ReadFile(ctx, "f", 99)
			return err == nil, seen(data)
		},
		"stat": func(ctx context.Context, p *place, _ int) (bool, error) {
			e, err := p.Stat(ctx, "d/f")
			if e.Size == int64(len(canary)) {
				return false, errors.New("a file from outside was seen")
			}
			return err == nil, nil
		},
		"write in a folder": func(ctx context.Context, p *place, i int) (bool, error) {
			return p.WriteFile(ctx, fmt.Sprintf("d/new%d", i%7), []byte("x")) == nil, nil
		},
		"write over a file of a folder": func(ctx context.Context, p *place, _ int) (bool, error) {
			return p.WriteFile(ctx, "d/f", []byte("x")) == nil, nil
		},
		"write below a folder": func(ctx context.Context, p *place, i int) (bool, error) {
			return p.WriteFile(ctx, fmt.Sprintf("d/sub%d/x", i), []byte("x")) == nil, nil
		},
		"make folders": func(ctx context.Context, p *place, i int) (bool, error) {
			return p.MakeDir(ctx, fmt.Sprintf("d/sub%d/x", i)) == nil, nil
		},
		"remove": func(ctx context.Context, p *place, _ int) (bool, error) {
			err := p.Remove(ctx, "d/victim")
			return err == nil || errors.Is(err, fs.ErrNotExist), nil
		},
		"list a folder": func(ctx context.Context, p *place, _ int) (bool, error) {
			entries, _, err := p.List(ctx, "d", 3, 99)
			return err == nil, noneOutside(paths(entries))
		},
		"list all": func(ctx context.Context, p *place, _ int) (bool, error) {
			entries, _, err := p.List(ctx, ".", 3, 99)
			if err != nil {
				return false, err
			}
			return strings.Contains(strings.Join(paths(entries), " "), "d/f"), noneOutside(paths(entries))
		},
		"walk": func(ctx context.Context, p *place, _ int) (bool, error) {
			var names []string
			var wrong error
			_, err := p.Walk(ctx, ".", wide, func(e Entry, read func() ([]byte, error)) error {
				names = append(names, e.Path)
				data, _ := read()
				wrong = errors.Join(wrong, seen(data))
				return nil
			})
			return strings.Contains(strings.Join(names, " "), "d/f"), errors.Join(err, wrong, noneOutside(names))
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			put(t, p.at("d/f"), "in")
			put(t, p.at("d/victim"), "in")
			must(t, os.Symlink(p.outside, p.at("link")))
			put(t, p.at("f"), "in")
			must(t, os.Symlink(p.outside+"/f", p.at("filelink")))
			stopFolders, stopFiles := p.swap(t, "d", "link"), p.swap(t, "f", "filelink")
			did, refused := 0, 0
			for i := 0; i < tries || did == 0 || refused == 0; i++ {
				done, wrong := try(t.Context(), p, i)
				if wrong != nil {
					t.Error(wrong)
					break
				}
				if done {
					did++
				} else {
					refused++
				}
			}
			stopFiles()
			stopFolders()
			p.outsideIsUntouched(t)
			t.Logf("%d done, %d refused", did, refused)
		})
	}
}

func noneOutside(names []string) error {
	for _, name := range names {
		if strings.Contains(name, "onlyoutside") {
			return errors.New("a folder from outside was listed")
		}
	}
	return nil
}

// A file that is swapped for a pipe, which nobody writes to, is read or refused, and never waited for.
func TestSwappedForAPipe(t *testing.T) {
	p := newPlace(t)
	put(t, p.at("f"), "in")
	must(t, unix.Mkfifo(p.at("pipe"), 0o600))
	stop := p.swap(t, "f", "pipe")
	defer stop()
	read, refused := 0, 0
	for i := 0; i < 1000 || read == 0 || refused == 0; i++ {
		switch data, err := p.ReadFile(t.Context(), "f", 99); {
		case err == nil && string(data) == "in":
			read++
		case errors.Is(err, ErrNotFile):
			refused++
		default:
			t.Fatalf("%q, %v", data, err)
		}
	}
}
