// Package memtest looks for texts in the memory of other processes: tests prove with it that a secret is nowhere but where
// it has to be. It reads /proc only, and only what is in memory anyway: looking at a page that was never used would make
// one. It changes nothing in the process that it reads.
package memtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// piece is how much is read at once.
const piece = 1 << 20

// Holds says which of the texts are in a process's memory, and in the files without a name that it has open, in which gVisor
// keeps the memory of a sandbox. What of a process that is ending could not be read holds nothing.
func Holds(pid int, texts ...string) (map[string]bool, error) {
	s := &search{texts: texts, found: map[string]bool{}}
	err := errors.Join(s.memory(pid), s.unnamed(pid))
	if _, gone := os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); err != nil && errors.Is(gone, fs.ErrNotExist) {
		return s.found, nil
	}
	return s.found, err
}

// Family are a process and all that descend from it, by their command lines with spaces for what parts them.
func Family(root int) (map[int]string, error) {
	children := map[int][]int{}
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, name := range all {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		var pid, parent int
		var state string
		if _, err := fmt.Sscan(string(b), &pid); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		// The name of a program may have any sign in it.
		if _, err := fmt.Sscan(string(b[bytes.LastIndexByte(b, ')')+1:]), &state, &parent); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		children[parent] = append(children[parent], pid)
	}
	out := map[int]string{}
	for next := []int{root}; len(next) > 0; next = next[1:] {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", next[0]))
		if err == nil {
			out[next[0]] = strings.ReplaceAll(string(line), "\x00", " ")
		}
		next = append(next, children[next[0]]...)
	}
	return out, nil
}

type search struct {
	texts []string
	found map[string]bool
}

// in looks at the bytes from..to of r.
func (s *search) in(r io.ReaderAt, from, to int64) {
	longest := 0
	for _, t := range s.texts {
		longest = max(longest, len(t))
	}
	buf := make([]byte, piece+longest)
	for at := from; at < to; at += piece {
		n, _ := r.ReadAt(buf[:min(int64(len(buf)), to-at)], at) // what cannot be read holds nothing
		for _, t := range s.texts {
			if bytes.Contains(buf[:n], []byte(t)) {
				s.found[t] = true
			}
		}
	}
}

func (s *search) memory(pid int) error {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	defer maps.Close()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return err
	}
	defer mem.Close()
	pages, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		return err
	}
	defer pages.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		var from, to uint64
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to); err != nil {
			return fmt.Errorf("/proc/%d/maps: %q: %w", pid, lines.Text(), err)
		}
		if to > 1<<63 {
			continue // the kernel's own page, which all processes have
		}
		if err := s.used(mem, pages, int64(from), int64(to)); err != nil {
			return fmt.Errorf("/proc/%d/pagemap: %w", pid, err)
		}
	}
	return lines.Err()
}

// used looks at the pages that are in memory, or were moved out of it.
func (s *search) used(mem, pages *os.File, from, to int64) error {
	const entry, swapped, present = 8, 1 << 62, 1 << 63
	size := int64(os.Getpagesize())
	buf := make([]byte, 64<<10)
	begin := int64(-1)
	for at := from; at < to; {
		n, err := pages.ReadAt(buf[:min(int64(len(buf)), (to-at)/size*entry)], at/size*entry)
		if n < entry {
			return err
		}
		for i := 0; i+entry <= n; i += entry {
			switch there := binary.NativeEndian.Uint64(buf[i:])&(present|swapped) != 0; {
			case there && begin < 0:
				begin = at
			case !there && begin >= 0:
				s.in(mem, begin, at)
				begin = -1
			}
			at += size
		}
	}
	if begin >= 0 {
		s.in(mem, begin, to)
	}
	return nil
}

// unnamed looks at the files in memory that a process has open.
func (s *search) unnamed(pid int) error {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return err
	}
	for _, name := range fds {
		if target, err := os.Readlink(name); err != nil || !strings.HasPrefix(target, "/memfd:") {
			continue
		}
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was closed
		}
		if err != nil {
			return err
		}
		err = s.parts(f)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// parts looks at those parts of a file that were ever written.
func (s *search) parts(f *os.File) error {
	const seekData, seekHole = 3, 4
	for at := int64(0); ; {
		from, err := f.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		if at, err = f.Seek(from, seekHole); err != nil {
			return err
		}
		s.in(f, from, at)
	}
}
