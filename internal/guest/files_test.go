package guest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func (g *guestTest) files(path string, more ...string) string {
	q := url.Values{"path": {path}}
	for i := 0; i < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	return g.URL + "/files?" + q.Encode()
}

func zipped(t *testing.T, text string) string {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

// form makes a multipart body the way form encoders do.
func form(t *testing.T, files ...string) (string, string) {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	escape := strings.NewReplacer(`"`, "%22", "\r", "%0D", "\n", "%0A")
	for i := 0; i < len(files); i += 2 {
		part, err := w.CreatePart(textproto.MIMEHeader{
			"Content-Disposition": {`form-data; name="file"; filename="` + escape.Replace(files[i]) + `"`},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(part, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.String(), w.FormDataContentType()
}

const octets = "application/octet-stream"

// noLeftovers checks that no staged file stayed.
func noLeftovers(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if upload, _ := uploadName(filepath.Base(path)); upload {
			t.Errorf("%s stayed", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestUploadNamesAndOwners(t *testing.T) {
	g := startGuest(t, Options{})
	for _, name := range []string{
		"plain.txt", "deep/er/file", `with "quotes"`, "line\nends\r\n", "tab\tand space ", "--help", "ünïcode-日本", `back\slash`, "semi;colon=x", "a/../b",
	} {
		for _, way := range []string{"octet-stream", "multipart", "multipart with path"} {
			t.Run(way+" "+name, func(t *testing.T) {
				full := filepath.Join(g.home, way, name)
				target, body, kind := g.files(full, "username", "user"), "content of "+way, octets
				switch way {
				case "multipart":
					body, kind = form(t, full, body)
					target = g.URL + "/files?username=user"
				case "multipart with path":
					body, kind = form(t, "blob", body)
				}
				status, _, answer := call(t, g.HTTP, "POST", target, strings.NewReader(body), "Content-Type", kind)
				if status != 200 {
					t.Fatalf("status %d: %s", status, answer)
				}
				var got []uploaded
				if err := json.Unmarshal(answer, &got); err != nil {
					t.Fatal(err)
				}
				if len(got) != 1 || got[0].Path != full || got[0].Name != filepath.Base(full) || got[0].Type != "file" {
					t.Errorf("answer is %s", answer)
				}
				if text := readFile(t, full); text != "content of "+way {
					t.Errorf("content is %q", text)
				}
				info, err := os.Stat(full)
				if err != nil {
					t.Fatal(err)
				}
				st := info.Sys().(*syscall.Stat_t)
				if st.Uid != 1000 || st.Gid != 1000 || info.Mode() != 0o644 {
					t.Errorf("owner %d:%d, mode %v", st.Uid, st.Gid, info.Mode())
				}
				dir, err := os.Stat(filepath.Dir(full))
				if err != nil {
					t.Fatal(err)
				}
				if st := dir.Sys().(*syscall.Stat_t); st.Uid != 1000 {
					t.Errorf("the directory is owned by %d", st.Uid)
				}
			})
		}
	}
	noLeftovers(t, g.home)
}

func TestUploadIsWholeOrNotAtAll(t *testing.T) {
	g := startGuest(t, Options{})
	dir := filepath.Join(g.home, "d")
	if err := os.MkdirAll(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, []byte("before"), 0o640); err != nil {
		t.Fatal(err)
	}
	two, twoKind := form(t, old, "after", filepath.Join(dir, "folder"), "x")
	twice, twiceKind := form(t, old, "after", filepath.Join(dir, "folder/..", "old"), "x")
	cut, cutKind := form(t, old, strings.Repeat("after", 1000))
	for _, tc := range []struct {
		name, url, body string
		headers         []string
		status          int
		text            string
	}{
		{"false gzip label", g.files(old), "not gzip", []string{"Content-Type", octets, "Content-Encoding", "gzip"}, 400, "not gzip"},
		{"gzip cut short", g.files(old), zipped(t, strings.Repeat("hello", 1000))[:30], []string{"Content-Type", octets, "Content-Encoding", "gzip"}, 400, "read the body"},
		{"other encoding", g.files(old), "x", []string{"Content-Type", octets, "Content-Encoding", "br"}, 400, "br"},
		{"no content type", g.files(old), "x", nil, 400, "content type"},
		{"no path", g.URL + "/files", "x", []string{"Content-Type", octets}, 400, "path"},
		{"a folder", g.files(filepath.Join(dir, "folder")), "x", []string{"Content-Type", octets}, 400, "is a directory"},
		{"a file as a folder", g.files(filepath.Join(old, "x")), "x", []string{"Content-Type", octets}, 400, "not a directory"},
		{"second of two fails", g.URL + "/files", two, []string{"Content-Type", twoKind}, 400, "is a directory"},
		{"one name twice", g.URL + "/files", twice, []string{"Content-Type", twiceKind}, 400, "twice"},
		{"two for one path", g.files(old), two, []string{"Content-Type", twoKind}, 400, "twice"},
		{"form cut short", g.URL + "/files", cut[:2000], []string{"Content-Type", cutKind}, 400, "read"},
		{"unknown user", g.files(old, "username", "stranger"), "x", []string{"Content-Type", octets}, 401, "stranger"},
		{"long metadata", g.files(old), "x", []string{"Content-Type", octets, "X-Metadata-a", strings.Repeat("x", 4100)}, 400, "limit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, _, body := call(t, g.HTTP, "POST", tc.url, strings.NewReader(tc.body), tc.headers...)
			var e httpError
			if err := json.Unmarshal(body, &e); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			if status != tc.status || e.Code != status || !strings.Contains(e.Message, tc.text) {
				t.Errorf("status %d, %s; want %d naming %q", status, body, tc.status, tc.text)
			}
			if got := readFile(t, old); got != "before" {
				t.Errorf("the file holds %q now", got)
			}
			noLeftovers(t, g.home)
		})
	}
}

func TestUploadReplaces(t *testing.T) {
	g := startGuest(t, Options{})
	put := func(path, body string, headers ...string) {
		t.Helper()
		status, _, answer := call(t, g.HTTP, "POST", g.files(path), strings.NewReader(body), append(headers, "Content-Type", octets)...)
		if status != 200 {
			t.Fatalf("status %d: %s", status, answer)
		}
	}
	script := filepath.Join(g.home, "script")
	if err := os.WriteFile(script, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("script", filepath.Join(g.home, "link")); err != nil {
		t.Fatal(err)
	}
	put(filepath.Join(g.home, "link"), "new", "X-Metadata-Author", "mish", "X-Metadata-Two", "2")
	if got := readFile(t, script); got != "new" {
		t.Errorf("what the link leads to holds %q", got)
	}
	info, err := os.Lstat(filepath.Join(g.home, "link"))
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is no link any more: %v, %v", info, err)
	}
	if info, err := os.Stat(script); err != nil || info.Mode() != 0o755 {
		t.Errorf("mode is %v, %v", info, err)
	}
	if got := readMetadata(script); len(got) != 2 || got["author"] != "mish" {
		t.Errorf("metadata is %v", got)
	}
	put(script, zipped(t, "third"), "Content-Encoding", "gzip")
	if got := readFile(t, script); got != "third" {
		t.Errorf("content is %q", got)
	}
	if got := readMetadata(script); got != nil {
		t.Errorf("metadata stayed: %v", got)
	}
	// A link that leads to nothing yet makes what it names.
	if err := os.Symlink("fresh/file", filepath.Join(g.home, "dangling")); err != nil {
		t.Fatal(err)
	}
	put(filepath.Join(g.home, "dangling"), "x")
	if got := readFile(t, filepath.Join(g.home, "fresh/file")); got != "x" {
		t.Errorf("content is %q", got)
	}
	if err := os.Symlink("loop", filepath.Join(g.home, "loop")); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := call(t, g.HTTP, "POST", g.files(filepath.Join(g.home, "loop")), strings.NewReader("x"), "Content-Type", octets); status != 400 {
		t.Errorf("a loop of links got %d", status)
	}
	put("/dev/null", "x")
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode()&os.ModeDevice == 0 {
		t.Fatalf("/dev/null is %v, %v", info, err)
	}
}

func TestFullDisk(t *testing.T) {
	g := startGuest(t, Options{})
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("SKIP-FEATURE: mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "f")
	if err := os.WriteFile(path, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, _, body := call(t, g.HTTP, "POST", g.files(path), strings.NewReader(strings.Repeat("x", 2<<20)), "Content-Type", octets)
	if status != 507 || readFile(t, path) != "before" {
		t.Errorf("status %d: %s; content %.10q", status, body, readFile(t, path))
	}
	noLeftovers(t, dir)
}

func TestManyAndLargeUploads(t *testing.T) {
	g := startGuest(t, Options{})
	var files []string
	for i := range 1000 {
		files = append(files, filepath.Join(g.home, fmt.Sprintf("many/%d", i)), fmt.Sprint(i))
	}
	body, kind := form(t, files...)
	status, _, answer := call(t, g.HTTP, "POST", g.URL+"/files", strings.NewReader(body), "Content-Type", kind)
	if status != 200 || readFile(t, filepath.Join(g.home, "many/999")) != "999" {
		t.Errorf("status %d: %.200s", status, answer)
	}
	// A large sparse file goes both ways in a stream.
	const size = 64 << 20
	status, _, answer = call(t, g.HTTP, "POST", g.files(filepath.Join(g.home, "large")), io.LimitReader(zeros{}, size), "Content-Type", octets)
	if status != 200 {
		t.Fatalf("status %d: %s", status, answer)
	}
	res, err := g.HTTP.Get(g.files(filepath.Join(g.home, "large")))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err != nil || n != size || res.ContentLength != size {
		t.Errorf("%d bytes of %d, %v", n, size, err)
	}
}

func TestDownload(t *testing.T) {
	g := startGuest(t, Options{})
	hc := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	base := g.tcp(t)
	text := strings.Repeat("0123456789", 100)
	if err := os.WriteFile(filepath.Join(g.home, "f"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.home, "empty"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(g.home, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, h, _ := call(t, hc, "GET", base+"/files?path="+g.home+"/f", nil)
	modified := h.Get("Last-Modified")
	for _, tc := range []struct {
		name, path string
		headers    []string
		status     int
		body       string
		want       []string // header, value
	}{
		{"whole", g.home + "/f", nil, 200, text, []string{"Content-Type", octets, "Content-Length", "1000", "Content-Disposition", "inline; filename=f"}},
		{"home of the user", "~/f", []string{"Authorization", basic("user")}, 200, text, nil},
		{"relative", "f", []string{"Authorization", basic("user")}, 200, text, nil},
		{"empty", g.home + "/empty", nil, 200, "", []string{"Content-Length", "0"}},
		{"empty with gzip", g.home + "/empty", []string{"Accept-Encoding", "gzip"}, 200, "", []string{"Content-Length", "0", "Content-Encoding", ""}},
		{"range", g.home + "/f", []string{"Range", "bytes=5-9"}, 206, "56789", []string{"Content-Range", "bytes 5-9/1000"}},
		{"range with gzip", g.home + "/f", []string{"Range", "bytes=5-9", "Accept-Encoding", "gzip"}, 206, "56789", []string{"Content-Encoding", ""}},
		{"range outside", g.home + "/f", []string{"Range", "bytes=5000-"}, 416, "-", nil},
		{"not modified", g.home + "/f", []string{"If-Modified-Since", modified}, 304, "", nil},
		{"modified since", g.home + "/f", []string{"If-Modified-Since", "Mon, 01 Jan 2001 00:00:00 GMT"}, 200, text, nil},
		{"no encoding that there is", g.home + "/f", []string{"Accept-Encoding", "br, identity;q=0"}, 406, "-", nil},
		{"missing", g.home + "/none", nil, 404, "-", nil},
		{"a folder", g.home, nil, 400, "-", nil},
		{"a FIFO", g.home + "/fifo", nil, 400, "-", nil},
		{"unknown user", g.home + "/f&username=stranger", nil, 401, "-", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, h, body := call(t, hc, "GET", base+"/files?path="+tc.path, nil, tc.headers...)
			if status != tc.status || tc.body != "-" && string(body) != tc.body {
				t.Errorf("status %d, body %.100q; want %d, %.100q", status, body, tc.status, tc.body)
			}
			for i := 0; i < len(tc.want); i += 2 {
				if got := h.Get(tc.want[i]); got != tc.want[i+1] {
					t.Errorf("%s is %q, want %q", tc.want[i], got, tc.want[i+1])
				}
			}
			if tc.status >= 400 && tc.status != 416 {
				var e httpError
				if err := json.Unmarshal(body, &e); err != nil || e.Code != tc.status || e.Message == "" {
					t.Errorf("error is %s", body)
				}
			}
		})
	}
	_, h, body := call(t, hc, "GET", base+"/files?path="+g.home+"/f", nil, "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil || h.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%v, encoding %q", err, h.Get("Content-Encoding"))
	}
	if plain, err := io.ReadAll(z); err != nil || string(plain) != text {
		t.Errorf("%v, %.50q", err, plain)
	}
	// Files of /proc say that they are empty.
	if _, _, body := call(t, hc, "GET", base+"/files?path=/proc/self/status", nil); !bytes.Contains(body, []byte("VmRSS")) {
		t.Errorf("/proc/self/status is %.50q", body)
	}
}

func TestCompose(t *testing.T) {
	g := startGuest(t, Options{})
	for i, text := range []string{"one ", "two ", ""} {
		if err := os.WriteFile(filepath.Join(g.home, fmt.Sprint(i)), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	compose := func(body string) (int, []byte) {
		status, _, answer := call(t, g.HTTP, "POST", g.URL+"/files/compose", strings.NewReader(body))
		return status, answer
	}
	if status, answer := compose(`{"source_paths":["0","none"],"destination":"whole","username":"user"}`); status != 404 {
		t.Errorf("status %d: %s", status, answer)
	}
	if status, answer := compose(`{"source_paths":[],"destination":"whole","username":"user"}`); status != 400 {
		t.Errorf("status %d: %s", status, answer)
	}
	if status, answer := compose(`{"source_paths":["1","0","2"],"destination":"whole","username":"user"}`); status != 200 {
		t.Fatalf("status %d: %s", status, answer)
	}
	if got := readFile(t, filepath.Join(g.home, "whole")); got != "two one " {
		t.Errorf("content is %q", got)
	}
	entries, err := os.ReadDir(g.home)
	if err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

func TestChooseEncoding(t *testing.T) {
	for accept, want := range map[string]string{
		"": "identity", "gzip": "gzip", "gzip, deflate, br": "gzip", "*": "identity", "identity": "identity", "br": "identity",
		"gzip;q=0": "identity", "GZIP": "gzip", "identity;q=0, gzip": "gzip", "identity;q=0": "", "*;q=0": "", "*;q=0, gzip": "gzip",
		"gzip;q=0.5, identity": "identity", "gzip;q=nonsense": "identity",
	} {
		got, err := chooseEncoding(http.Header{"Accept-Encoding": {accept}})
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q gives %q, %v; want %q", accept, got, err, want)
		}
	}
}

func FuzzChooseEncoding(f *testing.F) {
	f.Add("gzip;q=0.5, identity;q=1")
	f.Fuzz(func(t *testing.T, accept string) {
		got, err := chooseEncoding(http.Header{"Accept-Encoding": {accept}})
		if err == nil && !slices.Contains([]string{"gzip", "identity"}, got) {
			t.Errorf("%q gives %q", accept, got)
		}
	})
}
