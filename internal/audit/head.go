package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"ravi/internal/filelock"
	"ravi/internal/store"
)

// Head is the newest row that the second place knows.
type Head struct {
	Seq  int64     `json:"seq"`
	Hash string    `json:"hash"`
	Time time.Time `json:"time"`
	// Check is a checksum of the rest: of a line that was written half, nothing is believed.
	Check string `json:"check"`
}

// ErrNoHead says that there is no head, so that nobody knows whether rows are missing at the end.
var ErrNoHead = errors.New("the audit has no head")

const (
	// headLine is the length of a line, a sector, its end included. The file has two: the older one is overwritten, so
	// that one is whole whatever happens meanwhile. That costs one sync and no change of the file's length.
	headLine = 512
	// headWait bounds the wait for other processes, which hold the file for a millisecond.
	headWait = 20 * time.Second
)

func (h Head) check() string {
	return strconv.FormatUint(uint64(crc32.ChecksumIEEE(fmt.Appendf(nil, "%d %s %d", h.Seq, h.Hash, h.Time.UnixMilli()))), 16)
}

func headOf(r *Record) Head {
	h := Head{Seq: r.Seq, Hash: r.Hash, Time: store.Now()}
	h.Check = h.check()
	return h
}

func (h Head) line() ([]byte, error) {
	b, err := json.Marshal(h)
	if err == nil && len(b) >= headLine {
		err = fmt.Errorf("%d bytes are too many", len(b))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write the audit's head: %w", err)
	}
	b = append(b, bytes.Repeat([]byte(" "), headLine-1-len(b))...)
	return append(b, '\n'), nil
}

// ReadHead reads the head from its file, or fails with ErrNoHead. It needs no lock.
func ReadHead(path string) (Head, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Head{}, fmt.Errorf("%w: %s does not exist", ErrNoHead, path)
	}
	if err != nil {
		return Head{}, fmt.Errorf("cannot read the audit's head: %w", err)
	}
	defer f.Close()
	h, _, err := readHead(f)
	return h, err
}

// readHead also says which line is the older one.
func readHead(f *os.File) (newest Head, older int, err error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 2*headLine))
	if err != nil {
		return Head{}, 0, fmt.Errorf("cannot read the audit's head: %w", err)
	}
	for i := range 2 {
		if len(b) < (i+1)*headLine {
			break
		}
		var h Head
		if json.Unmarshal(b[i*headLine:(i+1)*headLine], &h) == nil && h.Seq > newest.Seq && len(h.Hash) == 64 && h.Check == h.check() {
			newest, older = h, 1-i
		}
	}
	if newest.Seq == 0 {
		return Head{}, 0, &Tampered{What: f.Name() + " holds no head of the audit", Do: "put back the file from a copy, or, " + acceptHint}
	}
	return newest, older, nil
}

// moveHead makes last the head, unless the head is further already. What the head says must be so in the table: else rows
// could be taken away, and as many others put in their place, and the head would follow.
func moveHead(ctx context.Context, path string, first, last *Record, hashOf func(context.Context, int64) (string, error)) (begun bool, err error) {
	f, begun, err := openHead(ctx, path, last)
	if err != nil || begun {
		return begun, err
	}
	defer f.Close()
	known, older, err := readHead(f)
	if err != nil {
		return false, err
	}
	if known.Seq != first.Seq-1 || known.Hash != first.Prev {
		found, err := hashOf(ctx, known.Seq)
		if err != nil {
			return false, err
		}
		if err := fits(path, known, found, last.Seq); err != nil {
			return false, err
		}
	}
	if known.Seq >= last.Seq {
		return false, nil
	}
	return false, writeHead(f, headOf(last), older)
}

// fits compares the head with the row of its number, of which the hash is empty if there is none.
func fits(path string, h Head, found string, end int64) error {
	switch {
	case found == "":
		return &Tampered{Row: h.Seq, What: fmt.Sprintf("row %d is missing, which the head in %s names; the last row is %d", h.Seq, path, end), Do: missingHint}
	case found != h.Hash:
		return &Tampered{Row: h.Seq, What: fmt.Sprintf("row %d is not the one that the head in %s names: it and rows before it were written anew", h.Seq, path), Do: missingHint}
	}
	return nil
}

func writeHead(f *os.File, h Head, line int) error {
	b, err := h.line()
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, int64(line)*headLine); err != nil {
		return fmt.Errorf("cannot write the audit's head: %w", err)
	}
	if err := syscall.Fdatasync(int(f.Fd())); err != nil {
		return fmt.Errorf("cannot write the audit's head %s: %w", f.Name(), err)
	}
	return nil
}

// openHead gives the file, locked, or makes it with last as the head.
func openHead(ctx context.Context, path string, last *Record) (f *os.File, begun bool, err error) {
	for range 3 { // it may be made by others, and removed
		f, err = os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, false, fmt.Errorf("cannot open the audit's head: %w", err)
		}
		if err = makeHead(path, headOf(last)); err == nil {
			return nil, true, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, false, fmt.Errorf("cannot make the audit's head: %w", err)
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot open the audit's head: %w", err)
	}
	if err := lockHead(ctx, f); err != nil {
		f.Close()
		return nil, false, err
	}
	return f, false, nil
}

func lockHead(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, headWait)
	defer cancel()
	err := filelock.Wait(ctx, f, syscall.LOCK_EX, 500*time.Microsecond, nil)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("waiting for another ravi to release the audit's head %s: %w", f.Name(), err)
	}
	return fmt.Errorf("cannot lock the audit's head %s: %w", f.Name(), err)
}

// makeHead makes the file whole or not at all, and never takes the place of another.
func makeHead(path string, h Head) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*") // of mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	// Both lines: later writes do not change the length.
	if err := errors.Join(writeHead(f, h, 0), writeHead(f, h, 1), f.Sync()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// forceHead makes last the head, whatever the file says.
func forceHead(ctx context.Context, path string, last *Record) error {
	f, begun, err := openHead(ctx, path, last)
	if err != nil || begun {
		return err
	}
	defer f.Close()
	return errors.Join(writeHead(f, headOf(last), 0), writeHead(f, headOf(last), 1))
}
