package gvisor

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

func TestNoTwoHaveOneSlot(t *testing.T) {
	dir := t.TempDir()
	const n = 4
	var held []*os.File
	seen := map[uint32]bool{}
	for i := range n {
		slot, f, err := claim(dir, fmt.Sprint("sbx", i), n)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if seen[slot] || slot >= n {
			t.Errorf("slot %d is given out twice, or is none", slot)
		}
		seen[slot] = true
		held = append(held, f)
	}
	if _, _, err := claim(dir, "one too many", n); !errors.Is(err, errNoSlot) {
		t.Errorf("got %v", err)
	}
	held[2].Close()
	slot, f, err := claim(dir, "the next", n)
	if err != nil || !seen[slot] {
		t.Fatalf("after one has ended: %d %v", slot, err)
	}
	f.Close()
}
