package keeper

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// policyEnds are the supervisor's end and the other one.
func policyEnds(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

func TestPolicyOfAnyLength(t *testing.T) {
	ours, theirs := policyEnds(t)
	for _, size := range []int{2, maxPolicy} {
		want := bytes.Repeat([]byte("x"), size)
		if err := sendPolicy(ours, want); err != nil {
			t.Fatal(err)
		}
		rights := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := unix.Recvmsg(int(theirs.Fd()), make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil || len(messages) != 1 {
			t.Fatalf("%d messages, %v", len(messages), err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fds[0]), "policy")
		defer f.Close()
		if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes arrived of %d: %v", len(got), size, err)
		}
		// One of the two may be somebody else's by now; the other must not read what that wrote.
		if _, err := f.WriteAt([]byte("y"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("the policy can be changed: %v", err)
		}
		if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
			t.Errorf("the policy can be cut: %v", err)
		}
	}
}

// Whoever takes no policies keeps nobody waiting.
func TestPolicyThatNobodyTakes(t *testing.T) {
	ours, theirs := policyEnds(t)
	var err error
	for range 10_000 {
		if err = sendPolicy(ours, make([]byte, 4096)); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "does not take") {
		t.Errorf("got %v", err)
	}
	theirs.Close()
	if err := sendPolicy(ours, []byte("{}")); err == nil {
		t.Error("a policy was sent to nobody")
	}
}

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("user:password\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, link, pipe := write("good", 0o600), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.Symlink(good, link), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, refused string }{
		"none":             {"", ""},
		"closed to others": {good, ""},
		"for reading only": {write("read", 0o400), ""},
		"for a group":      {write("group", 0o640), "(mode 0640): chmod 0600"},
		"for all":          {write("all", 0o604), "(mode 0604): chmod 0600"},
		"a link":           {link, "symbolic link"},
		"a pipe":           {pipe, "no regular file"},
		"a directory":      {dir, "no regular file"},
		"missing":          {filepath.Join(dir, "missing"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := OpenCredentials(c.path)
			if err == nil {
				defer f.Close()
			}
			switch {
			case c.refused != "":
				if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), c.path) {
					t.Errorf("got %v, want a refusal that says %q", err, c.refused)
				}
			case err != nil:
				t.Error(err)
			default:
				got, err := io.ReadAll(f)
				if want := "user:password\n"; err != nil || c.path != "" && string(got) != want || c.path == "" && len(got) > 0 {
					t.Errorf("%q %v", got, err)
				}
			}
		})
	}
	t.Run("somebody else's", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("SKIP-FEATURE: only root can give a file away")
		}
		path := write("other", 0o600)
		if err := os.Chown(path, 4242, 4242); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCredentials(path); err == nil || !strings.Contains(err.Error(), "belongs to the user 4242") {
			t.Errorf("got %v", err)
		}
	})
}
