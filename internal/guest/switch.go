package guest

import (
	"fmt"
	"os"
)

// Switch stands in for sudo and su.
func Switch(name string, args []string) int {
	fmt.Fprintln(os.Stderr, name, args)
	return 1
}
