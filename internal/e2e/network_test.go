package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	pemfile "encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"ravi/internal/porttest"
)

// site is nginx on loopback, with certificates of an authority that only these tests know, and a file of names that stands
// in for the host's.
type site struct {
	dir, ca, hosts   string
	secure, insecure string // ports
	greeter          string // the port of a server that speaks first
	udp              string // the port of one that answers datagrams
}

func newSite(t *testing.T) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP-FEATURE: only root can give a program other names for addresses")
	}
	for _, p := range []string{"nginx", "unshare"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("SKIP-FEATURE: there is no %s", p)
		}
	}
	s := &site{dir: t.TempDir(), secure: strconv.Itoa(porttest.Free(t)), insecure: strconv.Itoa(porttest.Free(t))}
	s.ca, s.hosts = s.dir+"/ca.pem", s.dir+"/hosts"
	s.certificates(t)
	own, err := os.ReadFile("/etc/hosts")
	must(t, err)
	names := "\n127.0.0.1 example.test other.test loop.test\n10.1.2.3 private.test\n169.254.169.254 metadata.test\n"
	must(t, os.WriteFile(s.hosts, append(own, names...), 0o644))
	config := fmt.Sprintf(`pid %[1]s/pid; error_log %[1]s/error.log; daemon off; master_process off;
events {}
http {
	log_format seen '$host $request_method $request_uri';
	access_log %[1]s/access.log seen;
	client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	server {
		listen 127.0.0.1:%[2]s ssl http2; listen 127.0.0.1:%[3]s;
		ssl_certificate %[1]s/site.pem; ssl_certificate_key %[1]s/site.key;
		location / { return 200 "nginx says hello\n"; }
		location /away { return 302 http://metadata.test/; }
		location /secret {
			add_header X-Echo $http_authorization always;
			if ($http_authorization != "Bearer %[4]s") { return 401 "who is $http_authorization?\n"; }
			return 200 "welcome, $http_authorization\n";
		}
	}
}
`, s.dir, s.secure, s.insecure, siteToken)
	must(t, os.WriteFile(s.dir+"/nginx.conf", []byte(config), 0o600))
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	_, s.greeter, err = net.SplitHostPort(l.Addr().String())
	must(t, err)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = c.Write([]byte("220 who are you\n"))
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	datagrams, err := net.ListenPacket("udp4", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { datagrams.Close() })
	_, s.udp, err = net.SplitHostPort(datagrams.LocalAddr().String())
	must(t, err)
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := datagrams.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteTo(append([]byte("you said "), b[:n]...), from)
		}
	}()
	cmd := exec.Command("nginx", "-c", s.dir+"/nginx.conf")
	var said bytes.Buffer
	cmd.Stderr = &said
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	eventually(t, "nginx listens: "+said.String(), func() bool {
		c, err := net.Dial("tcp4", "127.0.0.1:"+s.secure)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return s
}

func (s *site) certificates(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	must(t, err)
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tests"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{"example.test", "other.test", "loop.test"}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	for file, c := range map[string]*x509.Certificate{s.ca: ca, s.dir + "/site.pem": leaf} {
		der, err := x509.CreateCertificate(crand.Reader, c, ca, key.Public(), key)
		must(t, err)
		must(t, os.WriteFile(file, pemfile.EncodeToMemory(&pemfile.Block{Type: "CERTIFICATE", Bytes: der}), 0o644))
	}
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(s.dir+"/site.key", pemfile.EncodeToMemory(&pemfile.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
}

// run is a run whose host knows the site's names and trusts its authority.
func (s *site) run(w *world, r *repo, args ...string) *result {
	w.t.Helper()
	cmd := w.command(append([]string{"sandbox", "run", "--repo", r.dir}, args...)...)
	cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+s.ca)
	cmd.Args = append([]string{"unshare", "-m", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, s.hosts, cmd.Path}, cmd.Args[1:]...)
	path, err := exec.LookPath("unshare")
	must(w.t, err)
	cmd.Path = path
	return w.finish(cmd)
}

// rules allow the site, at the address where it is, and names that lead where nobody may go.
func (s *site) rules() string {
	return strings.Join([]string{
		"example.test:" + s.secure, "example.test:" + s.insecure, "127.0.0.1:" + s.secure, "127.0.0.1:" + s.insecure,
		"private.test", "metadata.test", "loop.test:80", "example.test:" + s.greeter, "127.0.0.1:" + s.greeter,
		"example.test:" + s.udp + "/udp", "127.0.0.1:" + s.udp + "/udp",
	}, ",")
}

// try is a shell function that runs a line and says what came of it: its name, status, and output on one line.
const try = `try() { name=$1; shift; out=$(eval "$@" 2>&1); echo "TRY $name status=$? out=$(echo "$out" | tr '\n' ' ')"; }
`

type attempt struct {
	status, out string
}

func attempts(t *testing.T, stdout string) map[string]attempt {
	t.Helper()
	out := map[string]attempt{}
	for _, m := range regexp.MustCompile(`(?m)^TRY (\S+) status=(\d+) out=(.*)$`).FindAllStringSubmatch(stdout, -1) {
		out[m[1]] = attempt{m[2], m[3]}
	}
	return out
}

// lowLevel are attempts for which programs are too well-behaved. Its first argument is the port with TLS, its second
// the one without.
const lowLevel = `import socket, ssl, sys, struct
secure, plain = int(sys.argv[2]), int(sys.argv[3])
def read(s):
    s.settimeout(120)
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            d = s.recv(4096)
            if not d: break
            data += d
        head, _, body = data.partition(b"\r\n\r\n")
        want = [int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length")]
        while want and len(body) < want[0]:
            d = s.recv(4096)
            if not d: break
            body += d
    except OSError as e:
        return "error %s" % e
    return data.split(b"\r\n")[0].decode() or "closed"
def tls(server_name="example.test"):
    c = ssl.create_default_context()
    return c.wrap_socket(socket.create_connection(("example.test", secure), 120), server_hostname=server_name)
def ask(name, server):
    q = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0\0\1\0\1"
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(120)
    s.sendto(q, (server, 53)); return s.recv(512)[3] & 15
def second(s):
    s.sendall(b"GET /first HTTP/1.1\r\nHost: example.test\r\n\r\n"); one = read(s)
    s.sendall(b"GET /second HTTP/1.1\r\nHost: other.test\r\n\r\n"); return one + " | " + read(s)
def raw(request):
    s = socket.create_connection(("example.test", plain), 120); s.sendall(request); return read(s)
what = sys.argv[1]
if what == "dns": print(ask("denied.test", "8.8.8.8"), ask("example.test", "1.1.1.1"), ask("x7f3.example.test", "192.168.127.1"))
if what == "second-tls": print(second(tls()))
if what == "second-plain": print(second(socket.create_connection(("example.test", plain), 120)))
if what == "connect": print(raw(b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n"))
if what == "absolute": print(raw(b"GET http://other.test/ HTTP/1.1\r\nHost: example.test\r\n\r\n"))
if what == "smuggle": print(raw(b"POST /smuggle HTTP/1.1\r\nHost: example.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: other.test\r\n\r\n"))
if what == "host-tab": print(raw(b"GET /tab HTTP/1.1\r\nHost: example.test\tother.test\r\n\r\n"))
if what == "udp":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(120); s.connect((socket.gethostbyname("example.test"), 443)); s.send(b"quic?")
    try: s.recv(10); print("answered")
    except ConnectionRefusedError: print("refused")
if what == "udp-rule":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(120); s.connect((socket.gethostbyname("example.test"), int(sys.argv[4]))); s.send(b"hello")
    print(s.recv(100).decode())
if what == "udp-not-tcp":
    try: socket.create_connection(("example.test", int(sys.argv[4])), 120); print("connected")
    except OSError: print("refused")
if what == "no-sni":
    c = ssl.create_default_context(); c.check_hostname = False
    try: c.wrap_socket(socket.create_connection(("example.test", secure), 120)); print("connected")
    except (ssl.SSLError, OSError) as e: print("refused")
if what == "wrong-sni":
    try: tls("other.test"); print("connected")
    except (ssl.SSLError, OSError) as e: print("refused")
`

// The whole way: a command in a sandbox, a real server, and everything that must not work.
func TestNetwork(t *testing.T) {
	s, w, r := newSite(t), newWorld(t), plain(t)
	r.write("low.py", lowLevel)
	r.commit("attempts")
	script := try + fmt.Sprintf(`S=%s P=%s G=%s U=%s
try https 'curl -sS -m 120 https://example.test:$S/https'
try http1 'curl -sS -m 120 --http1.1 https://example.test:$S/http1'
try plain 'curl -sS -m 120 http://example.test:$P/plain'
try python 'python3 -c "import urllib.request as u; print(u.urlopen(\"https://example.test:$S/python\", timeout=120).read().decode())"'
try upper 'curl -sS -m 120 https://EXAMPLE.test:$S/upper'
try greeter 'python3 -c "import socket; s=socket.create_connection((\"example.test\",$G),120).makefile(\"rwb\",0); g=s.readline(); s.write(b\"it is me\\n\"); print(g.decode().strip(), s.readline().decode())"'
try git 'git ls-remote https://example.test:$S/none.git'
try ipv6 'curl -6 -sS -m 120 https://example.test:$S/ipv6'
try subdomain 'curl -sS -m 120 https://x1.example.test:$S/'
try other 'curl -sS -m 120 https://other.test:$S/'
try address 'curl -sS -m 120 http://93.184.216.34/'
try decimal 'curl -sS -m 120 http://1572395042/'
try octal 'curl -sS -m 120 http://0135.0270.0330.0042/'
try mapped 'curl -sS -m 120 "http://[::ffff:93.184.216.34]/"'
try metadata-address 'curl -sS -m 120 http://169.254.169.254/'
try own-address 'curl -sS -m 120 http://192.168.127.1/'
try metadata-name 'curl -sS -m 120 http://metadata.test/'
try private-name 'curl -sS -m 120 http://private.test/'
try loopback-name 'curl -sS -m 120 http://loop.test/'
try redirect 'curl -sSL -m 120 http://example.test:$P/away'
try host-http1 'curl -sS -m 120 --http1.1 -H "Host: other.test" https://example.test:$S/host'
try host-h2 'curl -sS -m 120 --http2 -H "Host: other.test" https://example.test:$S/host'
try fronting 'curl -sS -m 120 --connect-to other.test:$S:example.test:$S https://other.test:$S/fronting'
try hosts-file 'cp /etc/hosts /tmp/h; echo "$(getent ahostsv4 example.test | head -1 | cut -d" " -f1) other.test" | sudo tee -a /etc/hosts >/dev/null; curl -sS -m 120 https://other.test:$S/hosts; c=$?; sudo cp /tmp/h /etc/hosts; (exit $c)'
try resolv-conf 'echo nameserver 9.9.9.9 | sudo tee /etc/resolv.conf >/dev/null; curl -sS -m 120 https://denied.test/'
for x in dns second-tls second-plain connect absolute smuggle host-tab udp udp-rule udp-not-tcp no-sni wrong-sni; do try $x "python3 low.py $x $S $P $U"; done
`, s.secure, s.insecure, s.greeter, s.udp)
	out := s.run(w, r, "--net-log", "--allow-net", s.rules(), "--", "bash", "-c", script).want(0)
	got := attempts(t, out.stdout)
	hello := regexp.MustCompile(`nginx says hello`)
	for name, want := range map[string]struct {
		status string // of the command; empty: not 0
		out    string // a pattern
	}{
		"https": {"0", `hello`}, "http1": {"0", `hello`}, "plain": {"0", `hello`}, "python": {"0", `hello`}, "upper": {"0", `hello`},
		"greeter": {"0", `^220 who are you it is me`}, "git": {"128", `none\.git`},
		"ipv6": {}, "subdomain": {"6", ``}, "other": {"6", ``},
		"address": {"7", ``}, "decimal": {"7", ``}, "octal": {"7", ``}, "mapped": {}, "metadata-address": {"7", ``}, "own-address": {"7", ``},
		"metadata-name": {"0", `169\.254\.169\.254 is a cloud metadata address .* stays closed`}, "private-name": {"0", `10\.1\.2\.3 is a private address, which stays closed`},
		"loopback-name": {"0", `127\.0\.0\.1 is a loopback address, which stays closed`},
		"redirect":      {"0", `169\.254\.169\.254 is a cloud metadata address .* stays closed`},
		"host-http1":    {"0", `other\.test`}, "host-h2": {"0", `other\.test`}, "fronting": {}, "hosts-file": {}, "resolv-conf": {"6", ``},
		"dns":        {"0", `^3 0 3 $`},
		"second-tls": {"0", `200 OK \| HTTP/1\.1 4\d\d`}, "second-plain": {"0", `200 OK \| HTTP/1\.1 4\d\d`},
		"connect": {"0", `HTTP/1\.1 4\d\d`}, "absolute": {"0", `HTTP/1\.1 4\d\d`}, "smuggle": {"0", `HTTP/1\.1 4\d\d`}, "host-tab": {"0", `HTTP/1\.1 4\d\d`},
		"udp": {"0", `^refused`}, "udp-rule": {"0", `^you said hello`}, "udp-not-tcp": {"0", `^refused`}, "no-sni": {"0", `^refused`}, "wrong-sni": {"0", `^refused`},
	} {
		a, ok := got[name]
		switch {
		case !ok:
			t.Errorf("%s: no result", name)
		case want.status == "" && a.status == "0", want.status != "" && a.status != want.status, !regexp.MustCompile(want.out).MatchString(a.out):
			t.Errorf("%s: status %s, %q; want status %q and %q", name, a.status, a.out, want.status, want.out)
		case want.out != "hello" && hello.MatchString(a.out):
			t.Errorf("%s: the server answered: %q", name, a.out)
		}
	}
	// What the server saw is what was allowed, and nothing else.
	access := read(t, s.dir+"/access.log")
	var seen []string
	for line := range strings.Lines(access) {
		seen = append(seen, strings.TrimSpace(line))
	}
	want := []string{"example.test GET /https", "example.test GET /http1", "example.test GET /plain", "example.test GET /python", "example.test GET /upper",
		"example.test GET /none.git/info/refs?service=git-upload-pack", "example.test GET /away", "example.test GET /first", "example.test GET /first"}
	if strings.Join(seen, "\n") != strings.Join(want, "\n") {
		t.Errorf("the server saw\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
	}
	// Every decision is on record, and what was refused is told in the end.
	allowed, refused := 0, 0
	for line := range strings.Lines(out.file("events.jsonl")) {
		var e struct {
			Event, Kind, Name, Proto, Why string
			Allowed                       bool
		}
		must(t, json.Unmarshal([]byte(line), &e))
		switch {
		case e.Event != "network":
		case e.Allowed:
			allowed++
		default:
			refused++
			if e.Why == "" {
				t.Errorf("a refusal without a reason: %s", line)
			}
		}
	}
	if allowed < 10 || refused < 20 {
		t.Errorf("%d allowed and %d refused decisions are on record", allowed, refused)
	}
	out.says("the network refused", "--allow-net", "other.test")
	if !strings.Contains(out.stderr, "net refused flow 93.184.216.34:80") || !strings.Contains(out.stderr, "net allowed flow example.test:"+s.secure+" h2 GET /https 200") {
		t.Errorf("--net-log said\n%s", out.stderr)
	}
}

// Without --allow-net there is nothing, and no way around it.
func TestNoNetwork(t *testing.T) {
	w, r := newWorld(t), plain(t)
	out := w.run(r, "--", "bash", "-c", try+`
try devices 'ls /sys/class/net 2>/dev/null | grep -v "^lo$" | wc -l'
try address 'curl -sS -m 120 http://1.1.1.1/'
try name 'curl -sS -m 120 http://example.com/'
`).want(0)
	got := attempts(t, out.stdout)
	if got["address"].status == "0" || got["name"].status == "0" || strings.TrimSpace(got["devices"].out) != "0" {
		t.Errorf("%+v", got)
	}
}
