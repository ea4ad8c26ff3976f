package install

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"ravi/internal/filelock"
)

// removeOlder removes the versions of a program that are older than one, but for those that a run uses: it holds a lock
// on the folder, for it sees what lies there. The next installation looks again. The lock of the place is held.
func removeOlder(place, than string) error {
	found, err := os.ReadDir(place)
	if err != nil {
		return err
	}
	for _, e := range found {
		if e.IsDir() && older(e.Name(), than) {
			err = errors.Join(err, removeUnused(place, e.Name()))
		}
	}
	return err
}

func removeUnused(place, version string) error {
	dir := filepath.Join(place, version)
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if free, err := filelock.Try(f, syscall.LOCK_EX); err != nil || !free {
		return err
	}
	// While it goes it is no installation any more, and if this process is killed the next one removes the rest.
	leaving := filepath.Join(place, freshPrefix+"leaving-"+version)
	if err := errors.Join(os.RemoveAll(leaving), os.Rename(dir, leaving)); err != nil {
		return err
	}
	return os.RemoveAll(leaving)
}

// older says whether a version such as 2.1.9 is older than another. Of what has another form nothing is known.
func older(version, than string) bool {
	a, ok := numbers(version)
	b, known := numbers(than)
	return ok && known && slices.Compare(a, b) < 0
}

func numbers(version string) (out []int, ok bool) {
	for _, part := range strings.Split(version, ".") {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil {
			return nil, false
		}
		out = append(out, int(n))
	}
	return out, true
}
