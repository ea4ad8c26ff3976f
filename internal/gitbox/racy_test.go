package gitbox

import (
	"bytes"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Git compares time stamps in whole seconds. A file that is edited without changing its size, in the second in which the index
// was written, is told from the index's own time stamp only, which a copy of the index has to keep.

// withinOneSecond repeats edit until the file and the index were written in one second, and waits for that second's end.
func withinOneSecond(t *testing.T, file, index string, edit func()) {
	t.Helper()
	t.Cleanup(prefer(-20))
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		for time.Now().Nanosecond() > 1e8 {
			time.Sleep(5 * time.Millisecond)
		}
		var before, after, idx unix.Stat_t
		began := time.Now().Unix()
		must(t, unix.Stat(file, &before))
		edit()
		must(t, unix.Stat(file, &after))
		must(t, unix.Stat(index, &idx))
		if before.Size != after.Size {
			t.Fatalf("the edit changes the size from %d to %d", before.Size, after.Size)
		}
		if after.Ctim.Sec == began && idx.Mtim.Sec == began {
			for time.Now().Unix() == began {
				time.Sleep(5 * time.Millisecond)
			}
			return
		}
	}
	t.Fatal("the machine is too slow: no two steps within one second")
}

// prefer has this process, and what it starts, go before the others of a loaded machine, where only root may. It gives what
// undoes that.
func prefer(nice int) (undo func()) {
	threads, _ := filepath.Glob("/proc/self/task/*") // it is well-formed
	for _, thread := range threads {
		if id, err := strconv.Atoi(filepath.Base(thread)); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, nice)
		}
	}
	return func() { prefer(0) }
}

func TestEditWithinTheSecondOfACommit(t *testing.T) {
	r := filled(t)
	r.write("f", "one\n")
	withinOneSecond(t, r.path("f"), r.path(".git/index"), func() {
		r.write("f", "one\n")
		r.git("add", "f")
		r.write("f", "two\n")
	})
	b := export(t, r.dir, "")
	if got := b.box().show(t, b.Tree+":f"); got != "two\n" {
		t.Errorf("the user's edit was left out: %q", got)
	}
}

func TestEditWithinTheSecondOfASave(t *testing.T) {
	r := filled(t)
	r.write("f", "one\n")
	r.commit("f")
	s := enter(t, export(t, r.dir, ""))
	save := func() string {
		var patch bytes.Buffer
		_, err := s.base.Capture(t.Context(), s.g, s.l, CaptureOptions{}, &patch)
		must(t, err)
		return patch.String()
	}
	withinOneSecond(t, s.path("f"), s.l.Private+"/seen", func() {
		s.write("f", "one\n")
		if patch := save(); patch != "" {
			t.Fatalf("nothing was changed, the patch is %q", patch)
		}
		s.write("f", "two\n")
	})
	if patch := save(); !strings.Contains(patch, "+two") {
		t.Errorf("the agent's edit was left out: %q", patch)
	}
}

func (b box) show(t *testing.T, object string) string {
	t.Helper()
	out, err := b.output(t.Context(), nil, "cat-file", "blob", object)
	must(t, err)
	return out
}
