package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// program is the ravi that was built.
func program(t *testing.T) string {
	t.Helper()
	p := os.Getenv("RAVI_PROGRAM")
	if p == "" {
		p = "../../bin/ravi"
	}
	p, err := filepath.Abs(p)
	if err == nil {
		_, err = os.Stat(p)
	}
	if err != nil {
		t.Skipf("there is no ravi to test (%v): run make build", err)
	}
	return p
}

func need(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skip("make deps installs it: ", err)
	}
	return path
}

// ravi runs the program in a home.
func ravi(t *testing.T, home string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program(t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(home), "RAVI_HOME=" + home, "RAVI_BUS_PORT=0"}
	out, err := cmd.Output()
	if err != nil {
		told := ""
		if exit, ok := err.(*exec.ExitError); ok {
			told = string(exit.Stderr)
		}
		t.Fatalf("ravi %s: %v\n%s%s", strings.Join(args, " "), err, out, told)
	}
	return string(out)
}

// until tries until it works.
func until(t *testing.T, what string, try func() error) {
	t.Helper()
	end := time.Now().Add(4 * time.Minute)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// repo is a repository with one commit.
func repo(t *testing.T, dir string) string {
	t.Helper()
	write(t, filepath.Join(dir, "README.md"), "hello\n")
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "first"}} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
	}
	return dir
}

// replace puts what a test has in place of what a machine has. Each must be there.
func replace(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("%q is not in\n%s", pairs[i], text)
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
