package programs

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"path/filepath"
	"strings"
)

// LaidOut says whether this program's own programs are beneath home already, so that Find would write nothing. A program
// that has none of its own cannot tell.
func LaidOut(home string) bool {
	if embedded == nil {
		return false
	}
	list, err := fs.ReadFile(embedded, sums)
	if err != nil {
		return false
	}
	want := map[string]string{}
	for line := range strings.Lines(string(list)) {
		if f := strings.Fields(line); len(f) == 2 {
			want[f[1]] = f[0]
		}
	}
	sum := sha256.Sum256(list)
	return complete(filepath.Join(home, "lib", hex.EncodeToString(sum[:8])), want)
}
