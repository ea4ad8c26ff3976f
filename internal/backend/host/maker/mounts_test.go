package maker

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const info = `26 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 26 254:0 /home/u /srv/alias rw - ext4 /dev/vda rw
41 26 254:0 /home/u/.ravi/secrets /srv/a\040part rw - ext4 /dev/vda rw
42 26 254:0 /var /srv/other rw - ext4 /dev/vda rw
43 26 0:50 / /home/u/.ravi/sandboxes rw shared:1 - tmpfs t rw
44 26 0:50 /one /srv/one rw - tmpfs t rw
45 26 0:20 / /proc rw - proc proc rw
46 26 0:20 / /srv/chroot/proc rw - proc proc rw
47 26 0:6 / /srv/chroot/dev rw - devtmpfs devtmpfs rw
short line
`

func TestPlaces(t *testing.T) {
	all := parseMounts(info)
	if len(all) != 9 {
		t.Fatalf("%d mounts: %v", len(all), all)
	}
	for _, c := range []struct {
		dir  string
		deep bool
		want []place
	}{
		{"/home/u/.ravi", false, []place{
			{"/home/u/.ravi", "/home/u/.ravi"}, {"/srv/alias/.ravi", "/home/u/.ravi"}, {"/srv/a part", "/home/u/.ravi/secrets"},
		}},
		{"/home/u/.ravi", true, []place{
			{"/home/u/.ravi", "/home/u/.ravi"}, {"/srv/alias/.ravi", "/home/u/.ravi"}, {"/srv/a part", "/home/u/.ravi/secrets"},
			{"/srv/one", "/home/u/.ravi/sandboxes/one"},
		}},
		{"/srv/alias/.ravi", false, []place{
			{"/srv/alias/.ravi", "/srv/alias/.ravi"}, {"/home/u/.ravi", "/srv/alias/.ravi"}, {"/srv/a part", "/srv/alias/.ravi/secrets"},
		}},
		{"/home/u/.ravi/sandboxes/two", true, []place{{"/home/u/.ravi/sandboxes/two", "/home/u/.ravi/sandboxes/two"}}},
	} {
		if d := cmp.Diff(c.want, places(all, c.dir, c.deep), cmp.AllowUnexported(place{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.dir, d)
		}
	}
}

func TestOtherInstancesAreCovered(t *testing.T) {
	got, err := coverings(parseMounts(info), nil, nil, nil)
	if want := []string{"/srv/chroot/dev", "/srv/chroot/proc"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v %v, want %v", got, err, want)
	}
}
