package bench

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeDocker takes docker's commands as they are given here, notes them, and
// runs what is to run on the host. The file $FAKE/left is what ps finds.
const fakeDocker = `#!/bin/sh
echo "$@" >> "$FAKE/log"
case $1 in
info) if [ -e "$FAKE/down" ]; then echo "no daemon" >&2; exit 1; fi ;;
import) cat > "$FAKE/image.tar" ;;
run) shift; while [ "${1#ravi-bench:}" = "$1" ]; do shift; done; shift; exec "$@" ;;
exec) shift 2; exec "$@" ;;
ps) cat "$FAKE/left" 2> /dev/null; true ;;
rm) rm -f "$FAKE/left" ;;
rmi) ;;
*) echo "not a command: $1" >&2; exit 1 ;;
esac
`

func fake(t *testing.T) (dir string, i image) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker"), []byte(fakeDocker), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE", dir)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir, image{dir: t.TempDir(), host: []string{"/usr"}}
}

func TestContainers(t *testing.T) {
	dir, image := fake(t)
	e, err := newContainers(t.Context(), besideDocker, image)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := e.cold(t.Context()); err != nil || c.first <= 0 || c.create != 0 {
		t.Errorf("%v, %v", c, err)
	}
	s, err := e.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if took, err := s.exec(t.Context()); err != nil || took <= 0 {
		t.Errorf("%v, %v", took, err)
	}
	// The daemon keeps the container of a client that was killed.
	if err := os.WriteFile(filepath.Join(dir, "left"), []byte("c0ffee\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := e.close(t.Context()); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" --network none ", " --volume /usr:/usr:ro ", "\nexec ravi-bench-", "\nrm --force c0ffee\n", "\nrmi --force ravi-bench:"} {
		if !strings.Contains(string(log), want) {
			t.Errorf("%q was not asked for:\n%s", want, log)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "image.tar")); err != nil || st.Size() == 0 {
		t.Errorf("no image was imported: %v", err)
	}
}

// Who is not here, or not running, is no failure, and it is told which.
func TestContainersMissing(t *testing.T) {
	dir, image := fake(t)
	if err := os.WriteFile(filepath.Join(dir, "down"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := newContainers(t.Context(), besideDocker, image)
	if !errors.Is(err, errMissing) || !strings.Contains(err.Error(), "not running") || !strings.Contains(err.Error(), "no daemon") {
		t.Errorf("got %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	for _, name := range []string{besideDocker, besidePodman} {
		if _, err := newContainers(t.Context(), name, image); !errors.Is(err, errMissing) || !strings.Contains(err.Error(), "not installed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := newBwrap(image); !errors.Is(err, errMissing) {
		t.Errorf("bwrap: %v", err)
	}
}
