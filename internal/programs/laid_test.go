package programs

import (
	"os"
	"testing"
)

// To ask whether the programs are there makes nothing.
func TestLaidOut(t *testing.T) {
	home := t.TempDir()
	embed(t, all("guest", "other"))
	if LaidOut(home) {
		t.Error("they are there before they are laid out")
	}
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
	set, err := layOut(home)
	if err != nil {
		t.Fatal(err)
	}
	if !LaidOut(home) {
		t.Error("they are not there after they were laid out")
	}
	if err := os.Remove(set.Keeper); err != nil {
		t.Fatal(err)
	}
	if LaidOut(home) {
		t.Error("one is missing")
	}
}
