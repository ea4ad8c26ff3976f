package runner

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"ravi/internal/backend"
	"ravi/internal/backend/remote"
	"ravi/internal/keeper"
	"ravi/internal/leaktest"
	"ravi/sandbox"
)

// fake makes sandboxes that are none.
type fake struct{ specs chan backend.Spec }

func (f fake) Name() string { return "gvisor" }

func (f fake) Create(_ context.Context, s backend.Spec) (backend.Instance, error) {
	f.specs <- s
	return &fakeInstance{ended: make(chan struct{})}, nil
}

// fakeInstance is one of them. What is dialled answers everything by itself.
type fakeInstance struct {
	backend.Instance
	ended chan struct{}
}

func (i *fakeInstance) Ready(context.Context) ([]string, error) { return []string{"a note"}, nil }
func (i *fakeInstance) Ended() <-chan struct{}                  { return i.ended }
func (i *fakeInstance) End() keeper.Reply                       { return keeper.Reply{Reason: keeper.ReasonClosed} }

func (i *fakeInstance) Close(context.Context) error {
	select {
	case <-i.ended:
	default:
		close(i.ended)
	}
	return nil
}

func (i *fakeInstance) Dial(context.Context) (net.Conn, error) {
	a, b := net.Pipe()
	go func() {
		defer b.Close()
		_, _ = io.Copy(b, b)
	}()
	return a, nil
}

// fakeRig is a runner whose sandboxes are fakes.
func fakeRig(t testing.TB, o Options) (*rig, fake) {
	t.Helper()
	f := fake{specs: make(chan backend.Spec, 100)}
	o.backend = f
	if o.available == nil {
		o.available = func() (int64, error) { return 1 << 40, nil }
	}
	return newRig(t, o), f
}

func goodSpec() *remote.Spec {
	return &remote.Spec{Version: remote.Version, ID: sandbox.NewID(), Image: "host", CPUs: 1, Memory: 512 << 20, Disk: 1 << 30, Processes: 100}
}

// begin opens a stream and says its first line.
func begin(t testing.TB, s remote.Session, head any) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := s.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := remote.WriteLine(c, head); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	return c, bufio.NewReader(c)
}

func reply(t testing.TB, in *bufio.Reader) (r remote.Reply) {
	t.Helper()
	if err := remote.ReadLine(in, remote.MaxReply, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// What no sandbox of a runner may be is refused, and nothing is made or taken for it.
func TestHostileSpecs(t *testing.T) {
	g, f := fakeRig(t, Options{Capacity: Capacity{CPUs: 4, MemoryMiB: 4096, Sandboxes: 4, DiskMiB: 2048}})
	digest := strings.Repeat("ab", 32)
	network := func(s string) func(*remote.Spec) {
		return func(p *remote.Spec) { p.Network = json.RawMessage(s) }
	}
	guest := func(path string) func(*remote.Spec) {
		return func(p *remote.Spec) { p.Contents = []remote.Content{{Guest: path, Digest: digest, Size: 10240}} }
	}
	for what, change := range map[string]func(*remote.Spec){
		"another version":       func(s *remote.Spec) { s.Version = 99 },
		"no id":                 func(s *remote.Spec) { s.ID = "" },
		"a path as id":          func(s *remote.Spec) { s.ID = "../../../../etc/cron.d/x" },
		"no processors":         func(s *remote.Spec) { s.CPUs = 0 },
		"fewer than none":       func(s *remote.Spec) { s.CPUs = -3 },
		"too many processors":   func(s *remote.Spec) { s.CPUs = 5 },
		"no memory":             func(s *remote.Spec) { s.Memory = 0 },
		"negative memory":       func(s *remote.Spec) { s.Memory = -1 << 62 },
		"memory that overflows": func(s *remote.Spec) { s.Memory = 1<<63 - 1 },
		"too much memory":       func(s *remote.Spec) { s.Memory = 5 << 30 },
		"no disk":               func(s *remote.Spec) { s.Disk = 0 },
		"too much disk":         func(s *remote.Spec) { s.Disk = 3 << 30 },
		"no processes":          func(s *remote.Spec) { s.Processes = 0 },
		"too many processes":    func(s *remote.Spec) { s.Processes = 1 << 40 },
		"a policy that is none": network(`{"allow_net": "everything!!"}`),
		"a policy as a list":    network(`[]`),
		"a proxy":               network(`{"seed": "x", "proxy": {"url": "http://169.254.169.254:80"}}`),
		"a service's name":      network(`{"services": ["../x"]}`),
		"many services":         network(`{"services": [` + strings.Repeat(`"a",`, 100) + `"a"]}`),
		"a long seed":           network(`{"seed": "` + strings.Repeat("x", 1000) + `"}`),
		"no certificates":       network(`{"extra_cas": {"example.com": "none"}}`),
		"a large policy":        network(`{"seed": "` + strings.Repeat("x", 600<<10) + `"}`),
		"content at /":          guest("/"),
		"content at /usr":       guest("/usr"),
		"content in /etc":       guest("/etc/ravi"),
		"content that climbs":   guest("/opt/../etc"),
		"a relative place":      guest("opt"),
		"content over /proc":    guest("/proc/self"),
		"a place with a NUL":    guest("/opt/a\x00b"),
		"a long place":          guest("/opt/" + strings.Repeat("x", 2000)),
		"no digest":             func(s *remote.Spec) { s.Contents = []remote.Content{{Guest: "/opt/x", Digest: "../../x", Size: 1}} },
		"a digest in capitals": func(s *remote.Spec) {
			s.Contents = []remote.Content{{Guest: "/opt/x", Digest: strings.ToUpper(digest), Size: 1}}
		},
		"content without end": func(s *remote.Spec) { s.Contents = []remote.Content{{Guest: "/opt/x", Digest: digest, Size: 1 << 60}} },
		"content of no size":  func(s *remote.Spec) { s.Contents = []remote.Content{{Guest: "/opt/x", Digest: digest, Size: -1}} },
		"too many folders":    func(s *remote.Spec) { s.Contents = make([]remote.Content, 1000) },
		"one over the other": func(s *remote.Spec) {
			s.Contents = []remote.Content{{Guest: "/opt/x", Digest: digest, Size: 1}, {Guest: "/opt/x/y", Digest: digest, Size: 1}}
		},
	} {
		spec := goodSpec()
		change(spec)
		s := g.dial(t)
		_, in := begin(t, s, remote.Head{Kind: remote.KindCreate, Spec: spec})
		if r := reply(t, in); r.Code != remote.CodeRefused || r.Error == "" {
			t.Errorf("%s: %+v", what, r)
		}
		s.Close()
	}
	if len(f.specs) > 0 {
		t.Errorf("a sandbox was made of %+v", <-f.specs)
	}
	if left, _ := filepath.Glob(filepath.Join(g.Runner.home, "*", "*")); len(left) > 0 {
		t.Errorf("there is left: %v", left)
	}
}

// What is made has nothing of what was asked for but its bounds: the folder, the id and the home are the runner's, there
// are no mounts but contents, and no file of this machine is named.
func TestSpecIsTheRunners(t *testing.T) {
	g, f := fakeRig(t, Options{})
	asked := goodSpec()
	raw, err := json.Marshal(remote.Head{Kind: remote.KindCreate, Spec: asked})
	if err != nil {
		t.Fatal(err)
	}
	// As a home would say it that knows of more than the protocol has.
	text := strings.Replace(string(raw), `"image"`, `"dir":"/etc","home":"/root","mounts":[{"host":"/","guest":"/mnt"}],"checkpoint":"/root","proxy_auth_file":"/etc/shadow","roots_file":"/etc/shadow","backend":"host","image"`, 1)
	s := g.dial(t)
	_, in := begin(t, s, json.RawMessage(text))
	if r := reply(t, in); r.Event != remote.EventCreated {
		t.Fatalf("%+v", r)
	}
	made := <-f.specs
	if made.ID == asked.ID || made.Dir != filepath.Join(g.Runner.home, sandboxesDir, made.ID) || made.Home != g.Runner.home || len(made.Mounts) > 0 ||
		made.Checkpoint != "" || made.ProxyAuthFile != "" || made.RootsFile != os.Getenv("SSL_CERT_FILE") || made.Sealed || made.Owner != nil {
		t.Errorf("%+v", made)
	}
	s.Close()
}

// Streams that make no sense end by themselves, and leave the others alone.
func TestHostileStreams(t *testing.T) {
	defer leaktest.None(t, goleak.IgnoreCurrent())
	g, _ := fakeRig(t, Options{})
	s := g.dial(t)
	_, early := begin(t, s, remote.Head{Kind: remote.KindPause})
	if r := reply(t, early); r.Code != remote.CodeRefused {
		t.Errorf("before there is a sandbox: %+v", r)
	}
	_, in := begin(t, s, remote.Head{Kind: remote.KindCreate, Spec: goodSpec()})
	if r := reply(t, in); r.Event != remote.EventCreated {
		t.Fatalf("%+v", r)
	}
	ends := func(what string, c net.Conn, in *bufio.Reader) {
		t.Helper()
		if _, err := io.Copy(io.Discard, in); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", what, err)
		}
		c.Close()
	}
	for what, head := range map[string]any{"no kind": remote.Head{}, "another one": remote.Head{Kind: "shell"}, "a policy that is none": remote.Head{Kind: remote.KindPolicy, Policy: []byte(`[]`)}} {
		c, in := begin(t, s, head)
		if r := reply(t, in); r.Code != remote.CodeRefused {
			t.Errorf("%s: %+v", what, r)
		}
		ends(what, c, in)
	}
	if c, in := begin(t, s, remote.Head{Kind: remote.KindDial}); true {
		if _, err := c.Write([]byte("echo\n")); err != nil {
			t.Fatal(err)
		}
		if got, err := in.ReadString('\n'); got != "echo\n" {
			t.Errorf("the guest answers %q %v", got, err)
		}
	}
	// One that goes away before its line is whole is no harm.
	for _, part := range []string{"", `{"kind":`} {
		c, err := s.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	_, in = begin(t, s, remote.Head{Kind: remote.KindEnd})
	if r := reply(t, in); r.Error != "" {
		t.Errorf("the end: %+v", r)
	}
	s.Close()
	g.work.Wait()
}

// Who does not keep to the protocol loses the session, and the sandbox with it.
func TestNonsenseEndsTheSession(t *testing.T) {
	g, _ := fakeRig(t, Options{})
	for what, say := range map[string]func(net.Conn){
		"no object":    func(c net.Conn) { _, _ = c.Write([]byte("\"create\"\n")) },
		"no JSON":      func(c net.Conn) { _, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) },
		"a second one": func(c net.Conn) { _ = remote.WriteLine(c, remote.Head{Kind: remote.KindCreate, Spec: goodSpec()}) },
		"a line without end": func(c net.Conn) {
			_ = c.SetWriteDeadline(time.Now().Add(time.Minute))
			for b := bytes.Repeat([]byte("x"), 64<<10); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		},
	} {
		s := g.dial(t)
		_, in := begin(t, s, remote.Head{Kind: remote.KindCreate, Spec: goodSpec()})
		if r := reply(t, in); r.Event != remote.EventCreated {
			t.Fatalf("%+v", r)
		}
		c, err := s.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go say(c)
		select {
		case <-s.Done():
		case <-time.After(time.Minute):
			t.Errorf("%s: the session goes on", what)
		}
		s.Close()
	}
	g.work.Wait()
}

// archive is a tar of these entries, and what it is announced as.
func archive(t testing.TB, heads ...*tar.Header) ([]byte, remote.Content) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range heads {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), announced(b.Bytes())
}

func announced(b []byte) remote.Content {
	sum := sha256.Sum256(b)
	return remote.Content{Guest: "/opt/x", Digest: hex.EncodeToString(sum[:]), Size: int64(len(b))}
}

// What comes as a folder cannot get out of its own, cannot be larger than was said, and nothing is left of what is refused.
func TestHostileContents(t *testing.T) {
	file := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 3} }
	link := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	dir := func(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeDir, Name: name} }
	outside := filepath.Join(t.TempDir(), "outside")
	cases := map[string][]*tar.Header{
		"a climb":               {file("../x")},
		"a climb within":        {dir("a"), file("a/../../x")},
		"an absolute name":      {file(outside)},
		"no name":               {file(".")},
		"a folder that is none": {file("a/b")},
		"through a link":        {link("a", filepath.Dir(outside)), file("a/outside")},
		"over a link":           {link("a", outside), file("a")},
		"through a link within": {dir("d"), link("a", "d"), file("a/x")},
		"over a folder":         {dir("a"), dir("a")},
		"over a file":           {file("a"), file("a")},
		"a hard link":           {file("b"), {Typeflag: tar.TypeLink, Name: "a", Linkname: "b"}},
		"a hard link outside":   {{Typeflag: tar.TypeLink, Name: "a", Linkname: "/etc/passwd"}},
		"a device":              {{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}},
		"a pipe":                {{Typeflag: tar.TypeFifo, Name: "p"}},
		"a long name":           {file(strings.Repeat("n", 5000))},
		"a long link":           {link("a", strings.Repeat("n", 5000))},
		"a deep one":            {file(strings.Repeat("d/", 100) + "x")},
	}
	contents, err := openContents(filepath.Join(t.TempDir(), "content"))
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, b []byte, c remote.Content) {
		t.Helper()
		if err := contents.add(t.Context(), c, bytes.NewReader(b)); err == nil {
			t.Errorf("%s was taken", what)
		}
		if left, _ := os.ReadDir(contents.dir); len(left) > 0 {
			t.Errorf("%s: there is left %v", what, left)
		}
		if _, err := os.Lstat(outside); err == nil {
			t.Fatalf("%s got outside", what)
		}
	}
	for what, heads := range cases {
		b, c := archive(t, heads...)
		refused(what, b, c)
	}
	b, c := archive(t, file("a"))
	other := c
	other.Digest = strings.Repeat("0", 64)
	refused("another digest", b, other)
	refused("less than was said", b[:len(b)-512], c)
	shorter := announced(b)
	shorter.Size -= 512
	refused("more than was said", b, shorter)
	refused("no tar", bytes.Repeat([]byte("x"), 4096), announced(bytes.Repeat([]byte("x"), 4096)))
	// One with holes is as large as it says, and not as what came.
	sparse := sparseTar(t, 1<<40)
	refused("a file with holes", sparse, announced(sparse))
	if err := contents.add(t.Context(), c, bytes.NewReader(b)); err != nil {
		t.Errorf("a good one: %v", err)
	}
}

// sparseTar is a tar in GNU's old form with a file of that size, all of which is a hole.
func sparseTar(t testing.TB, size int64) []byte {
	t.Helper()
	b := make([]byte, 512)
	copy(b, "hole")
	copy(b[100:], "0000644\x00")
	copy(b[108:], "0000000\x000000000\x00")
	copy(b[124:], "00000000000\x00") // nothing of it is there
	copy(b[136:], "00000000000\x00")
	b[156] = 'S'
	copy(b[257:], "ustar  \x00")
	// The real size, in base 256.
	b[483] = 0x80
	for i := range 8 {
		b[494-i] = byte(size >> (8 * i))
	}
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], []byte{'0' + byte(sum>>15&7), '0' + byte(sum>>12&7), '0' + byte(sum>>9&7), '0' + byte(sum>>6&7), '0' + byte(sum>>3&7), '0' + byte(sum&7), 0, ' '})
	out := append(b, make([]byte, 1024)...)
	h, err := tar.NewReader(bytes.NewReader(out)).Next()
	if err != nil || h.Size != size {
		t.Fatalf("%+v %v", h, err)
	}
	return out
}

// Whatever comes, nothing is made outside of its folder.
func FuzzUnpack(f *testing.F) {
	b, _ := archive(f, &tar.Header{Typeflag: tar.TypeDir, Name: "d"}, &tar.Header{Typeflag: tar.TypeReg, Name: "d/x", Size: 3}, &tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: ".."})
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		top := t.TempDir()
		err := unpack(t.Context(), filepath.Join(top, "inner"), announced(b), bytes.NewReader(b))
		list, rerr := os.ReadDir(top)
		if rerr != nil || len(list) != 1 {
			t.Errorf("%v %v (%v)", list, rerr, err)
		}
	})
}

// A runner that is full, or drains, says so, and home can tell.
func TestFull(t *testing.T) {
	available := int64(4 << 30)
	g, _ := fakeRig(t, Options{Capacity: Capacity{CPUs: 3, MemoryMiB: 8192, Sandboxes: 3}, available: func() (int64, error) { return available, nil }})
	create := func(cpus float64, memory int64) (backend.Instance, error) {
		s := backend.Spec{ID: sandbox.NewID(), Image: "host", CPUs: cpus, Memory: memory, Disk: 1 << 30, Processes: 10}
		return g.backend(t).Create(t.Context(), s)
	}
	fails := func(what string, cpus float64, memory int64, want error) {
		t.Helper()
		if i, err := create(cpus, memory); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
			if err == nil {
				_ = i.Close(t.Context())
			}
		}
	}
	first, err := create(1, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if notes, err := first.Ready(t.Context()); err != nil || len(notes) != 1 || notes[0] != "a note" {
		t.Errorf("%v %v", notes, err)
	}
	fails("more processors than there ever are", 4, 1<<30, remote.ErrRefused)
	fails("more processors than are free", 2.5, 1<<30, remote.ErrFull)
	fails("more memory than the machine has", 1, 4<<30, remote.ErrFull)
	available = 1 << 40
	fails("more memory than there ever is", 1, 8<<30, remote.ErrRefused)
	fails("more memory than is free", 1, 7<<30, remote.ErrFull)
	if s := g.Status(); s.Free.MemoryMiB != 8192-cost(1<<30)>>20 || s.Free.CPUs != 2 || s.Free.Sandboxes != 2 || s.Running != 1 {
		t.Errorf("%+v", s)
	}
	var more []backend.Instance
	for range 2 {
		i, err := create(0.5, 512<<20)
		if err != nil {
			t.Fatal(err)
		}
		more = append(more, i)
	}
	fails("one more than can be", 0.5, 512<<20, remote.ErrFull)
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Drain(short); !errors.Is(err, context.Canceled) {
		t.Errorf("draining while there are some: %v", err)
	}
	if s := g.Status(); !s.Draining || s.Free != (Capacity{DiskMiB: s.Capacity.DiskMiB}) {
		t.Errorf("%+v", s)
	}
	drained := make(chan error, 1)
	go func() { drained <- g.Drain(t.Context()) }()
	for _, i := range append(more, first) {
		fails("while it drains", 0.5, 512<<20, remote.ErrDraining)
		if err := i.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A runner that is stopped tells home that it was that, and takes its time to.
func TestStoppedRunner(t *testing.T) {
	g, _ := fakeRig(t, Options{})
	a, b := wire(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("stopped")
	over := make(chan error, 1)
	go func() { over <- g.Serve(ctx, session(t, b, false), "test") }()
	i, err := remote.New(session(t, a, true)).Create(t.Context(), backend.Spec{ID: sandbox.NewID(), Image: "host", CPUs: 1, Memory: 1 << 30, Disk: 1 << 30, Processes: 10})
	if err != nil {
		t.Fatal(err)
	}
	cancel(why)
	if err := <-over; !errors.Is(err, why) {
		t.Errorf("Serve ended with %v", err)
	}
	<-i.Ended()
	if end := i.End(); end.Reason != keeper.ReasonRunner {
		t.Errorf("it ended with %+v", end)
	}
}
