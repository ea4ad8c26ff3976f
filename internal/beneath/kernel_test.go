package beneath

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// oldKernel has this program be one that tries to open a folder where openat2 ends with the error of this number.
const oldKernel = "RAVI_TEST_OPENAT2_ERRNO"

func TestMain(m *testing.M) {
	if number, err := strconv.Atoi(os.Getenv(oldKernel)); err == nil {
		fmt.Println(openWithout(number))
		return
	}
	os.Exit(m.Run())
}

func openWithout(number int) string {
	err := seccomp.LoadFilter(seccomp.Filter{NoNewPrivs: true, Flag: seccomp.FilterFlagTSync, Policy: seccomp.Policy{
		DefaultAction: seccomp.ActionAllow,
		Syscalls:      []seccomp.SyscallGroup{{Names: []string{"openat2"}, Action: seccomp.ActionErrno | seccomp.Action(number)}},
	}})
	if err != nil {
		return "no filter: " + err.Error()
	}
	r, err := Open(".")
	return fmt.Sprint(r == nil, errors.Is(err, ErrUnsupported), err)
}

// Where there is no openat2, or a container's runtime forbids it, nothing is opened in another way.
func TestKernelWithoutOpenat2(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM} {
		self, err := os.Executable()
		must(t, err)
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", oldKernel, int(errno)))
		out, err := cmd.CombinedOutput()
		must(t, err)
		for _, want := range []string{"true true files in the workspace /", "openat2", errno.Error(), "Use Linux 5.6 or later"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%v: %q does not say %q", errno, out, want)
			}
		}
	}
}
