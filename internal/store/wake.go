package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Waker says soon when something may have been written, by whichever process, so that a Watcher need not be asked again and
// again. Whether it was is for the Watcher to say.
type Waker struct {
	// C has a value once there may be something.
	C     <-chan struct{}
	file  *os.File
	ended chan struct{}
}

// Wake begins to listen for what is written to the log beside a database in home: each change goes there first. Close it.
func Wake(home string) (*Waker, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for changes of the database: %w", err)
	}
	w := &Waker{file: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{})}
	// The folder and not the file, which may be made anew.
	if _, err := unix.InotifyAddWatch(fd, home, unix.IN_MODIFY|unix.IN_CREATE); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot listen for changes in %s: %w", home, err), w.file.Close())
	}
	c := make(chan struct{}, 1)
	w.C = c
	go w.listen(c, File+"-wal")
	return w, nil
}

// listen goes on until the file is closed.
func (w *Waker) listen(c chan<- struct{}, name string) {
	defer close(w.ended)
	var buf [64 << 10]byte
	for {
		n, err := w.file.Read(buf[:])
		if err != nil {
			return
		}
		if !named(buf[:n], name) {
			continue
		}
		select {
		case c <- struct{}{}:
		default: // it is there already
		}
	}
}

// named says whether events of inotify are about a file, or so many that some were lost.
func named(events []byte, name string) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask, n := binary.NativeEndian.Uint32(events[4:]), int(binary.NativeEndian.Uint32(events[12:]))
		events = events[unix.SizeofInotifyEvent:]
		if mask&unix.IN_Q_OVERFLOW != 0 || strings.TrimRight(string(events[:n]), "\x00") == name {
			return true
		}
		events = events[n:]
	}
	return false
}

// Close ends the listening.
func (w *Waker) Close() error {
	err := w.file.Close()
	<-w.ended
	return err
}
