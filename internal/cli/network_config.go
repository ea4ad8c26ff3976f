package cli

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"ravi/internal/config"
	"ravi/internal/network/policy"
	"ravi/internal/strictjson"
)

// networkBlock is the block network of config.json: what the operator decided for every sandbox, and lists of rules
// that have a name.
type networkBlock struct {
	AlwaysDeny  denials        `json:"always_deny"`
	AlwaysAllow allowances     `json:"always_allow"`
	Max         *policy.Policy `json:"max"`
	Lists       namedLists     `json:"lists"`
}

// networkOf reads the block network; without one, nothing is decided.
func networkOf(file *config.Config) (b networkBlock, err error) { return b, file.Network(&b) }

// floor is what holds for every sandbox.
func (b networkBlock) floor() policy.Floor {
	return policy.Floor{AlwaysDeny: b.AlwaysDeny, AlwaysAllow: b.AlwaysAllow, Max: b.Max}
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

// denials, allowances and namedLists check what they hold when it is read, so that an error points into the file.
type (
	denials    []policy.Rule
	allowances []policy.Rule
	namedLists map[string]allowances
)

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
