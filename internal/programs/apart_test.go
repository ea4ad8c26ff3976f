package programs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
)

// As a process of that name this test program lists its programs, as ravi does.
func init() {
	if filepath.Base(os.Args[0]) != ListName || len(os.Args) != 2 {
		return
	}
	Register(all("guest", "other"))
	set, err := Find(context.Background(), os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(set)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// unread are programs that this process must not read.
type unread struct{ fstest.MapFS }

func (unread) Open(name string) (fs.File, error) {
	return nil, errors.New("this process reads " + name)
}

// A process that lasts reads none of the programs itself.
func TestLayOutApart(t *testing.T) {
	old := embedded
	t.Cleanup(func() { embedded, apart = old, false })
	Register(unread{})
	LayOutApart()
	set, err := Find(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{set.Guest: "guest", set.Kernel: "other"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", path, b, err)
		}
	}
}
