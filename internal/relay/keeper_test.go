package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"ravi/internal/guestapi"
	"ravi/internal/guestapi/process"
	"ravi/internal/keeper"
	"ravi/internal/link"
	"ravi/internal/programs"
)

// The tests of this file run the real ravi-keeper, with this test program as
// the maker of a sandbox whose guest is hostile.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[0] == "hostile-guest" {
		if err := hostileGuest(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// parts are the programs as ravi lays them out.
func parts(t *testing.T) programs.Set {
	t.Helper()
	if os.Getenv(programs.EnvProgram) == "" {
		built, err := filepath.Abs("../../bin/ravi")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(built); err != nil {
			t.Fatal("there is no bin/ravi: run `make build`")
		}
		t.Setenv(programs.EnvProgram, built)
	}
	set, err := programs.Find(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// hostileGuest is a maker that is the sandbox as well.
func hostileGuest(mode string) error {
	conn, err := link.OpenEnd(4, 5)
	if err != nil {
		return err
	}
	sup := os.NewFile(3, "supervisor")
	if mode == "silent maker" {
		return nil
	}
	if err := json.NewEncoder(sup).Encode(keeper.MakerReply{}); err != nil {
		return err
	}
	sup.Close()
	if flood, ok := strings.CutPrefix(mode, floodPrefix); ok {
		return floodingGuest(conn, flood)
	}
	f := greet(conn)
	if f == nil {
		return fmt.Errorf("no preface")
	}
	switch mode {
	case "garbage":
		_, err = conn.Write([]byte(strings.Repeat("garbage ", 1000)))
		linger(conn)
	case "quiet":
		swallow(conn)
	case "end":
		return nil
	case "large answer":
		// A whole answer with a header list beyond the bound, to every call.
		for {
			stream := firstRequest(f)
			if stream == 0 {
				break
			}
			b := headers(":status", "200", "x-large", strings.Repeat("v", 4<<20))
			f.AllowIllegalWrites = true
			err = f.WriteRawFrame(1, 0, stream, b[:250_000])
			for b = b[250_000:]; err == nil && len(b) > 250_000; b = b[250_000:] {
				err = f.WriteRawFrame(9, 0, stream, b[:250_000])
			}
			if err == nil {
				err = f.WriteRawFrame(9, 4, stream, b)
			}
			if err != nil {
				break
			}
		}
		linger(conn)
	}
	return err
}

// linger stays when the link has ended: the sandbox does not end by itself.
func linger(conn net.Conn) {
	swallow(conn)
	time.Sleep(time.Hour)
}

func hold(t *testing.T, mode string) (*keeper.Handle, keeper.Plan) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: only root gives the relay an identity of its own")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "sandbox")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	set := parts(t)
	plan := keeper.Plan{
		ID: "sbxkeepertest", Dir: dir, Maker: exe, MakerArgs: []string{"hostile-guest", mode}, Stays: true, Relay: set.Relay,
		Request: json.RawMessage(`{}`), RelayUID: 1_899_999_999, RelayGID: 1_899_999_999,
	}
	h, err := keeper.Start(set.Keeper, plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Errorf("closing: %v", err)
		}
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("left: %v", err)
		}
	})
	return h, plan
}

func TestKeeperEndsAHostileSandbox(t *testing.T) {
	for mode, reasons := range map[string][]string{
		"garbage": {keeper.ReasonViolation}, "end": {keeper.ReasonDied},
		"large answer": {keeper.ReasonViolation, keeper.ReasonRelay}, "silent maker": {keeper.ReasonFailed, keeper.ReasonDied},
	} {
		t.Run(mode, func(t *testing.T) {
			h, plan := hold(t, mode)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			_, readyErr := h.Ready(ctx)
			if mode == "silent maker" && readyErr == nil {
				t.Error("a sandbox that was not made is ready")
			}
			c := guestapi.NewClient(guestapi.NewHTTPClient(h.Dial), "http://guest")
			for range 20 {
				if _, err := c.Process.List(ctx, connect.NewRequest(&process.ListRequest{})); err == nil {
					t.Fatal("the owner took it for an answer")
				} else if len(err.Error()) > 5000 {
					t.Errorf("the owner's error has %d bytes", len(err.Error()))
				}
				select {
				case <-h.Ended():
				case <-time.After(50 * time.Millisecond):
					continue
				}
				break
			}
			if mode == "large answer" {
				// To refuse each call is as good as to end it.
				select {
				case <-h.Ended():
				default:
					return
				}
			}
			within(t, h.Ended())
			end := h.End()
			ok := false
			for _, r := range reasons {
				ok = ok || end.Reason == r
			}
			if !ok {
				t.Errorf("it ended for %q (%s), want one of %v", end.Reason, end.Error, reasons)
			}
			if _, err := os.Stat(plan.Dir); !os.IsNotExist(err) {
				t.Errorf("left: %v", err)
			}
		})
	}
}

// The relay has nothing that a guest which took it over could use.
func TestRelayIsConfined(t *testing.T) {
	h, _ := hold(t, "quiet")
	if _, err := h.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	var relayPID string
	var all []string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var err error
		if all, err = filepath.Glob("/proc/[0-9]*/status"); err != nil {
			t.Fatal(err)
		}
		// It is listed before it is what it is to be, of which the filter is the last, and a listing can miss who comes meanwhile.
		if slices.ContainsFunc(all, func(p string) bool {
			b, err := os.ReadFile(p)
			return err == nil && strings.Contains(string(b), "\nPPid:\t"+strconv.Itoa(h.PID())+"\n") && strings.Contains(string(b), "\t1899999999\t") &&
				strings.Contains(string(b), "\nSeccomp:\t2\n")
		}) || time.Now().After(deadline) {
			break
		}
	}
	for _, p := range all {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), "\nPPid:\t"+strconv.Itoa(h.PID())+"\n") && strings.Contains(string(b), "\t1899999999\t") {
			relayPID = filepath.Base(filepath.Dir(p))
			for _, want := range []string{
				"\nUid:\t1899999999\t1899999999\t1899999999\t1899999999\n", "\nGid:\t1899999999\t1899999999\t1899999999\t1899999999\n",
				"\nCapPrm:\t0000000000000000\n", "\nCapEff:\t0000000000000000\n", "\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n",
			} {
				if !strings.Contains(string(b), want) {
					t.Errorf("its status does not say %q:\n%s", want, b)
				}
			}
			if !strings.Contains(string(b), "\nGroups:\t \n") && !strings.Contains(string(b), "\nGroups:\t\n") {
				t.Errorf("it has groups:\n%s", b)
			}
		}
	}
	if relayPID == "" {
		t.Fatal("this test does not find the relay")
	}
	if list, err := os.ReadDir("/proc/" + relayPID + "/root"); err != nil || len(list) > 0 {
		t.Errorf("its root holds %v %v", list, err)
	}
	limits, err := os.ReadFile("/proc/" + relayPID + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("Max data size             %d", relayMemory); !strings.Contains(string(limits), want) {
		t.Errorf("no %q in\n%s", want, limits)
	}
	res, err := guestapi.NewHTTPClient(h.Dial).Get("http://guest/no/such/address")
	if err != nil || res.StatusCode != http.StatusNotFound {
		t.Errorf("an address that is none of the guest's: %v %v", res, err)
	}
	if err == nil {
		res.Body.Close()
	}
}
