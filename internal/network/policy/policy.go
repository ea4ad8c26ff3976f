package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"ravi/internal/strictjson"
)

// Policy is what a run asked to reach: nothing (the zero value), what its rules name, or the public internet.
type Policy struct {
	all   bool
	rules []Rule
}

// All is the policy `true`: the public internet, and nothing else.
func All() Policy { return Policy{all: true} }

// FromRules is the policy of a list of rules. Errors are ErrRule.
func FromRules(rules []Rule) (Policy, error) {
	if len(rules) == 0 {
		return Policy{}, fmt.Errorf("%w list: [] is ambiguous: use false for no network, or true for the public internet", ErrRule)
	}
	if len(rules) > maxRules {
		return Policy{}, fmt.Errorf("%w list: %d rules are more than %d", ErrRule, len(rules), maxRules)
	}
	for _, r := range rules {
		if err := r.allows(); err != nil {
			return Policy{}, refused(r.text, err)
		}
	}
	return Policy{rules: slices.Clone(rules)}, nil
}

// allows refuses what a rule may say in a list of denials only.
func (r Rule) allows() error {
	switch {
	case r.text == "":
		return errors.New("it is empty")
	case r.prefix.IsValid() && !r.prefix.IsSingleIP() && len(r.ports) == 0:
		return fmt.Errorf("a network needs a port: %s:443", r.text)
	}
	return nil
}

// Everything says that the policy is `true`.
func (p Policy) Everything() bool { return p.all }

// Rules are the rules in the order in which they are tried.
func (p Policy) Rules() []Rule { return slices.Clone(p.rules) }

// Parse reads allow_net: false, true, or a list of rules. Errors are ErrRule, quote the rule, and say where it stands.
func Parse(raw json.RawMessage) (Policy, error) {
	var p Policy
	if err := strictjson.Decode(raw, &p); err != nil {
		if errors.Is(err, ErrRule) {
			return Policy{}, err
		}
		return Policy{}, fmt.Errorf("%w list: %w", ErrRule, err)
	}
	return p, nil
}

// UnmarshalJSON reads what Parse reads.
func (p *Policy) UnmarshalJSON(data []byte) error {
	data = bytes.TrimSpace(data)
	switch {
	case bytes.Equal(data, []byte("false")):
		*p = Policy{}
		return nil
	case bytes.Equal(data, []byte("true")):
		*p = All()
		return nil
	case len(data) == 0 || data[0] != '[':
		return fmt.Errorf(`%w list: it is false (nothing), true (the public internet) or a list such as ["pypi.org"]`, ErrRule)
	}
	var rules []Rule
	if err := strictjson.Decode(data, &rules); err != nil {
		return err
	}
	parsed, err := FromRules(rules)
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}

// MarshalJSON writes what Parse reads.
func (p Policy) MarshalJSON() ([]byte, error) {
	if p.all || len(p.rules) == 0 {
		return json.Marshal(p.all)
	}
	return json.Marshal(p.rules)
}

// ParseFlag reads the values of --allow-net: none, all, or any number of HOST[:PORT] and @LIST, divided by commas or
// given in several values. lists expands a named list (the name without @); without it, a named list is refused.
func ParseFlag(values []string, lists func(name string) ([]Rule, error)) (Policy, error) {
	var rules []Rule
	var alone string
	items := 0
	for _, value := range values {
		for item := range strings.SplitSeq(value, ",") {
			item = strings.TrimSpace(item)
			items++
			list, named := strings.CutPrefix(item, "@")
			switch {
			case item == "":
				return Policy{}, fmt.Errorf("%w list %s: an entry between commas is empty", ErrRule, quote(value))
			case item == "none" || item == "all":
				alone = item
			case named:
				more, err := expand(list, lists)
				if err != nil {
					return Policy{}, err
				}
				rules = append(rules, more...)
			default:
				r, err := ParseRule(item)
				if err != nil {
					return Policy{}, err
				}
				rules = append(rules, r)
			}
		}
	}
	switch {
	case items == 0:
		return Policy{}, nil
	case alone != "" && items > 1:
		return Policy{}, fmt.Errorf("%w list: %s stands alone, not beside others (a host of that name is written %s.)", ErrRule, alone, alone)
	case alone != "":
		return Policy{all: alone == "all"}, nil
	}
	return FromRules(rules)
}

func expand(name string, lists func(string) ([]Rule, error)) ([]Rule, error) {
	if name == "" {
		return nil, refused("@", errors.New("the name of a list follows @, as in @build"))
	}
	if lists == nil {
		return nil, refused("@"+name, errors.New("there are no named lists here"))
	}
	rules, err := lists(name)
	if err != nil {
		return nil, refused("@"+name, err)
	}
	if len(rules) == 0 {
		return nil, refused("@"+name, errors.New("the list is empty: fill network.lists in config.json"))
	}
	return rules, nil
}
