package names

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestEachNameHasAnAddressOfItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asked := rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,3}\.test`), 1, 200).Draw(t, "names")
		table := New([]byte("seed"))
		first := map[string]netip.Addr{}
		owner := map[netip.Addr]string{}
		for _, name := range asked {
			a, err := table.Addr(name)
			if err != nil || !Range.Contains(a) {
				t.Fatalf("%s: %v %v", name, a, err)
			}
			if old, seen := first[name]; seen && old != a {
				t.Fatalf("%s was %v and is %v", name, old, a)
			}
			if other, taken := owner[a]; taken && other != name {
				t.Fatalf("%v stands for %s and %s", a, other, name)
			}
			first[name], owner[a] = a, name
			if back, ok := table.Name(a); !ok || back != name {
				t.Fatalf("%v stands for %q", a, back)
			}
		}
	})
}

// A full table, in which hundreds of names would have the same address by chance.
func TestNoTwoNamesShareAnAddress(t *testing.T) {
	table := New([]byte("seed"))
	owner := map[netip.Addr]string{}
	for n := range most {
		name := fmt.Sprintf("n%d.test", n)
		a, err := table.Addr(name)
		if err != nil {
			t.Fatal(err)
		}
		if other, taken := owner[a]; taken {
			t.Fatalf("%v stands for %s and %s", a, other, name)
		}
		owner[a] = name
	}
	for a, name := range owner {
		if back, ok := table.Name(a); !ok || back != name {
			t.Errorf("%v stands for %q, and was given to %s", a, back, name)
		}
	}
}

func TestAddressesOutliveATable(t *testing.T) {
	a, err := New([]byte("one sandbox")).Addr("example.test")
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := New([]byte("one sandbox")).Addr("example.test"); a != b {
		t.Errorf("%v, and then %v", a, b)
	}
	if b, _ := New([]byte("another")).Addr("example.test"); a == b {
		t.Errorf("two sandboxes have %v", a)
	}
}

func TestNamesAreCapped(t *testing.T) {
	table := New(nil)
	var err error
	n := 0
	for ; err == nil && n < 100_000; n++ {
		_, err = table.Addr(fmt.Sprintf("n%d.test", n))
	}
	if !errors.Is(err, ErrFull) || n != most+1 {
		t.Errorf("%v after %d", err, n)
	}
	if _, err := table.Addr("n0.test"); err != nil {
		t.Errorf("a name that is known: %v", err)
	}
	if _, ok := table.Name(netip.MustParseAddr("198.18.0.0")); ok {
		t.Error("an address that was never given out has a name")
	}
}
