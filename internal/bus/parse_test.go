package bus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
)

func runnerCredential(t testing.TB) Credential {
	t.Helper()
	pair, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	curve, err := newSeed(nkeys.PrefixByteCurve)
	if err != nil {
		t.Fatal(err)
	}
	c, err := (&signer{pair: pair, curve: curve, now: time.Now}).issue(Request{Kind: KindRunner, Name: "far", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParseCredentialRefuses(t *testing.T) {
	one, two := runnerCredential(t), runnerCredential(t)
	good := string(one.File())
	if _, err := ParseCredential([]byte(good)); err != nil {
		t.Fatal(err)
	}
	if _, err := ParseCredential([]byte(strings.ReplaceAll(good, "\n", "\r\n"))); err != nil {
		t.Error("line ends of Windows:", err)
	}
	curve := one.XSeed.Reveal()
	for name, text := range map[string]string{
		"nothing":                 "",
		"text":                    "hello",
		"only the user":           good[:strings.Index(good, "-----BEGIN "+blockSeed)],
		"the key of another":      strings.Replace(good, one.Seed.Reveal(), two.Seed.Reveal(), 1),
		"the curve key as key":    strings.Replace(good, one.Seed.Reveal(), curve, 1),
		"the key as curve key":    strings.Replace(good, curve, one.Seed.Reveal(), 1),
		"the user's key as peer":  strings.Replace(good, one.Peer, one.User, 1),
		"another sign in the key": strings.Replace(good, curve, curve[:len(curve)-1]+"!", 1),
		"two users":               good + good,
		"no end":                  strings.TrimSuffix(strings.TrimSpace(good), "------END "+blockPeer+"------"),
		"another end":             strings.Replace(good, "END "+blockPeer, "END "+blockJWT, 1),
		"too much":                good + strings.Repeat(" ", maxFile),
	} {
		_, err := ParseCredential([]byte(text))
		if !errors.Is(err, ErrCredential) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range []string{one.Seed.Reveal(), curve, two.Seed.Reveal(), one.JWT} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error repeats it: %v", name, err)
			}
		}
	}
}

func FuzzParseCredential(f *testing.F) {
	c := runnerCredential(f)
	f.Add(c.File())
	c.XSeed, c.Peer = (Credential{}).XSeed, ""
	f.Add(c.File())
	f.Add([]byte("-----BEGIN NATS USER JWT-----\n"))
	f.Add([]byte("---BEGIN a---\nb\n---END a---\n---BEGIN a---"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCredential(data)
		if err != nil {
			if !errors.Is(err, ErrCredential) {
				t.Fatal(err)
			}
			return
		}
		again, err := ParseCredential(c.File())
		if err != nil || again.User != c.User || again.Seed.Reveal() != c.Seed.Reveal() || again.XPublic != c.XPublic || again.Peer != c.Peer {
			t.Fatal(again, err)
		}
	})
}

func TestReadFileOfOthers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.creds")
	c := runnerCredential(t)
	if err := c.WriteFile(path); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteFile(path); !errors.Is(err, os.ErrExist) {
		t.Error("a file is written over:", err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFile(path); !errors.Is(err, ErrCredential) || !strings.Contains(err.Error(), fmt.Sprintf("%04o", mode)) {
			t.Errorf("%o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadFile(path); err != nil {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 12345, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFile(path); !errors.Is(err, ErrCredential) || !strings.Contains(err.Error(), "12345") {
			t.Error(err)
		}
	}
	for _, name := range []string{dir, filepath.Join(dir, "none")} {
		if _, err := ReadFile(name); !errors.Is(err, ErrCredential) {
			t.Error(name, err)
		}
	}
}

func TestRenewedIsOfTheSameUser(t *testing.T) {
	one, two := runnerCredential(t), runnerCredential(t)
	if _, err := one.Renewed(two); !errors.Is(err, ErrCredential) {
		t.Error(err)
	}
	if _, err := (Credential{Name: "g"}).Curve(); !errors.Is(err, ErrCredential) {
		t.Error(err)
	}
	pair, err := one.Curve()
	if err != nil {
		t.Fatal(err)
	}
	if public, err := pair.PublicKey(); err != nil || public != one.XPublic {
		t.Error(public, err)
	}
}

func goodDocument(t testing.TB) document {
	t.Helper()
	var d document
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	seed, err := newSeed(nkeys.PrefixByteAccount)
	if err != nil {
		t.Fatal(err)
	}
	d.Clients["acme"] = &account{Seed: seed, Revoked: map[string]int64{"U": 1}}
	return d
}

func TestKeysThatAreNotAsTheyShouldBe(t *testing.T) {
	for name, change := range map[string]func(*document){
		"as it should be":       nil,
		"a newer format":        func(d *document) { d.Version = 2 },
		"no format":             func(d *document) { d.Version = 0 },
		"no control":            func(d *document) { d.Control = nil },
		"no operator":           func(d *document) { d.Operator = "" },
		"an account's operator": func(d *document) { d.Operator = d.System },
		"a user's account":      func(d *document) { d.Clients["acme"].Seed = d.Curve },
		"two of one key":        func(d *document) { d.Clients["other"] = d.Clients["acme"] },
		"the control's key":     func(d *document) { d.Clients["acme"].Seed = d.Control.Seed },
		"a client named so":     func(d *document) { d.Clients["CONTROL"] = d.Clients["acme"]; delete(d.Clients, "acme") },
		"a client that is none": func(d *document) { d.Clients["acme"] = nil },
		"a hub without a key":   func(d *document) { d.Hub = &account{} },
	} {
		d := goodDocument(t)
		if change != nil {
			change(&d)
		}
		data, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var got document
		if err := got.decode(data); (err == nil) != (change == nil) {
			t.Errorf("%s: %v", name, err)
		} else if err != nil && (strings.Contains(err.Error(), d.Curve) || strings.Contains(err.Error(), "SA")) {
			t.Errorf("%s: the error repeats a key: %v", name, err)
		}
	}
}

func TestKeysAreNotMadeAnewWhenTheyCannotBeRead(t *testing.T) {
	o := options(t)
	s := start(t, o)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Dir, keysFile)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, before[:len(before)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	var told *Error
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrKeys) || !errors.As(err, &told) || told.Hint == "" {
		t.Error(err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, before[:len(before)-1]) {
		t.Error("it was written over", err)
	}
	if err := os.WriteFile(path, before, 0o600); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(o.Home, "secrets.key")
	if err := os.Rename(key, key+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), o); !errors.Is(err, ErrKeys) {
		t.Error(err)
	}
}
