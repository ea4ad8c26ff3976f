// Command nats makes the keys that a stock nats-server needs to serve Ravi, where there is no tool such as nsc at hand:
//
//	go run ./deploy/nats DIR [RUNNER…]
//
// writes into the new folder DIR what server.conf beside this file includes (accounts.conf: an operator, its system account,
// and the account RAVI), a user of that account for Ravi (ravi.creds), the key by which Ravi makes further ones (ravi.nk), what
// servers of other sites join this one with (account.conf, site.creds), and one user for each runner that is named.
//
// It writes below DIR only, for nobody else to read, and replaces nothing. The operator's key is not kept: what changes the
// accounts is to run it again, into another folder.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./deploy/nats DIR [RUNNER…]")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// key is a key pair and its public part.
type key struct {
	pair   nkeys.KeyPair
	public string
}

func newKey(make func() (nkeys.KeyPair, error)) (k key, err error) {
	if k.pair, err = make(); err == nil {
		k.public, err = k.pair.PublicKey()
	}
	return k, err
}

func write(dir string, runners []string) error {
	for _, name := range runners {
		if !nameForm.MatchString(name) || name == "ravi" || name == "site" {
			return fmt.Errorf("%q is not a name for a runner", name)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	operator, err := newKey(nkeys.CreateOperator)
	system, err1 := newKey(nkeys.CreateAccount)
	account, err2 := newKey(nkeys.CreateAccount)
	signing, err3 := newKey(nkeys.CreateAccount)
	if err := errors.Join(err, err1, err2, err3); err != nil {
		return err
	}
	conf, err := accounts(operator, system, account, signing)
	if err != nil {
		return err
	}
	seed, err := signing.pair.Seed()
	if err != nil {
		return err
	}
	files := map[string]string{"accounts.conf": conf, "account.conf": "account: " + account.public + "\n", "ravi.nk": string(seed) + "\n"}
	if files["ravi.creds"], err = user(account, signing, "ravi", nil, nil); err != nil {
		return err
	}
	for _, name := range append([]string{"site"}, runners...) {
		// What ravi bus creds issue --runner lets a runner do; a site may have any.
		may := name
		if name == "site" {
			may = "*"
		}
		files[name+".creds"], err = user(account, signing, name,
			[]string{"runner." + may + ".status", "tunnel." + may + ".*.*.up"}, []string{"tunnel." + may + ".*.*.down"})
		if err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// accounts is the part of a server's configuration that says who there is (https://docs.nats.io/running-a-nats-service/configuration/securing_nats/jwt/resolver).
func accounts(operator, system, account, signing key) (string, error) {
	o := jwt.NewOperatorClaims(operator.public)
	o.Name, o.SystemAccount = "OPERATOR", system.public
	s := jwt.NewAccountClaims(system.public)
	s.Name = "SYS"
	a := jwt.NewAccountClaims(account.public)
	a.Name = "RAVI"
	a.SigningKeys.Add(signing.public)
	a.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	operatorText, err := o.Encode(operator.pair)
	systemText, err1 := s.Encode(operator.pair)
	accountText, err2 := a.Encode(operator.pair)
	return fmt.Sprintf("operator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n  %s: %s\n  %s: %s\n}\n",
		operatorText, system.public, system.public, systemText, account.public, accountText), errors.Join(err, err1, err2)
}

// user is a .creds file of a new user; without lists it may do everything in the account.
func user(account, signing key, name string, publish, subscribe []string) (string, error) {
	u, err := newKey(nkeys.CreateUser)
	if err != nil {
		return "", err
	}
	c := jwt.NewUserClaims(u.public)
	c.Name, c.IssuerAccount = name, account.public
	if publish != nil {
		c.Pub.Allow.Add(publish...)
		c.Sub.Allow.Add(append(subscribe, "_INBOX_"+u.public+".>")...)
	}
	text, err := c.Encode(signing.pair)
	if err != nil {
		return "", err
	}
	seed, err := u.pair.Seed()
	if err != nil {
		return "", err
	}
	file, err := jwt.FormatUserConfig(text, seed)
	return string(file), err
}
