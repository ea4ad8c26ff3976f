package keeper

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"testing"
)

// endlessLine counts what was read of it.
type endlessLine int

func (e *endlessLine) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	*e += endlessLine(len(p))
	return len(p), nil
}

func TestReadLine(t *testing.T) {
	read := func(r io.Reader) (Request, error) {
		var req Request
		err := readLine(bufio.NewReaderSize(r, 16), &req)
		return req, err
	}
	if req, err := read(strings.NewReader(`{"op":"a rather long operation"}` + "\nrest")); err != nil || req.Op != "a rather long operation" {
		t.Errorf("%+v %v", req, err)
	}
	if _, err := read(strings.NewReader("")); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
	if _, err := read(strings.NewReader(`{"op":"cut`)); err != io.ErrUnexpectedEOF {
		t.Errorf("a line that is cut: %v", err)
	}
	if _, err := read(strings.NewReader("no JSON\n")); err == nil {
		t.Error("what is no JSON is read")
	}
	var endless endlessLine
	if _, err := read(&endless); err == nil || endless > maxLine+64 {
		t.Errorf("a line without end: %v after %d bytes", err, endless)
	}
}

func FuzzReadLine(f *testing.F) {
	f.Add([]byte("{\"op\":\"stats\"}\n{\"op\":\"end\"}\n"))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bufio.NewReaderSize(bytes.NewReader(in), 16)
		for lines := 0; ; lines++ {
			var req Request
			if err := readLine(r, &req); err == io.EOF || err == io.ErrUnexpectedEOF {
				if want := bytes.Count(in, []byte("\n")); lines != want {
					t.Fatalf("%d of %d lines read", lines, want)
				}
				return
			}
		}
	})
}

func TestCheckCgroup(t *testing.T) {
	for path, ok := range map[string]bool{
		"/ravi/sbx1": true, "": false, "/": false, "/ravi": false, "/ravi/": false, "/ravi/..": false, "/ravi/../system.slice": false,
		"/ravi/a/../../x": false, "ravi/x": false, "/system.slice": false, "/ravix/y": false, "/ravi//x": false,
	} {
		if err := checkCgroup(path); (err == nil) != ok {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, p := range []Plan{{Cgroup: "/"}, {Cgroup: "/system.slice"}} {
		p.Dir = t.TempDir()
		if err := Remove(p); err == nil {
			t.Errorf("%q would have been removed", p.Cgroup)
		}
	}
}
