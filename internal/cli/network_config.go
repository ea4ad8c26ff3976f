package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"ravi/internal/command"
	"ravi/internal/config"
	"ravi/internal/network"
	"ravi/internal/network/dial"
	"ravi/internal/network/policy"
	"ravi/internal/strictjson"
	"ravi/sandbox"
)

// networkBlock is the block network of config.json: what the operator decided for every sandbox, and lists of rules
// that have a name; and what lies between this machine and what sandboxes reach.
type networkBlock struct {
	AlwaysDeny    denials        `json:"always_deny"`
	AlwaysAllow   allowances     `json:"always_allow"`
	Max           *policy.Policy `json:"max"`
	Lists         namedLists     `json:"lists"`
	Proxy         proxyURL       `json:"proxy"`
	ProxyAuthFile hostPath       `json:"proxy_auth_file"`
	ProxyDirect   directs        `json:"proxy_direct"`
	ProxyByName   bool           `json:"proxy_by_name"`
	ExtraCAs      caFiles        `json:"extra_cas"`
}

// networkOf reads the block network; without one, nothing is decided.
func networkOf(file *config.Config) (b networkBlock, err error) {
	if err := file.Network(&b); err != nil || b.Proxy != "" {
		return b, err
	}
	for key, set := range map[string]bool{
		"proxy_auth_file": b.ProxyAuthFile != "", "proxy_direct": len(b.ProxyDirect) > 0, "proxy_by_name": b.ProxyByName,
	} {
		if set {
			return b, fmt.Errorf("network.%s of config.json is about a proxy, and there is no network.proxy", key)
		}
	}
	return b, nil
}

// floor is what holds for every sandbox.
func (b networkBlock) floor() policy.Floor {
	return policy.Floor{AlwaysDeny: b.AlwaysDeny, AlwaysAllow: b.AlwaysAllow, Max: b.Max}
}

// proxy is what connections leave through; nil: nothing.
func (b networkBlock) proxy() *sandbox.NetworkProxy {
	if b.Proxy == "" {
		return nil
	}
	p := &sandbox.NetworkProxy{URL: string(b.Proxy), AuthFile: string(b.ProxyAuthFile), ByName: b.ProxyByName}
	for _, r := range b.ProxyDirect {
		p.Direct = append(p.Direct, r.String())
	}
	return p
}

// maxCAFile bounds a file of certificates, in bytes.
const maxCAFile = 1 << 20

// extraCAs reads the files of certificates, by host.
func (b networkBlock) extraCAs() (map[string]string, error) {
	out := map[string]string{}
	for host, path := range b.ExtraCAs {
		text, err := readCAFile(string(path))
		if err == nil {
			_, err = network.ExtraCAs(map[string]string{host: text})
		}
		if err != nil {
			return nil, &command.Error{
				Code: command.CodeConfig, Message: fmt.Sprintf("network.extra_cas of config.json: %s: %v", path, err),
				Hint: "name a file with the certificates (PEM) of whoever signs for " + host, Err: err,
			}
		}
		out[host] = text
	}
	return out, nil
}

func readCAFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", errors.Unwrap(err) // the path is told by the caller
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCAFile+1))
	if err == nil && len(text) > maxCAFile {
		err = fmt.Errorf("it has more than %d bytes", maxCAFile)
	}
	return string(text), err
}

// list expands a named list.
func (b networkBlock) list(name string) ([]policy.Rule, error) {
	if rules, ok := b.Lists[name]; ok {
		return rules, nil
	}
	names := slices.Sorted(maps.Keys(b.Lists))
	text := "there is no list " + strconv.Quote(name) + " in network.lists of config.json"
	if near := strictjson.Nearest(name, names); near != "" {
		text += "; did you mean @" + near + "?"
	} else if len(names) > 0 {
		text += fmt.Sprintf("; there are %q", names)
	}
	return nil, errors.New(text)
}

// These check what they hold when it is read, so that an error points into the file.
type (
	denials    []policy.Rule
	allowances []policy.Rule
	namedLists map[string]allowances
	proxyURL   string
	hostPath   string // absolute
	directs    []policy.Rule
	caFiles    map[string]hostPath // by host
)

func (p *proxyURL) UnmarshalJSON(data []byte) error {
	var text string
	if err := strictjson.Decode(data, &text); err != nil {
		return err
	}
	if err := (dial.Proxy{URL: text}).Validate(); err != nil {
		return err
	}
	*p = proxyURL(text)
	return nil
}

func (p *hostPath) UnmarshalJSON(data []byte) error {
	var text string
	if err := strictjson.Decode(data, &text); err != nil {
		return err
	}
	if !filepath.IsAbs(text) {
		return fmt.Errorf("%s is not an absolute path", strconv.QuoteToASCII(text))
	}
	*p = hostPath(text)
	return nil
}

func (d *directs) UnmarshalJSON(data []byte) error {
	var rules []policy.Rule
	if err := strictjson.Decode(data, &rules); err != nil {
		return err
	}
	if err := policy.Places(rules).Validate(); err != nil {
		return err
	}
	*d = rules
	return nil
}

func (c *caFiles) UnmarshalJSON(data []byte) error {
	var files map[string]hostPath
	if err := strictjson.Decode(data, &files); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(files)) {
		host, err := network.AuthorityHost(key)
		if err != nil {
			return err
		}
		if seen[host] {
			return fmt.Errorf("the host %s is given twice", host)
		}
		seen[host] = true
	}
	*c = files
	return nil
}

func (d *denials) UnmarshalJSON(data []byte) error {
	var rules []policy.Rule
	if err := strictjson.Decode(data, &rules); err != nil {
		return err
	}
	if err := (policy.Floor{AlwaysDeny: rules}).Validate(); err != nil {
		return errors.Unwrap(err) // the key is told by the place
	}
	*d = rules
	return nil
}

func (a *allowances) UnmarshalJSON(data []byte) error {
	var rules []policy.Rule
	if err := strictjson.Decode(data, &rules); err != nil {
		return err
	}
	if len(rules) > 0 {
		if _, err := policy.FromRules(rules); err != nil {
			return err
		}
	}
	*a = rules
	return nil
}

// listForm is a name that can stand in --allow-net @NAME,….
var listForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func (l *namedLists) UnmarshalJSON(data []byte) error {
	var lists map[string]allowances
	if err := strictjson.Decode(data, &lists); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		switch {
		case !listForm.MatchString(name):
			return fmt.Errorf("%s is no name for a list: letters, digits, -, _ and . only", strconv.QuoteToASCII(name))
		case len(lists[name]) == 0:
			return fmt.Errorf("the list %s is empty: fill it, or leave it out", name)
		}
	}
	*l = lists
	return nil
}
