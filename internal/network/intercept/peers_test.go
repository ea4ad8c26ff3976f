package intercept

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program finds a real peer.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("SKIP-FEATURE: no %s on this machine", name)
	}
	return path
}

// nginx serves plain HTTP, and TLS with HTTP/1.1 and HTTP/2.
func nginx(t *testing.T) (plain, secure string) {
	t.Helper()
	path := program(t, "nginx")
	dir := t.TempDir()
	var files []*os.File
	var addrs []string
	for range 2 {
		// nginx takes over sockets that listen already, so nothing has to be
		// waited for: what connects early is in the queue.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, l.Addr().String())
		l.Close()
		defer f.Close()
		files = append(files, f)
	}
	leaf, err := serverCA().leaf(site)
	if err != nil {
		t.Fatal(err)
	}
	var chain bytes.Buffer
	for _, der := range leaf.Certificate {
		pem.Encode(&chain, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	write("chain.pem", chain.Bytes())
	write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write("big", bytes.Repeat([]byte("0123456789abcdef"), 1<<18))
	user := ""
	if os.Getuid() == 0 {
		user = "user root;"
	}
	conf := write("nginx.conf", fmt.Appendf(nil, `
%s
daemon off; worker_processes 1; pid %[2]s/pid; error_log %[2]s/errors;
events { worker_connections 64; }
http {
	access_log off; client_body_temp_path %[2]s/body; proxy_temp_path %[2]s/proxy;
	fastcgi_temp_path %[2]s/f; uwsgi_temp_path %[2]s/u; scgi_temp_path %[2]s/s;
	client_max_body_size 0; large_client_header_buffers 16 64k;
	server {
		listen %[3]s; listen %[4]s ssl http2; server_name %[5]s;
		ssl_certificate %[2]s/chain.pem; ssl_certificate_key %[2]s/key.pem;
		location / { return 200 "$server_protocol $request_method $host $request_uri\n"; }
		location = /big { root %[2]s; }
		location = /upload { proxy_pass http://%[3]s/uploaded; }
	}
}
`, user, dir, addrs[0], addrs[1], site))
	cmd := exec.Command(path, "-e", filepath.Join(dir, "errors"), "-p", dir, "-c", conf)
	cmd.ExtraFiles = files
	cmd.Env = append(os.Environ(), "NGINX=3;4;")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
		if t.Failed() {
			b, _ := os.ReadFile(filepath.Join(dir, "errors"))
			t.Logf("nginx: %s", b)
		}
	})
	return addrs[0], addrs[1]
}

// run runs a client that must succeed, and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program(t, name), args...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", name, err, out, errs.String())
	}
	return string(out)
}

func (w *world) caFile() string {
	w.t.Helper()
	p := filepath.Join(w.t.TempDir(), "ca.pem")
	if err := os.WriteFile(p, w.proxy.CA.PEM(), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) curl(args ...string) string {
	w.t.Helper()
	to := fmt.Sprintf("%s:%d:%s", site, w.port, w.listen.Addr())
	return run(w.t, "curl", append([]string{"-sS", "--cacert", w.caFile(), "--connect-to", to, "--path-as-is"}, args...)...)
}

func TestCurlAndNginx(t *testing.T) {
	plain, secure := nginx(t)
	const code = "%{http_code} %{num_connects} %{size_download}"
	t.Run("plain", func(t *testing.T) {
		w := newWorld(t, plain, 80)
		if got := w.curl("http://site.test/a//b/../%2f?x=%zz", "http://SITE.test:80/2"); got != "HTTP/1.1 GET site.test /a//b/../%2f?x=%zz\nHTTP/1.1 GET site.test /2\n" {
			t.Errorf("got %q", got)
		}
	})
	for _, version := range []string{"--http1.1", "--http2"} {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t, secure, 443)
			w.rules.request = func(_, path string) bool { return path != "/no" }
			proto := map[string]string{"--http1.1": "HTTP/1.1", "--http2": "HTTP/2.0"}[version]
			if got := w.curl(version, "https://site.test/@scope%2fname//x", "https://site.test/2"); got != proto+" GET site.test /@scope%2fname//x\n"+proto+" GET site.test /2\n" {
				t.Errorf("got %q", got)
			}
			if got := w.curl(version, "-I", "https://site.test/big"); !strings.Contains(strings.ToLower(got), "content-length: 4194304") {
				t.Errorf("got %q", got)
			}
			if got := w.curl(version, "-o", os.DevNull, "-w", code, "https://site.test/big"); got != "200 1 4194304" {
				t.Errorf("got %q", got)
			}
			if got := w.curl(version, "-r", "10-15", "https://site.test/big"); got != "abcdef" {
				t.Errorf("got %q", got)
			}
			big := filepath.Join(t.TempDir(), "up")
			if err := os.WriteFile(big, bytes.Repeat([]byte("z"), 20<<20), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, expect := range []string{"Expect:", "Expect: 100-continue"} {
				if got := w.curl(version, "-H", expect, "--expect100-timeout", "60", "-T", big, "-w", " %{size_upload}", "https://site.test/upload"); !strings.HasSuffix(got, "/uploaded\n 20971520") {
					t.Errorf("%s: got %q", expect, got)
				}
			}
			if got := w.curl(version, "-H", "Host: other.test", "https://site.test/"); !strings.Contains(got, "ravi: refused: GET / of site.test:443") || !strings.Contains(got, "other.test") {
				t.Errorf("got %q", got)
			}
			if got := w.curl(version, "-w", "%{http_code}", "-o", os.DevNull, "https://site.test/", "-o", os.DevNull, "https://site.test/no", "-o", os.DevNull, "https://site.test/"); got != "200403200" {
				t.Errorf("got %q", got)
			}
		})
	}
	t.Run("passthrough", func(t *testing.T) {
		w := newWorld(t, secure, 443, passthrough)
		if got := w.curl("-k", "--http2", "https://site.test/x"); got != "HTTP/2.0 GET site.test /x\n" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("another SNI", func(t *testing.T) {
		for _, change := range []func(*world){passthrough, func(*world) {}} {
			w := newWorld(t, secure, 443, change)
			cmd := exec.Command(program(t, "curl"), "-sSk", "--connect-to", "other.test:443:"+w.listen.Addr().String(), "-H", "Host: site.test", "https://other.test/")
			if out, err := cmd.Output(); err == nil || len(out) > 0 {
				t.Errorf("got %q, %v", out, err)
			}
			if w.dialed() != 0 {
				t.Error("the server was reached")
			}
		}
	})
	t.Run("does not trust", func(t *testing.T) {
		w := newWorld(t, secure, 443)
		cmd := exec.Command(program(t, "curl"), "-sS", "--connect-to", "site.test:443:"+w.listen.Addr().String(), "https://site.test/")
		if out, err := cmd.Output(); err == nil {
			t.Errorf("got %q", out)
		}
		if e := w.event(); !strings.Contains(e.Hint, "passthrough") {
			t.Errorf("%+v", e)
		}
	})
}

func TestPython(t *testing.T) {
	_, secure := nginx(t)
	w := newWorld(t, secure, 443)
	w.rules.request = func(_, path string) bool { return path != "/no" }
	host, port, _ := net.SplitHostPort(w.listen.Addr().String())
	got := run(t, "python3", "-c", `
import http.client, socket, ssl, sys
c = http.client.HTTPSConnection("site.test", context=ssl.create_default_context(cafile=sys.argv[3]))
c._create_connection = lambda *a, **k: socket.create_connection((sys.argv[1], int(sys.argv[2])))
for path in "/one", "/%2ftwo", "/big", "/no":
    c.request("GET", path)
    r = c.getresponse()
    b = r.read()
    print(r.status, len(b), r.getheader("X-Ravi-Refused"))
c.request("POST", "/upload", body=(b"x" * 10000 for _ in range(500)), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
r = c.getresponse()
print(r.status, r.read())
`, host, port, w.caFile())
	lines := strings.Split(got, "\n")
	if lines[0] != "200 28 None" || lines[1] != "200 31 None" || lines[2] != "200 4194304 None" || !strings.HasPrefix(lines[3], "403 ") || !strings.HasSuffix(lines[3], " 1") || !strings.HasPrefix(lines[4], "200 ") {
		t.Errorf("got %q", got)
	}
}

func TestNode(t *testing.T) {
	_, secure := nginx(t)
	w := newWorld(t, secure, 443)
	w.rules.request = func(_, path string) bool { return path != "/no" }
	host, port, _ := net.SplitHostPort(w.listen.Addr().String())
	got := run(t, "node", "-e", `
const [host, port, caFile] = process.argv.slice(1);
const ca = require('fs').readFileSync(caFile), tls = require('tls'), http2 = require('http2'), https = require('https');
const read = async s => { let n = 0; for await (const c of s) n += c.length; return n };
(async () => {
  const agent = new https.Agent({keepAlive: true, maxSockets: 1});
  for (const path of ['/one', '/big', '/no'])
    await new Promise((ok, no) => https.get({agent, host, port, path, ca, servername: 'site.test', headers: {host: 'site.test'}},
      async r => { console.log(r.httpVersion, r.statusCode, r.headers['x-ravi-refused'], path == '/no' || await read(r)); r.resume(); ok() }).on('error', no));
  agent.destroy();
  const s = http2.connect('https://site.test', {createConnection: () => tls.connect({host, port, ca, servername: 'site.test', ALPNProtocols: ['h2']})});
  const get = h => new Promise((ok, no) => { const r = s.request(h); r.on('error', no); let st; r.on('response', x => st = x[':status']); read(r).then(n => ok([st, n])) });
  const all = await Promise.all([get({':path': '/one'}), get({':path': '/big'}), get({':path': '/no'}), get({':path': '/', ':authority': 'other.test'})]);
  console.log('2', all.map(x => x[0]).join(), all[1][1]);
  s.close();
})();
`, host, port, w.caFile())
	want := "1.1 200 undefined 28\n1.1 200 undefined 4194304\n1.1 403 1 true\n2 200,200,403,403 4194304\n"
	if got != want {
		t.Errorf("got %q", got)
	}
}

func TestOpenSSL(t *testing.T) {
	_, secure := nginx(t)
	w := newWorld(t, secure, 443)
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		cmd := exec.Command(program(t, "openssl"), "s_client", "-quiet", "-no_ign_eof", "-verify_return_error", "-verify_hostname", site, "-CAfile", w.caFile(),
			version, "-connect", w.listen.Addr().String(), "-servername", site, "-alpn", "http/1.1", "-ign_eof")
		cmd.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n")
		out, err := cmd.Output()
		if err != nil || !strings.HasSuffix(string(out), "HTTP/1.1 GET site.test /\n") {
			t.Errorf("%s: %q, %v", version, out, err)
		}
	}
}
