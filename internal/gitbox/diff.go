package gitbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// PathChange is one changed path of a patch.
type PathChange struct {
	Status     string `json:"status"` // A, M, D, T (type changed) or R
	Path       string `json:"path"`
	From       string `json:"from,omitempty"` // the old name, of a rename
	OldMode    string `json:"old_mode"`
	NewMode    string `json:"new_mode"`
	Insertions int    `json:"insertions"`
	Deletions  int    `json:"deletions"`
	Binary     bool   `json:"binary,omitempty"`

	oldID, newID string
}

var errDiff = errors.New("git's list of changes cannot be read")

// parseRaw reads `git diff-tree --raw -z`.
func parseRaw(out string) ([]PathChange, error) {
	f := splitNul(out)
	var list []PathChange
	for i := 0; i < len(f); {
		meta, ok := strings.CutPrefix(f[i], ":")
		m := strings.Fields(meta)
		if !ok || len(m) != 5 || i+1 >= len(f) {
			return nil, errDiff
		}
		c := PathChange{OldMode: m[0], NewMode: m[1], oldID: m[2], newID: m[3], Status: m[4][:1], Path: f[i+1]}
		i += 2
		if c.Status == "R" || c.Status == "C" {
			if i >= len(f) {
				return nil, errDiff
			}
			c.From, c.Path = c.Path, f[i]
			i++
		}
		list = append(list, c)
	}
	return list, nil
}

type numstat struct {
	ins, del int
	binary   bool
}

// parseNumstat reads `git diff-tree --numstat -z`, by new name.
func parseNumstat(out string) (map[string]numstat, error) {
	f := splitNul(out)
	stats := map[string]numstat{}
	for i := 0; i < len(f); i++ {
		m := strings.SplitN(f[i], "\t", 3)
		if len(m) != 3 {
			return nil, errDiff
		}
		var n numstat
		if m[0] == "-" && m[1] == "-" {
			n.binary = true
		} else {
			var err1, err2 error
			n.ins, err1 = strconv.Atoi(m[0])
			n.del, err2 = strconv.Atoi(m[1])
			if err1 != nil || err2 != nil || n.ins < 0 || n.del < 0 {
				return nil, errDiff
			}
		}
		name := m[2]
		if name == "" { // a rename: the old and the new name follow
			if i+2 >= len(f) {
				return nil, errDiff
			}
			name = f[i+2]
			i += 2
		}
		stats[name] = n
	}
	return stats, nil
}

// changes lists how two trees differ, path by path.
func (b box) changes(ctx context.Context, from, to string, args ...string) ([]PathChange, error) {
	out, err := b.output(ctx, nil, append(append([]string{"diff-tree", "-r", "-z", "--raw", "--full-index", "--no-abbrev"}, args...), from, to)...)
	if err != nil {
		return nil, err
	}
	list, err := parseRaw(out)
	if err != nil {
		return nil, fmt.Errorf("%s..%s: %w", from, to, err)
	}
	return list, nil
}
