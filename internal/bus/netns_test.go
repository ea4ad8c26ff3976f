package bus

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The network between this host and the one that the test makes.
const hereAddr, thereAddr, elsewhereNet = "198.18.77.1", "198.18.77.2", "198.18.78.0/24"

// otherHost makes a network namespace with a cable to this one, and gives its name.
func otherHost(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes hosts")
	}
	name := fmt.Sprintf("ravibus%d", os.Getpid())
	here := fmt.Sprintf("rvb%d", os.Getpid())
	ip := func(args ...string) error {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := ip("netns", "add", name); err != nil {
		t.Skip("no network namespaces here: ", err)
	}
	t.Cleanup(func() {
		// The kernel takes what is in a namespace away some time after it: the next test's cable has the same name.
		if err := errors.Join(ip("link", "del", here), ip("netns", "del", name)); err != nil {
			t.Error(err)
		}
	})
	for _, args := range [][]string{
		{"link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", name},
		{"addr", "add", hereAddr + "/30", "dev", here},
		{"link", "set", here, "up"},
		{"-n", name, "addr", "add", thereAddr + "/30", "dev", "eth0"},
		{"-n", name, "link", "set", "eth0", "up"},
	} {
		if err := ip(args...); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// TestMainOfOtherHost is what the other host does: it dials, and says what came of it.
func TestMainOfOtherHost(t *testing.T) {
	url := os.Getenv("RAVI_TEST_BUS_URL")
	if url == "" {
		t.Skip("this is for the other host")
	}
	c, err := ReadFile(os.Getenv("RAVI_TEST_BUS_CREDS"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := tryDial(t, url, c, WithTrust(Trust{CA: os.Getenv("RAVI_TEST_BUS_CA")}))
	switch {
	case err == nil:
		nc.Close()
		fmt.Println("ANSWER taken")
	case errors.Is(err, ErrRefused):
		fmt.Println("ANSWER refused")
	case errors.Is(err, ErrTLS):
		fmt.Println("ANSWER no certificate")
	default:
		fmt.Println("ANSWER", err)
	}
}

func TestFromAnotherHost(t *testing.T) {
	host := otherHost(t)
	prefix := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	for _, c := range []struct {
		name  string
		allow []netip.Prefix // of the bus
		from  []netip.Prefix // of the credential
		want  string
	}{
		{"a credential is enough", nil, nil, "taken"},
		{"a credential used from where it may be", nil, prefix(thereAddr + "/32"), "taken"},
		{"a stolen credential", nil, prefix(elsewhereNet), "refused"},
		{"an address that the bus allows", prefix(thereAddr + "/32"), nil, "taken"},
		{"an address that the bus does not allow", prefix(elsewhereNet), nil, "no certificate"},
	} {
		o := options(t)
		made, err := makeTLS(t, o, []string{hereAddr})
		if err != nil {
			t.Fatal(err)
		}
		o.Host, o.TLS, o.AllowFrom = "0.0.0.0", &made, c.allow
		s := start(t, o)
		creds := filepath.Join(t.TempDir(), "far.creds")
		if err := issue(t, s, Request{Kind: KindRunner, Name: "far", From: c.from}).WriteFile(creds); err != nil {
			t.Fatal(err)
		}
		child := exec.Command("ip", "netns", "exec", host, "/proc/self/exe", "-test.run", "^TestMainOfOtherHost$", "-test.v")
		if child.Args[4], err = os.Executable(); err != nil {
			t.Fatal(err)
		}
		child.Env = append(os.Environ(), fmt.Sprintf("RAVI_TEST_BUS_URL=tls://%s:%d", hereAddr, s.Addrs()[0].Port()), "RAVI_TEST_BUS_CREDS="+creds, "RAVI_TEST_BUS_CA="+made.CA)
		out, err := child.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "ANSWER "+c.want+"\n") {
			t.Errorf("%s: %v\n%s", c.name, err, out)
		}
		// This machine itself is let in, whatever is allowed.
		if c.from == nil {
			dial(t, s, issue(t, s, Request{Kind: KindRunner, Name: "near"}))
		}
	}
}
